//! The lines of the log, and the hash chain that connects them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use api::{ExecId, SandboxId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Act, Damaged, Entry, files};

/// Maximum length of a line. This is twice the length of a line whose fields are all at their limits, with
/// every byte escaped.
pub(super) const LINE_BYTES_MAX: usize = 4096;
/// Maximum number of times that verification starts over because a file became full while the log was being
/// read.
const VERIFIED_AGAIN: u32 = 3;
/// Value of `prev` in the first line, which has no previous line.
const NOTHING: [u8; 32] = [0; 32];

/// A log whose chain is intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Number of entries.
    pub entries: u64,
    /// Sequence number of the first entry. It is above 0 if older entries were removed.
    pub begins: u64,
    /// Sequence numbers of the entries that report that earlier entries are missing.
    pub cuts: Vec<u64>,
    /// Hash of the last line. If a copy of it is stored elsewhere, a later check can prove that no line up to
    /// this one was removed or changed.
    pub head: String,
    /// True if the log ends with an incomplete line, left behind by a killed server. The server removes that
    /// line when it starts.
    pub torn: bool,
}

/// End of a chain, which contains the data for writing the next line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChainEnd {
    /// Sequence number of the next line.
    pub seq: u64,
    /// Hash of the last line.
    pub head: [u8; 32],
}

/// Stored form of a line.
#[derive(Serialize, Deserialize)]
struct AuditLine {
    seq: u64,
    at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    act: Act,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exec: Option<ExecId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    prev: String,
}

/// Reads all files of a log from the first line to the last, and checks that each line continues the chain.
/// If `archived` is true, the oldest files may have been moved away. If `head` is set, the log must contain
/// the line with this hash. A server may write to the log during the check.
///
/// # Errors
/// Returns an error that describes the first problem: a line does not continue the chain, or a file is
/// missing or unreadable.
pub fn verify(path: &Path, archived: bool, head: Option<&str>) -> Result<Verified, Damaged> {
    let mut again = VERIFIED_AGAIN;
    loop {
        let before = files::full(path).unwrap_or_default();
        let verified = verify_once(path, archived, head);
        // A file that became full during the check was read only in part, or not at all. Check again in that
        // case.
        if verified.is_ok() || again == 0 || files::full(path).unwrap_or_default() == before {
            return verified;
        }
        again -= 1;
    }
}

fn verify_once(path: &Path, archived: bool, wanted: Option<&str>) -> Result<Verified, Damaged> {
    // Read the head first. Lines that a server writes during the check can then only make the log longer than
    // the head states, never shorter.
    let head = files::read_head(path);
    let listed = files::full(path)
        .map_err(|error| damaged(path, 0, format!("the directory of the log cannot be listed: {error}")))?;
    let wanted = wanted.map(str::to_ascii_lowercase);
    let mut reading = ChainReader { head, wanted, ..ChainReader::default() };
    let full = listed.len();
    for (place, file) in listed.into_iter().map(|(_, file)| file).chain([path.to_owned()]).enumerate() {
        // The current file may be missing: a server that was killed during rotation may have renamed the full
        // file before it created the next one.
        if place < full || full == 0 || file.exists() {
            reading.file(&file, place < full)?;
        }
    }
    let ChainReader { link, begins, pruned, cuts, torn, head, wanted } = reading;
    let link = link.unwrap_or(ChainEnd::first());
    let verified = Verified {
        entries: link.seq.saturating_sub(begins.seq),
        begins: begins.seq,
        head: hex(&link.head),
        cuts,
        torn,
    };
    if api::defence::is_off("L-14") {
        return Ok(verified);
    }
    if begins.seq > 0 && !archived && !pruned.contains(&(begins.seq, hex(&begins.head))) {
        let what = format!("the first {} entries of the log are missing", begins.seq);
        return Err(damaged(path, 0, what));
    }
    if let Some(wanted) = wanted {
        return Err(damaged(
            path,
            0,
            format!("no line has the hash {wanted}: that line was removed or changed"),
        ));
    }
    match head {
        Some((seq, _)) if seq > link.seq => {
            let what = format!("{} entries are missing at the end of the log", seq - link.seq);
            Err(damaged(path, 0, what))
        }
        _ => Ok(verified),
    }
}

/// Reader of a log, and the state of the chain so far.
#[derive(Default)]
struct ChainReader {
    /// End of the chain so far; `None` before the first line.
    link: Option<ChainEnd>,
    /// Start of the chain: the sequence number of the first line, and the hash of the line before it.
    begins: ChainEnd,
    /// Positions at which the chain may begin, according to entries about files that were removed because of
    /// the size limit.
    pruned: Vec<(u64, String)>,
    cuts: Vec<u64>,
    torn: bool,
    /// End of the chain according to the head file.
    head: Option<(u64, String)>,
    /// Hash of a line that the log must contain; `None` once it is found.
    wanted: Option<String>,
}

impl ChainReader {
    /// Reads one file and checks its lines. Only the last line of the last file may be incomplete.
    fn file(&mut self, path: &Path, is_full: bool) -> Result<(), Damaged> {
        let unreadable =
            |line: u64| move |error: std::io::Error| (line, format!("the line cannot be read: {error}"));
        let told = |(line, what): (u64, String)| damaged(path, line, what);
        let mut file = BufReader::new(File::open(path).map_err(unreadable(1)).map_err(told)?);
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let most = LINE_BYTES_MAX as u64 + 1;
            file.by_ref()
                .take(most)
                .read_until(b'\n', &mut text)
                .map_err(unreadable(number))
                .map_err(told)?;
            let Some((b'\n', line)) = text.split_last() else {
                if text.len() > LINE_BYTES_MAX {
                    return Err(damaged(path, number, "the line exceeds the maximum length".into()));
                }
                self.torn = !text.is_empty();
                if self.torn && is_full {
                    return Err(damaged(path, number, "the line is truncated".into()));
                }
                return Ok(());
            };
            self.line(line).map_err(|what| damaged(path, number, what))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let AuditLine { seq, act, detail, prev, .. } = read(line)?;
        let link = match self.link {
            Some(link) => link,
            None => {
                // This is the first line of the log. After reading all files, `verify_once` checks that the
                // log may begin here.
                let before = unhex(&prev).ok_or("the line has no valid hash of the previous line")?;
                let link = if seq == 0 { ChainEnd::first() } else { ChainEnd { seq, head: before } };
                self.begins = link;
                link
            }
        };
        let after = link.follow(line)?;
        if act == Act::AuditPrune
            && let Some((seq, head)) = detail.as_deref().and_then(pruned)
        {
            self.pruned.push((seq, head));
        }
        if act == Act::AuditCut {
            self.cuts.push(seq);
        }
        if self.head.as_ref().is_some_and(|(seq, head)| *seq == after.seq && *head != hex(&after.head)) {
            return Err("the line does not match the recorded head of the log".into());
        }
        let hash = hex(&after.head);
        self.wanted = self.wanted.take().filter(|wanted| *wanted != hash);
        self.link = Some(after);
        Ok(())
    }
}

/// Returns the detail for the entry about a removed file: the position at which the remaining log begins.
pub(super) fn prune_detail(link: &ChainEnd) -> String {
    format!("begins at {} sha256:{}", link.seq, hex(&link.head))
}

fn pruned(detail: &str) -> Option<(u64, String)> {
    let (seq, head) = detail.strip_prefix("begins at ")?.split_once(" sha256:")?;
    Some((seq.parse().ok()?, head.to_owned()))
}

pub(super) fn damaged(path: &Path, line: u64, what: String) -> Damaged {
    Damaged { file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(), line, what }
}

impl ChainEnd {
    /// Returns the end of an empty chain.
    pub fn first() -> Self {
        Self { seq: 0, head: NOTHING }
    }

    /// Returns the end of the chain after a line, without checking that the line continues the chain.
    pub fn after(line: &[u8]) -> Result<Self, String> {
        let seq =
            read(line)?.seq.checked_add(1).ok_or("the line has the highest possible sequence number")?;
        Ok(Self { seq, head: Sha256::digest(line).into() })
    }

    /// Appends an entry as the next line, with its newline.
    pub fn write(&mut self, entry: Entry, text: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let Entry { at_ms, act, key, project, sandbox, exec, detail } = entry;
        let prev = hex(&self.head);
        let line = AuditLine { seq: self.seq, at_ms, key, project, act, sandbox, exec, detail, prev };
        let line = serde_json::to_vec(&line)?;
        *self = Self { seq: self.seq + 1, head: Sha256::digest(&line).into() };
        text.extend_from_slice(&line);
        text.push(b'\n');
        Ok(())
    }

    /// Checks that a line continues the chain, and returns the end of the chain after it.
    fn follow(self, line: &[u8]) -> Result<Self, String> {
        if api::defence::is_off("L-14") {
            return Self::after(line);
        }
        let read = read(line)?;
        if read.seq != self.seq {
            let missing = read.seq.saturating_sub(self.seq);
            return Err(format!(
                "the line is entry {}, but entry {} was expected: {missing} entries are missing before this line",
                read.seq, self.seq
            ));
        }
        if read.prev != hex(&self.head) {
            return Err("the line has a hash that does not match the previous line".into());
        }
        Self::after(line)
    }
}

/// Returns the bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let pair = |place: usize| u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..32).map_while(pair).collect();
    bytes.try_into().ok().filter(|_| text.len() == 64)
}

fn read(line: &[u8]) -> Result<AuditLine, String> {
    serde_json::from_slice(line).map_err(|error| format!("the line is not a valid entry: {error}"))
}

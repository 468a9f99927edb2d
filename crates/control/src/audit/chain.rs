//! The lines of the log and what ties them together.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use api::{ExecId, SandboxId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Act, Damaged, Entry};

/// The longest line: every field at its bound, each byte of it escaped, is half of this.
pub(super) const LINE_BYTES_MAX: usize = 4096;
/// What the first line has as the hash of the one before it.
const NOTHING: [u8; 32] = [0; 32];

/// A log whose chain holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its entries.
    pub entries: u64,
    /// The hash of the last line. Kept elsewhere, it proves later that nothing was cut off before it.
    pub head: String,
    /// Whether a half-written line follows, as a server leaves it that was killed. The next one cuts it off.
    pub torn: bool,
}

/// The end of a chain: what the next line needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The number of the next line.
    pub seq: u64,
    /// The hash of the last one.
    pub head: [u8; 32],
}

/// One line, as it is written.
#[derive(Serialize, Deserialize)]
struct Line {
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

/// Reads a log from its first line to its last and checks that each follows from the one before it.
///
/// # Errors
/// The first line that does not, or a file that cannot be read.
pub fn verify(path: &Path) -> Result<Verified, Damaged> {
    let unreadable =
        |line: u64| move |error: std::io::Error| Damaged { line, what: format!("cannot be read: {error}") };
    let mut file = BufReader::new(File::open(path).map_err(unreadable(1))?);
    let mut link = Link::first();
    let mut text = Vec::new();
    loop {
        let number = link.seq + 1;
        text.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        file.by_ref().take(most).read_until(b'\n', &mut text).map_err(unreadable(number))?;
        let Some((b'\n', line)) = text.split_last() else {
            if text.len() > LINE_BYTES_MAX {
                return Err(Damaged { line: number, what: "is longer than any line".into() });
            }
            return Ok(Verified { entries: link.seq, head: hex(&link.head), torn: !text.is_empty() });
        };
        link = link.follow(line).map_err(|what| Damaged { line: number, what })?;
    }
}

impl Link {
    /// Before the first line.
    pub fn first() -> Self {
        Self { seq: 0, head: NOTHING }
    }

    /// After a line whose place in the chain is taken on trust.
    pub fn after(line: &[u8]) -> Result<Self, String> {
        let seq = read(line)?.seq.checked_add(1).ok_or("its number is the last there is")?;
        Ok(Self { seq, head: Sha256::digest(line).into() })
    }

    /// Appends the next line, with its newline.
    pub fn write(&mut self, entry: Entry, text: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let Entry { at_ms, act, key, project, sandbox, exec, detail } = entry;
        let prev = hex(&self.head);
        let line = Line { seq: self.seq, at_ms, key, project, act, sandbox, exec, detail, prev };
        let line = serde_json::to_vec(&line)?;
        *self = Self { seq: self.seq + 1, head: Sha256::digest(&line).into() };
        text.extend_from_slice(&line);
        text.push(b'\n');
        Ok(())
    }

    /// Checks that a line is the next one.
    fn follow(self, line: &[u8]) -> Result<Self, String> {
        let read = read(line)?;
        if read.seq != self.seq {
            return Err(format!("has the number {}, and {} would be next", read.seq, self.seq));
        }
        if read.prev != hex(&self.head) {
            return Err("does not follow from the line before it".into());
        }
        Self::after(line)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(line: &[u8]) -> Result<Line, String> {
    serde_json::from_slice(line).map_err(|error| format!("is not an entry: {error}"))
}

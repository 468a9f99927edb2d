//! The thread that writes the log.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::chain::{ChainEnd, LINE_BYTES_MAX, damaged, prune_detail};
use super::files::{self, Bounds};
use super::{Act, Damaged, Entry, Error, SYNC_EVERY};

/// Maximum number of entries in one write. It is large enough to write a burst with few system calls. In
/// practice, one write has at most a quarter of a megabyte.
const GROUP: usize = 512;

/// A message to the writer thread.
pub(super) enum Word {
    /// Write an entry.
    Entry(Box<Entry>),
    /// Sync all entries sent before this message to disk, then notify the sender.
    Flush(oneshot::Sender<()>),
}

/// Writer of the log: the current file, and the end of the chain.
pub(super) struct Writer {
    path: PathBuf,
    bounds: Bounds,
    file: File,
    /// Offset of the end of the last complete line. After a failed write, the file may be longer.
    length: u64,
    link: ChainEnd,
    missed: Arc<AtomicU64>,
    /// Time of the newest entry. Entries that the writer itself adds use this time.
    at_ms: u64,
    /// Time of the oldest write that may not be on disk yet.
    unsynced: Option<Instant>,
    /// True if the last write failed. While it is true, further failures are not logged, so that a full disk
    /// does not cause a log message for every entry.
    failing: bool,
}

impl Writer {
    /// Opens the file, finds the end of its chain, and removes any incomplete line after that end. Adds an
    /// entry if it removed a line, or if the head file shows that entries are missing.
    pub fn open(path: &Path, now_ms: u64, missed: Arc<AtomicU64>, bounds: Bounds) -> Result<Self, Error> {
        let failed =
            |act: &'static str| move |source| Error::File { act, path: path.display().to_string(), source };
        let file = locked(path)?;
        let whole = file.metadata().map_err(failed("read"))?.len();
        let (length, link) = end(&file, whole, path).map_err(failed("read"))??;
        // A new file continues the chain of the previous one.
        let link = match link {
            Some(link) => link,
            None => last(path).map_err(failed("read"))??.unwrap_or(ChainEnd::first()),
        };
        let mut entries = Vec::new();
        if length < whole {
            let detail = format!("removed {} bytes of an incomplete line", whole - length);
            file.set_len(length).map_err(failed("truncate"))?;
            entries.push(Entry::new(now_ms, Act::Torn).detail(&detail));
        }
        if let Some(missing) = files::read_head(path).and_then(|(seq, _)| seq.checked_sub(link.seq))
            && missing > 0
        {
            tracing::error!("the audit log was truncated: {missing} entries are missing at its end");
            let detail = format!("{missing} entries are missing before this one");
            entries.push(Entry::new(now_ms, Act::AuditCut).detail(&detail));
        }
        let path = path.to_owned();
        let (at_ms, unsynced, failing) = (now_ms, None, false);
        let mut writer = Self { path, bounds, file, length, link, missed, at_ms, unsynced, failing };
        if !entries.is_empty() {
            let path = writer.path.display().to_string();
            writer.append(entries).map_err(|source| Error::File { act: "write", path, source })?;
        }
        Ok(writer)
    }

    /// Handles messages until all senders have been dropped.
    pub fn run(mut self, words: &Receiver<Word>) {
        loop {
            let mut group = Vec::new();
            let mut flushed = Vec::new();
            let ended = match words.recv_timeout(SYNC_EVERY) {
                Ok(word) => {
                    for word in std::iter::once(word).chain(words.try_iter()).take(GROUP) {
                        match word {
                            Word::Entry(entry) => group.push(*entry),
                            Word::Flush(done) => flushed.push(done),
                        }
                    }
                    false
                }
                // Write even without a new message, because entries may have been counted as missed since the
                // last write.
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            self.write(group);
            self.sync(ended || !flushed.is_empty());
            for done in flushed {
                // Ignore an error, which means that the caller of `flush` has stopped waiting.
                let _ = done.send(());
            }
            if ended {
                return;
            }
        }
    }

    /// Writes a group of entries, followed by an entry with the number of missed entries, if there are any.
    /// Entries that cannot be written count as missed.
    pub fn write(&mut self, mut group: Vec<Entry>) {
        if let Some(last) = group.last() {
            self.at_ms = last.at_ms;
        }
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            let detail = format!("{missed} entries");
            group.push(Entry::new(self.at_ms, Act::Missed).detail(&detail));
        }
        if group.is_empty() {
            return;
        }
        let entries = group.len() as u64 - u64::from(missed > 0);
        match self.append(group) {
            Ok(()) => {
                self.failing = false;
                if self.length >= self.bounds.file_bytes()
                    && let Err(error) = self.rotate()
                {
                    tracing::error!(
                        %error,
                        "cannot rotate the full audit log; still writing to the same file"
                    );
                }
            }
            Err(error) => {
                self.missed.fetch_add(missed + entries, Ordering::Relaxed);
                if !self.failing {
                    tracing::error!(%error, "cannot write the audit log; entries are being lost");
                }
                self.failing = true;
            }
        }
    }

    /// Appends entries to the file in one write. On failure, the chain is unchanged, and the next call
    /// removes any partial write.
    fn append(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        if self.failing {
            self.file.set_len(self.length)?;
        }
        let mut link = self.link;
        let mut text = Vec::new();
        for entry in entries {
            link.write(entry, &mut text)?;
        }
        self.file.write_all(&text)?;
        self.length += text.len() as u64;
        self.link = link;
        self.unsynced.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Continues the log in a new file, and removes the oldest files if there are too many.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync(true);
        let full = files::full(&self.path)?;
        let number = full.last().map_or(1, |(number, _)| number + 1);
        let (fresh, kept) = (files::beside(&self.path, ".new"), files::numbered(&self.path, number));
        let _ = fs::remove_file(&fresh);
        let file = locked(&fresh).map_err(io::Error::other)?;
        fs::rename(&self.path, &kept)?;
        if let Err(error) = fs::rename(&fresh, &self.path) {
            // Restore the name of the file, so that the next writer finds the end of the chain.
            fs::rename(&kept, &self.path)?;
            return Err(error);
        }
        (self.file, self.length) = (file, 0);
        let too_many = (full.len() + 1).saturating_sub(self.bounds.files_max());
        for (_, oldest) in full.into_iter().take(too_many) {
            let file = File::open(&oldest)?;
            let whole = file.metadata()?.len();
            if let (_, Some(link)) = end(&file, whole, &oldest)?.map_err(io::Error::other)? {
                self.append(vec![Entry::new(self.at_ms, Act::AuditPrune).detail(&prune_detail(&link))])?;
            }
            fs::remove_file(&oldest)?;
        }
        Ok(())
    }

    /// Replaces the open file and returns the previous one, so that tests can simulate disk errors.
    #[cfg(test)]
    pub fn swap_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    pub fn sync(&mut self, now: bool) {
        let due = self.unsynced.is_some_and(|since| now || since.elapsed() >= SYNC_EVERY);
        if due && self.file.sync_data().is_ok() {
            self.unsynced = None;
            // Update the head file only after the log is on disk, so that a power failure never leaves the
            // head file ahead of the log.
            if let Err(error) = files::write_head(&self.path, &self.link) {
                tracing::debug!(%error, "cannot write the head file of the audit log");
            }
        }
    }
}

/// Opens a file of the log and locks it against other writers.
fn locked(path: &Path) -> Result<File, Error> {
    let failed =
        |act: &'static str| move |source| Error::File { act, path: path.display().to_string(), source };
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let file = options.open(path).map_err(failed("open"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { path: path.display().to_string() }),
        Err(TryLockError::Error(source)) => Err(failed("lock")(source)),
    }
}

/// Returns the end of the chain in the newest full file, if there is one.
fn last(path: &Path) -> io::Result<Result<Option<ChainEnd>, Damaged>> {
    let Some((_, newest)) = files::full(path)?.pop() else { return Ok(Ok(None)) };
    let file = File::open(&newest)?;
    let whole = file.metadata()?.len();
    Ok(end(&file, whole, &newest)?.map(|(_, link)| link))
}

/// Returns the offset after the last complete line, and the end of the chain there. The end of the chain is
/// `None` if the file has no complete line.
fn end(file: &File, whole: u64, path: &Path) -> io::Result<Result<(u64, Option<ChainEnd>), Damaged>> {
    // The tail is long enough for the last complete line with its newline, the newline before that line, and
    // an incomplete line after it.
    let from = whole.saturating_sub(2 * LINE_BYTES_MAX as u64 + 2);
    let mut tail = vec![0; usize::try_from(whole - from).unwrap_or(0)];
    file.read_exact_at(&mut tail, from)?;
    let damaged = |what: &str| Ok(Err(damaged(path, 0, what.to_owned())));
    let Some(newline) = tail.iter().rposition(|byte| *byte == b'\n') else {
        if from > 0 || whole > LINE_BYTES_MAX as u64 {
            return damaged("the end of the file is not a line of an audit log");
        }
        return Ok(Ok((0, None)));
    };
    let lines = tail.get(..newline).unwrap_or_default();
    let line = match lines.iter().rposition(|byte| *byte == b'\n') {
        Some(before) => lines.get(before + 1..).unwrap_or_default(),
        None => lines,
    };
    match ChainEnd::after(line) {
        Ok(link) => Ok(Ok((from + newline as u64 + 1, Some(link)))),
        Err(what) => damaged(&format!("the last line of the file is invalid: {what}")),
    }
}

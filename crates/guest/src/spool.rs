//! The bounded buffer of one output stream of an exec.
//!
//! Every byte that the process writes has an offset. The mode decides which bytes remain readable:
//!
//! ```text
//! keep    0 ────── head ┄┄┄┄ dropped ┄┄┄┄ written-tail ────── written     the process never waits
//! block                 consumed ──────────────────────────── written     the process waits while the buffer is full
//! kill    0 ──────────────────────────────────────────────── limit        one more byte ends the exec
//! ```
//!
//! The first [`MEMORY_BYTES`] stay in memory, so that an exec with little output does not touch the disk. If
//! there is more output, all of it is in one unnamed file: the head first, then the tail as a ring.
//!
//! User code can fill the disk. When a write fails for that reason, the guest first discards the output of
//! ended execs. If the write still fails, the mode decides:
//!
//! - `block`: the spool accepts only bytes for which disk space is reserved. So the ring keeps its current
//!   size, at least [`MEMORY_BYTES`], and the process waits. The reader may acknowledge output in steps that
//!   are larger than this ring, so bytes count as consumed as soon as they are sent, including bytes that
//!   were sent before the disk was full. Output is lost only if the reader's connection breaks before the
//!   sent bytes arrive, and this loss is reported as a gap.
//! - `keep`: the head ends at this point, and the last [`last::LAST_BYTES`] of the remaining output stay in memory.
//! - `kill`: the write counts as exceeding the limit.

mod last;
mod storage;

use std::fs::File;
use std::io;

use api::exec::OutputMode;

use last::LastBytes;
use storage::SpoolStorage;

/// Maximum output that is held in memory. This is enough for most execs, and unused memory costs nothing.
pub const MEMORY_BYTES: u64 = 64 * 1024;

/// Number of bytes whose disk blocks mode `block` reserves at a time: the size of one read from a pipe.
const ASIDE_BYTES: u64 = 256 * 1024;

/// The buffer of one stream.
pub struct Spool {
    mode: OutputMode,
    /// Bytes below this offset are never overwritten.
    head: u64,
    /// Number of bytes that are retained after the head: always the newest bytes.
    tail: u64,
    /// Number of all bytes written so far.
    written: u64,
    /// Bytes below this offset have been consumed by a reader (mode `block`).
    consumed: u64,
    /// Bytes below this offset were sent to a reader (mode `block`).
    sent: u64,
    /// Bytes of the tail below this offset were discarded or could not be stored.
    floor: u64,
    /// Number of bytes that could not be stored because the disk was full.
    unstored: u64,
    /// True if the ring is smaller than requested because the disk was full (mode `block`).
    cramped: bool,
    /// The last bytes, if the disk became full (mode `keep`).
    last: Option<LastBytes>,
    storage: SpoolStorage,
}

/// Result of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum SpoolWrite {
    /// All bytes were accepted, and retained or dropped as the mode requires.
    All,
    /// Only this many bytes were accepted, because the buffer is full (mode `block`).
    Part(usize),
    /// The write exceeded the limit, or the disk is full (mode `kill`).
    OverLimit,
}

/// Result of a read at an offset.
#[derive(Debug, PartialEq, Eq)]
pub enum SpoolRead {
    /// This many bytes were copied to the buffer.
    Data(usize),
    /// The bytes from the offset up to `to` were not retained.
    Gap {
        /// Next offset that can be read.
        to: u64,
    },
    /// No byte has been written at the offset yet.
    Nothing,
}

impl Spool {
    /// Creates a spool that retains `bytes` bytes. It calls `make_file` when the output no longer fits in
    /// memory.
    pub fn new(mode: OutputMode, bytes: u64, make_file: fn() -> io::Result<File>) -> Self {
        let (head, tail) = match mode {
            OutputMode::Keep => (bytes / 2, bytes - bytes / 2),
            OutputMode::Block => (0, bytes),
            OutputMode::Kill => (bytes, 0),
        };
        let (written, consumed, sent, floor, unstored) = (0, 0, 0, 0, 0);
        let (cramped, last, storage) = (false, None, SpoolStorage::new(make_file));
        Self { mode, head, tail, written, consumed, sent, floor, unstored, cramped, last, storage }
    }

    /// Returns the number of all bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes that can no longer be read, not counting bytes that a reader has consumed.
    pub fn dropped(&self) -> u64 {
        match self.mode {
            OutputMode::Block => self.unstored,
            OutputMode::Keep | OutputMode::Kill => self.tail_start() - self.head_end(),
        }
    }

    /// Returns true if some of the output is on disk.
    pub fn has_file(&self) -> bool {
        self.storage.has_file()
    }

    /// Returns the number of bytes that can still be read.
    pub fn kept(&self) -> u64 {
        self.written - self.tail_start() + self.head_end()
    }

    /// Returns how many more bytes are certain to fit now. If the number is 0, the process must wait. Modes
    /// `keep` and `kill` have no limit, because the process never waits.
    pub fn room(&mut self) -> u64 {
        match self.mode {
            OutputMode::Block => self.certain_room(),
            OutputMode::Keep | OutputMode::Kill => u64::MAX,
        }
    }

    /// Returns the room in mode `block`, and reserves disk blocks for it, at most up to the point where the
    /// ring wraps. If the disk is full, the ring keeps its current size.
    fn certain_room(&mut self) -> u64 {
        loop {
            let unread = self.written - self.consumed;
            let place = self.place_of(self.written);
            let wanted = self.tail.saturating_sub(unread).min(self.tail - place).min(ASIDE_BYTES);
            if api::defence::is_off("O-20") {
                return wanted;
            }
            let Some(certain) = self.storage.certain(place) else { return wanted };
            if wanted == 0 || certain > 0 {
                return wanted.min(certain);
            }
            if self.storage.set_aside(place, wanted).is_ok() {
                continue;
            }
            // The disk is full, so shrink the ring to the reserved blocks, which end at `place`. The ring has
            // not wrapped yet, so every stored byte is already at its position in the smaller ring.
            self.tail = place;
            self.cramped = true;
            self.consume(self.sent);
        }
    }

    /// Stores output of the process. If the buffer is full, the result depends on the mode.
    pub fn write(&mut self, bytes: &[u8]) -> SpoolWrite {
        match self.mode {
            OutputMode::Keep => {
                self.store(bytes);
                SpoolWrite::All
            }
            OutputMode::Block => {
                let mut left = bytes;
                while !left.is_empty() {
                    let room = usize::try_from(self.room()).unwrap_or(usize::MAX).min(left.len());
                    if room == 0 {
                        return SpoolWrite::Part(bytes.len() - left.len());
                    }
                    let (now, later) = left.split_at(room);
                    self.store(now);
                    left = later;
                }
                SpoolWrite::All
            }
            OutputMode::Kill => {
                let room = usize::try_from(self.head - self.written).unwrap_or(usize::MAX);
                let fits = bytes.get(..room).unwrap_or(bytes);
                let before = self.unstored;
                self.store(fits);
                if fits.len() == bytes.len() && self.unstored == before {
                    SpoolWrite::All
                } else {
                    SpoolWrite::OverLimit
                }
            }
        }
    }

    /// Reads bytes at an offset into a buffer.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> SpoolRead {
        if offset >= self.written {
            return SpoolRead::Nothing;
        }
        let start = self.tail_start();
        let end = if offset < self.head_end() {
            self.head_end()
        } else if offset < start {
            return SpoolRead::Gap { to: start };
        } else if let Some(last) = &self.last {
            return last.read(offset..self.written, buffer);
        } else {
            // Read up to the point where the ring wraps.
            let place = self.place_of(offset);
            (offset + (self.head + self.tail - place)).min(self.written)
        };
        let wanted = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
        let place = self.place_of(offset);
        let Some(buffer) = buffer.get_mut(..wanted) else { return SpoolRead::Nothing };
        let done = self.storage.read(place, buffer);
        // If the disk cannot be read, report a gap, so that the exec as a whole does not fail.
        if done { SpoolRead::Data(wanted) } else { SpoolRead::Gap { to: end } }
    }

    /// Records that a reader has consumed all bytes below this offset (mode `block`). An offset below an
    /// earlier offset has no effect.
    pub fn consume(&mut self, offset: u64) {
        self.consumed = self.consumed.max(offset.min(self.written));
    }

    /// Records that all bytes below this offset were sent to a reader (mode `block`). If a full disk made the
    /// ring smaller, the ring cannot wait for acknowledgements, so the bytes count as consumed. Returns true
    /// in that case.
    pub fn sent(&mut self, offset: u64) -> bool {
        self.sent = self.sent.max(offset.min(self.written));
        if self.cramped {
            self.consume(self.sent);
        }
        self.cramped
    }

    /// Discards all retained bytes.
    pub fn forget(&mut self) {
        self.storage.discard();
        self.head = 0;
        self.last = None;
        self.floor = self.written;
    }

    fn head_end(&self) -> u64 {
        self.head.min(self.written)
    }

    fn tail_start(&self) -> u64 {
        let start = match self.mode {
            OutputMode::Block => self.consumed,
            OutputMode::Keep | OutputMode::Kill => match &self.last {
                Some(last) => last.start(self.written),
                None => self.written.saturating_sub(self.tail),
            },
        };
        start.max(self.floor).max(self.head_end()).min(self.written)
    }

    /// Returns the position at which the byte with this offset is stored, in memory or in the file.
    fn place_of(&self, offset: u64) -> u64 {
        if offset < self.head { offset } else { self.head + (offset - self.head) % self.tail.max(1) }
    }

    fn store(&mut self, mut bytes: &[u8]) {
        if self.last.is_some() {
            return self.store_last(bytes);
        }
        // If a write is larger than the tail, skip its beginning, which its own end would overwrite.
        if self.written >= self.head && bytes.len() as u64 > self.tail {
            let skip = bytes.len() as u64 - self.tail;
            self.written += skip;
            bytes = bytes.get(usize::try_from(skip).unwrap_or(usize::MAX)..).unwrap_or_default();
        }
        while !bytes.is_empty() {
            let place = self.place_of(self.written);
            let line = if self.written < self.head { self.head } else { self.head + self.tail };
            let fits = usize::try_from(line - place).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(fits);
            if now.is_empty() {
                break;
            }
            let stored = self.storage.write(place, now);
            if stored.is_err() && self.mode == OutputMode::Keep {
                self.head = self.head.min(self.written);
                self.last = Some(LastBytes::new(self.written));
                return self.store_last(bytes);
            }
            self.written += now.len() as u64;
            if stored.is_err() {
                self.lost(now.len() as u64);
            }
            bytes = later;
        }
    }

    /// Writes bytes to the ring in memory that holds the last bytes of the output.
    fn store_last(&mut self, bytes: &[u8]) {
        let Some(last) = &mut self.last else { return };
        self.written += bytes.len() as u64;
        last.write(bytes, self.written);
    }

    /// Records that the last `count` bytes could not be stored: the head ends before them, and the tail
    /// begins after them.
    fn lost(&mut self, count: u64) {
        self.head = self.head.min(self.written - count);
        self.floor = self.written;
        self.unstored += count;
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests;

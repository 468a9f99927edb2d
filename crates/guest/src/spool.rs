//! The bounded store of one output stream of an exec.
//!
//! Every byte that the process writes has an offset. Which of them can be read again depends on the mode:
//!
//! ```text
//! keep    0 ────── head ┄┄┄┄ dropped ┄┄┄┄ written-tail ────── written     the process never waits
//! block                 consumed ──────────────────────────── written     the process waits when it is full
//! kill    0 ──────────────────────────────────────────────── limit        one byte more ends the exec
//! ```
//!
//! The first [`MEMORY_BYTES`] stay in memory, so that a small exec touches no disk; past that everything is in one
//! file without a name, the head in front and the tail as a ring behind it.
//!
//! User code can fill the disk. When that refuses, output of execs that have ended is forgotten first. Then, by mode:
//!
//! - `block`: room is announced only where bytes can be stored for certain, so the ring stays as large as it is, at least
//!   [`MEMORY_BYTES`], and the process waits. A reader says what it has taken in steps that are larger than such a ring; so what was
//!   sent to it, before or after the disk refused, counts as taken. Nothing is lost unless its connection breaks just then, and that is
//!   told as a gap.
//! - `keep`: the head ends there, and of the rest the last [`LAST_BYTES`] stay in memory.
//! - `kill`: that was the limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use api::exec::OutputMode;

use crate::spare;

/// What most execs write fits; a thousand idle ones cost nothing.
pub const MEMORY_BYTES: u64 = 64 * 1024;

/// What is kept of the end in any case (mode `keep`): the last lines, which say how it went.
pub const LAST_BYTES: u64 = 32 * 1024;
/// What is set aside on the disk at once (mode `block`): as much as is read of a pipe at once.
const ASIDE_BYTES: u64 = 256 * 1024;

/// The store of one stream.
pub struct Spool {
    mode: OutputMode,
    /// Bytes below this offset are kept for good.
    head: u64,
    /// Of the bytes after the head, this many are kept, the newest.
    tail: u64,
    /// All bytes ever written.
    written: u64,
    /// Bytes below this offset have been taken by a reader (mode `block`).
    consumed: u64,
    /// Bytes below this offset were sent to a reader (mode `block`).
    sent: u64,
    /// Bytes of the tail below this offset could not be stored.
    floor: u64,
    /// Bytes that the disk refused.
    unstored: u64,
    /// How much of the file is set aside for certain (mode `block`).
    aside: u64,
    /// Whether the disk refused, so that the ring is smaller than what was asked for (mode `block`).
    cramped: bool,
    /// From where on the disk refused, and the end of what came after that, as a ring (mode `keep`).
    last: Option<(u64, Vec<u8>)>,
    place: Place,
    make_file: fn() -> io::Result<File>,
}

enum Place {
    Memory(Vec<u8>),
    File(File),
    /// Ended and forgotten, or the disk refused: nothing below `floor` can be read.
    Nowhere,
}

/// What became of bytes that were offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of them, kept or dropped as the mode says.
    All,
    /// Only this many: mode `block`, and it is full.
    Part(usize),
    /// Mode `kill`, and that was too many, or more than the disk takes.
    OverLimit,
}

/// What can be read at an offset.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes were put into the buffer.
    Data(usize),
    /// The bytes from the offset up to `to` were not kept.
    Gap {
        /// The next offset that can be read.
        to: u64,
    },
    /// Nothing yet.
    Nothing,
}

impl Spool {
    /// A spool that keeps `bytes`; `make_file` is called when memory is not enough.
    pub fn new(mode: OutputMode, bytes: u64, make_file: fn() -> io::Result<File>) -> Self {
        let (head, tail) = match mode {
            OutputMode::Keep => (bytes / 2, bytes - bytes / 2),
            OutputMode::Block => (0, bytes),
            OutputMode::Kill => (bytes, 0),
        };
        let place = Place::Memory(Vec::new());
        let (written, consumed, sent, floor, unstored, aside) = (0, 0, 0, 0, 0, 0);
        let (cramped, last) = (false, None);
        Self {
            mode,
            head,
            tail,
            written,
            consumed,
            sent,
            floor,
            unstored,
            aside,
            cramped,
            last,
            place,
            make_file,
        }
    }

    /// All bytes ever written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that were written and cannot be read again, those that a reader has taken not counted.
    pub fn dropped(&self) -> u64 {
        match self.mode {
            OutputMode::Block => self.unstored,
            OutputMode::Keep | OutputMode::Kill => self.tail_start() - self.head_end(),
        }
    }

    /// Whether some of it is on the disk.
    pub fn has_file(&self) -> bool {
        matches!(self.place, Place::File(_))
    }

    /// Bytes that can be read again.
    pub fn kept(&self) -> u64 {
        self.written - self.tail_start() + self.head_end()
    }

    /// How many more bytes can be stored for certain now; with none, the process must wait. Endless in the modes in which it never
    /// does.
    pub fn room(&mut self) -> u64 {
        match self.mode {
            OutputMode::Block => self.certain_room(),
            OutputMode::Keep | OutputMode::Kill => u64::MAX,
        }
    }

    /// Sets room aside for what comes next, up to where the ring begins again. Where the disk refuses, the ring stays as it is.
    fn certain_room(&mut self) -> u64 {
        loop {
            let unread = self.written - self.consumed;
            let place = self.place_of(self.written);
            let wanted = self.tail.saturating_sub(unread).min(self.tail - place).min(ASIDE_BYTES);
            if api::defence::is_off("O-20") {
                return wanted;
            }
            let certain = match &self.place {
                Place::Memory(_) => MEMORY_BYTES.saturating_sub(place),
                Place::File(_) => self.aside.saturating_sub(place),
                Place::Nowhere => return wanted,
            };
            if wanted == 0 || certain > 0 {
                return wanted.min(certain);
            }
            if self.set_aside(place, wanted).is_ok() {
                continue;
            }
            // All that is set aside is written to, for the first time: what is stored lies from 0 to here, and so it does in a ring
            // that ends here.
            self.tail = place;
            self.cramped = true;
            self.consume(self.sent);
        }
    }

    /// Moves to a file, and has the disk give it these blocks.
    fn set_aside(&mut self, place: u64, bytes: u64) -> io::Result<()> {
        relieved(|| {
            if let Place::Memory(memory) = &self.place {
                let file = (self.make_file)()?;
                file.write_all_at(memory, 0)?;
                // What is written there has its blocks, whatever the disk says to more.
                self.aside = memory.len() as u64;
                self.place = Place::File(file);
            }
            match &self.place {
                Place::File(file) => allocate(file, place, bytes),
                Place::Memory(_) | Place::Nowhere => Err(io::ErrorKind::StorageFull.into()),
            }
        })?;
        self.aside = place + bytes;
        Ok(())
    }

    /// Takes bytes that the process has written.
    pub fn write(&mut self, bytes: &[u8]) -> Taken {
        match self.mode {
            OutputMode::Keep => {
                self.store(bytes);
                Taken::All
            }
            OutputMode::Block => {
                let mut left = bytes;
                while !left.is_empty() {
                    let room = usize::try_from(self.room()).unwrap_or(usize::MAX).min(left.len());
                    if room == 0 {
                        return Taken::Part(bytes.len() - left.len());
                    }
                    let (now, later) = left.split_at(room);
                    self.store(now);
                    left = later;
                }
                Taken::All
            }
            OutputMode::Kill => {
                let room = usize::try_from(self.head - self.written).unwrap_or(usize::MAX);
                let fits = bytes.get(..room).unwrap_or(bytes);
                let before = self.unstored;
                self.store(fits);
                if fits.len() == bytes.len() && self.unstored == before {
                    Taken::All
                } else {
                    Taken::OverLimit
                }
            }
        }
    }

    /// Reads at an offset.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Read {
        if offset >= self.written {
            return Read::Nothing;
        }
        let start = self.tail_start();
        let end = if offset < self.head_end() {
            self.head_end()
        } else if offset < start {
            return Read::Gap { to: start };
        } else if let Some((_, last)) = &self.last {
            return read_last(last, offset..self.written, buffer);
        } else {
            // Up to the point where the ring begins again.
            let place = self.place_of(offset);
            (offset + (self.head + self.tail - place)).min(self.written)
        };
        let wanted = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
        let place = self.place_of(offset);
        let Some(buffer) = buffer.get_mut(..wanted) else { return Read::Nothing };
        let done = match &self.place {
            Place::Memory(bytes) => {
                let from = usize::try_from(place).unwrap_or(usize::MAX);
                bytes.get(from..from + wanted).map(|stored| buffer.copy_from_slice(stored)).is_some()
            }
            Place::File(file) => file.read_exact_at(buffer, place).is_ok(),
            Place::Nowhere => false,
        };
        // What the disk does not give back was not kept: say so, once, instead of failing the whole exec.
        if done { Read::Data(wanted) } else { Read::Gap { to: end } }
    }

    /// A reader has everything below this offset (mode `block`). Going back changes nothing.
    pub fn consume(&mut self, offset: u64) {
        self.consumed = self.consumed.max(offset.min(self.written));
    }

    /// A reader was sent everything below this offset (mode `block`). Where the disk leaves no room to wait until it says that it has
    /// it, that is enough. Says whether it was.
    pub fn sent(&mut self, offset: u64) -> bool {
        self.sent = self.sent.max(offset.min(self.written));
        if self.cramped {
            self.consume(self.sent);
        }
        self.cramped
    }

    /// Lets go of everything kept.
    pub fn forget(&mut self) {
        if let Place::File(file) = std::mem::replace(&mut self.place, Place::Nowhere) {
            spare::give_back(file);
        }
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
                Some((from, _)) => self.written.saturating_sub(LAST_BYTES).max(*from),
                None => self.written.saturating_sub(self.tail),
            },
        };
        start.max(self.floor).max(self.head_end()).min(self.written)
    }

    /// Where in the memory or file an offset is.
    fn place_of(&self, offset: u64) -> u64 {
        if offset < self.head { offset } else { self.head + (offset - self.head) % self.tail.max(1) }
    }

    fn store(&mut self, mut bytes: &[u8]) {
        if self.last.is_some() {
            return self.store_last(bytes);
        }
        // Of one large write, what would be overwritten by its own end need not be stored.
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
            let stored = self.put(place, now);
            if stored.is_err() && self.mode == OutputMode::Keep {
                self.head = self.head.min(self.written);
                self.last = Some((self.written, Vec::new()));
                return self.store_last(bytes);
            }
            self.written += now.len() as u64;
            if stored.is_err() {
                self.lost(now.len() as u64);
            }
            bytes = later;
        }
    }

    /// Keeps the end of what is written in memory.
    fn store_last(&mut self, bytes: &[u8]) {
        let Some((_, last)) = &mut self.last else { return };
        last.resize(LAST_BYTES as usize, 0);
        self.written += bytes.len() as u64;
        let skipped = bytes.len().saturating_sub(LAST_BYTES as usize);
        let kept = bytes.get(skipped..).unwrap_or_default();
        let first = ((self.written - kept.len() as u64) % LAST_BYTES) as usize;
        let (now, later) = kept.split_at(kept.len().min(LAST_BYTES as usize - first));
        for (from, part) in [(first, now), (0, later)] {
            if let Some(to) = last.get_mut(from..from + part.len()) {
                to.copy_from_slice(part);
            }
        }
    }

    fn put(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        if let Place::Memory(memory) = &mut self.place {
            let from = usize::try_from(place).unwrap_or(usize::MAX);
            if place + bytes.len() as u64 <= MEMORY_BYTES {
                let end = from + bytes.len();
                if memory.len() < end {
                    memory.resize(end, 0);
                }
                if let Some(to) = memory.get_mut(from..end) {
                    to.copy_from_slice(bytes);
                }
                return Ok(());
            }
            let file = relieved(|| {
                let file = (self.make_file)()?;
                file.write_all_at(memory, 0)?;
                Ok(file)
            })?;
            self.place = Place::File(file);
        }
        match &self.place {
            Place::File(file) => relieved(|| file.write_all_at(bytes, place)),
            Place::Memory(_) | Place::Nowhere => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// The last `count` bytes could not be stored: the head ends before them, the tail begins after them.
    fn lost(&mut self, count: u64) {
        self.head = self.head.min(self.written - count);
        self.floor = self.written;
        self.unstored += count;
    }
}

/// Does it, if need be again and again while output of execs that have ended can be forgotten for it.
fn relieved<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(_) if spare::relieve() => {}
            done => return done,
        }
    }
}

/// Has the disk give a file these blocks: by asking for them, or where that is not known, by writing to them.
fn allocate(file: &File, place: u64, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), place, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.write_all_at(&vec![0; usize::try_from(bytes).unwrap_or(0)], place)
        }
        done => Ok(done?),
    }
}

/// Reads from the ring of the last bytes, up to where it begins again.
fn read_last(last: &[u8], offsets: std::ops::Range<u64>, buffer: &mut [u8]) -> Read {
    let place = (offsets.start % LAST_BYTES) as usize;
    let there = usize::try_from(offsets.end - offsets.start).unwrap_or(usize::MAX);
    let count = there.min(last.len().saturating_sub(place)).min(buffer.len());
    match (buffer.get_mut(..count), last.get(place..place + count)) {
        (Some(to), Some(from)) if count > 0 => {
            to.copy_from_slice(from);
            Read::Data(count)
        }
        _ => Read::Gap { to: offsets.end },
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests;

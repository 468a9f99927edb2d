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

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use api::exec::OutputMode;

use crate::spare;

/// What most execs write fits; a thousand idle ones cost nothing.
pub const MEMORY_BYTES: u64 = 64 * 1024;

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
    /// Bytes of the tail below this offset could not be stored.
    floor: u64,
    /// Bytes that the disk refused.
    unstored: u64,
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
    /// Mode `kill`, and that was too many.
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
        Self { mode, head, tail, written: 0, consumed: 0, floor: 0, unstored: 0, place, make_file }
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

    /// Bytes that can be read again.
    pub fn kept(&self) -> u64 {
        self.written - self.tail_start() + self.head_end()
    }

    /// How many more bytes fit before the process must wait. Endless in the modes in which it never does.
    pub fn room(&self) -> u64 {
        match self.mode {
            OutputMode::Block => self.tail - (self.written - self.consumed),
            OutputMode::Keep | OutputMode::Kill => u64::MAX,
        }
    }

    /// Takes bytes that the process has written.
    pub fn write(&mut self, bytes: &[u8]) -> Taken {
        match self.mode {
            OutputMode::Keep => {
                self.store(bytes);
                Taken::All
            }
            OutputMode::Block => {
                let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
                let taken = bytes.get(..room).unwrap_or(bytes);
                self.store(taken);
                if taken.len() == bytes.len() { Taken::All } else { Taken::Part(taken.len()) }
            }
            OutputMode::Kill => {
                let room = usize::try_from(self.head - self.written).unwrap_or(usize::MAX);
                let fits = bytes.get(..room).unwrap_or(bytes);
                self.store(fits);
                if fits.len() == bytes.len() { Taken::All } else { Taken::OverLimit }
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

    /// Lets go of everything kept.
    pub fn forget(&mut self) {
        if let Place::File(file) = std::mem::replace(&mut self.place, Place::Nowhere) {
            spare::give_back(file);
        }
        self.head = 0;
        self.floor = self.written;
    }

    fn head_end(&self) -> u64 {
        self.head.min(self.written)
    }

    fn tail_start(&self) -> u64 {
        let start = match self.mode {
            OutputMode::Block => self.consumed,
            OutputMode::Keep | OutputMode::Kill => self.written.saturating_sub(self.tail),
        };
        start.max(self.floor).max(self.head_end()).min(self.written)
    }

    /// Where in the memory or file an offset is.
    fn place_of(&self, offset: u64) -> u64 {
        if offset < self.head { offset } else { self.head + (offset - self.head) % self.tail.max(1) }
    }

    fn store(&mut self, mut bytes: &[u8]) {
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
            self.written += now.len() as u64;
            if stored.is_err() {
                self.lost(now.len() as u64);
            }
            bytes = later;
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
            let file = (self.make_file)()?;
            file.write_all_at(memory, 0)?;
            self.place = Place::File(file);
        }
        match &self.place {
            Place::File(file) => file.write_all_at(bytes, place),
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

impl Drop for Spool {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file() -> io::Result<File> {
        tempfile::tempfile()
    }

    fn full_disk() -> io::Result<File> {
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Everything a reader that starts at `offset` gets: bytes with their offsets, and the bytes reported as gaps.
    fn drain(spool: &Spool, mut offset: u64, step: usize) -> (Vec<(u64, u8)>, u64) {
        let (mut got, mut gaps) = (Vec::new(), 0);
        let mut buffer = vec![0; step];
        loop {
            match spool.read(offset, &mut buffer) {
                Read::Data(count) => {
                    got.extend(buffer[..count].iter().enumerate().map(|(i, b)| (offset + i as u64, *b)));
                    offset += count as u64;
                }
                Read::Gap { to } => {
                    assert!(to > offset);
                    gaps += to - offset;
                    offset = to;
                }
                Read::Nothing => return (got, gaps),
            }
        }
    }

    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(31) >> 3) as u8
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn keep_gives_head_and_tail_and_one_exact_gap(
            kept in 2u64..200_000, writes in prop::collection::vec(0usize..60_000, 0..12), step in 1usize..70_000,
        ) {
            let mut spool = Spool::new(OutputMode::Keep, kept, file);
            let mut total = 0;
            for count in writes {
                let bytes: Vec<u8> = (total..total + count as u64).map(byte).collect();
                prop_assert_eq!(spool.write(&bytes), Taken::All);
                total += count as u64;
            }
            let (got, gaps) = drain(&spool, 0, step);
            prop_assert_eq!(got.len() as u64 + gaps, total);
            prop_assert_eq!(gaps, total.saturating_sub(kept));
            prop_assert_eq!(gaps, spool.dropped());
            prop_assert!(got.iter().all(|(offset, value)| byte(*offset) == *value));
            let head = (kept / 2).min(total);
            prop_assert!((0..head).all(|offset| got[offset as usize].0 == offset));
        }

        #[test]
        fn block_gives_each_byte_once(kept in 1u64..100_000, total in 0u64..300_000, step in 1usize..50_000) {
            let mut spool = Spool::new(OutputMode::Block, kept, file);
            let (mut sent, mut seen) = (0u64, 0u64);
            let mut buffer = vec![0; step];
            while seen < total {
                let bytes: Vec<u8> = (sent..total.min(sent + 40_000)).map(byte).collect();
                match spool.write(&bytes) {
                    Taken::All => sent += bytes.len() as u64,
                    Taken::Part(count) => sent += count as u64,
                    Taken::OverLimit => prop_assert!(false),
                }
                if let Read::Data(count) = spool.read(seen, &mut buffer) {
                    for (index, value) in buffer[..count].iter().enumerate() {
                        prop_assert_eq!(*value, byte(seen + index as u64));
                    }
                    seen += count as u64;
                    spool.consume(seen);
                }
            }
            prop_assert_eq!(spool.written(), total);
            prop_assert_eq!(spool.dropped(), 0);
        }

        #[test]
        fn a_full_disk_loses_bytes_and_says_how_many(kept in 100_000u64..300_000, total in 0usize..900_000) {
            let mut spool = Spool::new(OutputMode::Keep, kept, full_disk);
            let bytes: Vec<u8> = (0..total as u64).map(byte).collect();
            for chunk in bytes.chunks(50_000) {
                prop_assert_eq!(spool.write(chunk), Taken::All);
            }
            let (got, gaps) = drain(&spool, 0, 10_000);
            prop_assert_eq!(got.len() as u64 + gaps, total as u64);
            prop_assert_eq!(gaps, spool.dropped());
            prop_assert!(got.iter().all(|(offset, value)| byte(*offset) == *value));
        }
    }

    #[test]
    fn kill_keeps_what_fits_and_then_says_no() {
        let mut spool = Spool::new(OutputMode::Kill, 5000, file);
        assert_eq!(spool.write(&[1; 5000]), Taken::All);
        assert_eq!(spool.write(&[2]), Taken::OverLimit);
        assert_eq!(drain(&spool, 0, 999).0.len(), 5000);
    }

    #[test]
    fn a_forgotten_spool_is_one_gap() {
        let mut spool = Spool::new(OutputMode::Keep, 5000, file);
        spool.write(b"hello");
        spool.forget();
        assert_eq!(drain(&spool, 0, 10), (vec![], 5));
    }
}

//! The storage of a spool: memory at first, then one unnamed file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::MEMORY_BYTES;
use crate::spare;

/// The stored bytes of a spool, by their position.
pub(super) struct SpoolStorage {
    place: StoragePlace,
    /// Size of the part of the file whose blocks are reserved (mode `block`).
    aside: u64,
    make_file: fn() -> io::Result<File>,
}

enum StoragePlace {
    Memory(Vec<u8>),
    File(File),
    /// The bytes were discarded: none of them can be read.
    Nowhere,
}

impl SpoolStorage {
    /// Creates an empty storage in memory. It calls `make_file` when the bytes no longer fit in memory.
    pub fn new(make_file: fn() -> io::Result<File>) -> Self {
        Self { place: StoragePlace::Memory(Vec::new()), aside: 0, make_file }
    }

    /// Returns true if the bytes are on disk.
    pub fn has_file(&self) -> bool {
        matches!(self.place, StoragePlace::File(_))
    }

    /// Returns the number of bytes from this position on that are certain to fit, or `None` if all bytes were
    /// discarded, so that none needs space.
    pub fn certain(&self, place: u64) -> Option<u64> {
        match &self.place {
            StoragePlace::Memory(_) => Some(MEMORY_BYTES.saturating_sub(place)),
            StoragePlace::File(_) => Some(self.aside.saturating_sub(place)),
            StoragePlace::Nowhere => None,
        }
    }

    /// Reserves disk blocks for `bytes` bytes at `place`. If the output is still in memory, moves it to a
    /// file first.
    pub fn set_aside(&mut self, place: u64, bytes: u64) -> io::Result<()> {
        relieved(|| {
            if let StoragePlace::Memory(memory) = &self.place {
                let file = (self.make_file)()?;
                file.write_all_at(memory, 0)?;
                // The bytes just written occupy blocks, even if the following reservation fails.
                self.aside = memory.len() as u64;
                self.place = StoragePlace::File(file);
            }
            match &self.place {
                StoragePlace::File(file) => allocate(file, place, bytes),
                StoragePlace::Memory(_) | StoragePlace::Nowhere => Err(io::ErrorKind::StorageFull.into()),
            }
        })?;
        self.aside = place + bytes;
        Ok(())
    }

    /// Writes bytes at a position. Moves all bytes to a file if they no longer fit in memory.
    pub fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        if let StoragePlace::Memory(memory) = &mut self.place {
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
            self.place = StoragePlace::File(file);
        }
        match &self.place {
            StoragePlace::File(file) => relieved(|| file.write_all_at(bytes, place)),
            StoragePlace::Memory(_) | StoragePlace::Nowhere => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Fills the buffer with the bytes at a position. Returns false if they cannot be read.
    pub fn read(&self, place: u64, buffer: &mut [u8]) -> bool {
        match &self.place {
            StoragePlace::Memory(bytes) => {
                let from = usize::try_from(place).unwrap_or(usize::MAX);
                bytes.get(from..from + buffer.len()).map(|stored| buffer.copy_from_slice(stored)).is_some()
            }
            StoragePlace::File(file) => file.read_exact_at(buffer, place).is_ok(),
            StoragePlace::Nowhere => false,
        }
    }

    /// Discards all bytes. None is stored from then on.
    pub fn discard(&mut self) {
        if let StoragePlace::File(file) = std::mem::replace(&mut self.place, StoragePlace::Nowhere) {
            spare::give_back(file);
        }
    }
}

/// Performs an operation. If it fails, discards the output of an ended exec and tries again, as long as there
/// is such output.
fn relieved<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(_) if spare::relieve() => {}
            done => return done,
        }
    }
}

/// Reserves blocks of a file with `fallocate`, or by writing zeros if that is not supported.
fn allocate(file: &File, place: u64, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), place, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.write_all_at(&vec![0; usize::try_from(bytes).unwrap_or(0)], place)
        }
        done => Ok(done?),
    }
}

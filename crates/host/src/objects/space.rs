//! The disk's free space, which uploads that run at the same time share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::admission;
use crate::error::Error;

/// The disk's free space, and the bytes that must stay free or are about to be used.
#[derive(Clone)]
pub(super) struct DiskSpace {
    pub root: PathBuf,
    pub reserve_bytes: u64,
    /// Number of bytes that are being written now.
    pub writing: Arc<AtomicU64>,
}

/// Bytes that count as being written until this value is dropped.
pub(super) struct WriteReservation<'a> {
    room: &'a DiskSpace,
    bytes: u64,
}

impl DiskSpace {
    /// Returns true if writing this many bytes leaves the reserve free.
    pub fn has(&self, bytes: u64) -> bool {
        let writing = self.writing.load(Ordering::Acquire);
        let needed = self.reserve_bytes.saturating_add(bytes).saturating_add(writing);
        admission::disk_free_bytes(&self.root) >= needed
    }

    /// Reserves space for bytes that are about to be written, in addition to the bytes of other pending
    /// writes.
    pub fn take(&self, bytes: u64) -> Result<WriteReservation<'_>, Error> {
        self.writing.fetch_add(bytes, Ordering::AcqRel);
        let writing = WriteReservation { room: self, bytes };
        if self.has(0) {
            return Ok(writing);
        }
        let (free, reserve) = (admission::disk_free_bytes(&self.root), self.reserve_bytes);
        let why = format!(
            "{free} bytes of disk space are free, and {reserve} bytes are reserved (disk_reserve_bytes)"
        );
        Err(Error::Runtime(runtime::Error::Capacity { what: "more stored data", why }))
    }
}

impl Drop for WriteReservation<'_> {
    fn drop(&mut self) {
        self.room.writing.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

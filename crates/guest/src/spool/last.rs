//! The last bytes of an output whose disk became full: a ring in memory (mode `keep`).

use std::ops::Range;

use super::SpoolRead;

/// Number of bytes at the end of the output that mode `keep` always retains: the last lines usually show the
/// result.
pub const LAST_BYTES: u64 = 32 * 1024;

/// The last bytes after an offset.
pub(super) struct LastBytes {
    /// Offset at which the disk became full.
    from: u64,
    ring: Vec<u8>,
}

impl LastBytes {
    /// Creates an empty ring for the bytes from this offset on.
    pub fn new(from: u64) -> Self {
        Self { from, ring: vec![0; LAST_BYTES as usize] }
    }

    /// Returns the offset of the first byte that the ring retains, if `written` bytes have been written.
    pub fn start(&self, written: u64) -> u64 {
        written.saturating_sub(LAST_BYTES).max(self.from)
    }

    /// Stores bytes of the output. The offset of the byte after them is `end`.
    pub fn write(&mut self, bytes: &[u8], end: u64) {
        let skipped = bytes.len().saturating_sub(LAST_BYTES as usize);
        let kept = bytes.get(skipped..).unwrap_or_default();
        let first = ((end - kept.len() as u64) % LAST_BYTES) as usize;
        let (now, later) = kept.split_at(kept.len().min(LAST_BYTES as usize - first));
        for (from, part) in [(first, now), (0, later)] {
            if let Some(to) = self.ring.get_mut(from..from + part.len()) {
                to.copy_from_slice(part);
            }
        }
    }

    /// Reads bytes at these offsets, up to the point where the ring wraps.
    pub fn read(&self, offsets: Range<u64>, buffer: &mut [u8]) -> SpoolRead {
        let place = (offsets.start % LAST_BYTES) as usize;
        let there = usize::try_from(offsets.end - offsets.start).unwrap_or(usize::MAX);
        let count = there.min(self.ring.len().saturating_sub(place)).min(buffer.len());
        match (buffer.get_mut(..count), self.ring.get(place..place + count)) {
            (Some(to), Some(from)) if count > 0 => {
                to.copy_from_slice(from);
                SpoolRead::Data(count)
            }
            _ => SpoolRead::Gap { to: offsets.end },
        }
    }
}

//! Validates and truncates the write-ahead log of the store.
//!
//! SQLite treats a log with an invalid header as empty, and reports no error. All changes since the last
//! checkpoint are then lost, and a key that was revoked since then becomes valid again. Two rules prevent
//! this (attack L-10):
//!
//! - When the store is opened, a log that has content but no valid header is refused.
//! - Data that must survive a power failure ([`super::Lasting::Machine`]: keys, projects, secrets) is moved
//!   into the store's file when it is written, and the log is truncated. A checkpoint without truncation is not
//!   enough: if the log is later damaged in the middle, SQLite reads it up to the damage, and its older pages
//!   would override the newer pages in the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::Ordering;

use super::{Error, Lasting, Store, Writer, beside, failed};

/// Length of the log's header in SQLite's file format.
const HEADER_BYTES: usize = 32;
/// Length of the part of the header that its checksum covers.
const SUMMED_BYTES: usize = 24;
/// First four bytes of the header. The lowest bit is the byte order of the checksum.
const MAGIC: u32 = 0x377f_0682;
/// Version of the log's format. It is the only version that exists.
const VERSION: u32 = 3_007_000;

impl Store {
    /// Moves all changes from the log into the store's file, and empties the log. Waits for readers only
    /// briefly. If they do not finish in time, nothing is lost: the log is already on disk, and
    /// [`Store::upkeep`] retries.
    pub(super) async fn checkpoint(&self, writer: &mut Writer) {
        if api::defence::is_off("L-10") {
            return;
        }
        let done: Result<(i64, i64, i64), _> =
            sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut **writer).await;
        if let Err(error) = &done {
            tracing::debug!(%error, "cannot empty the write-ahead log yet; will retry");
        }
        self.turns.unfolded.store(!matches!(done, Ok((0, ..))), Ordering::Release);
    }

    /// Empties the log if an earlier attempt failed.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub(super) async fn checkpoint_if_due(&self) -> Result<(), Error> {
        if !self.turns.unfolded.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut connection = self.connection(Lasting::Process, "empty its write-ahead log").await?;
        self.checkpoint(&mut connection).await;
        Ok(())
    }
}

/// Rejects a log that has content but no valid header, because SQLite would ignore its content.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let log = beside(path, "-wal");
    let mut header = Vec::new();
    match File::open(&log).and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut header)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("read its write-ahead log")(sqlx::Error::Io(error))),
    }
    if header.is_empty() || is_header(&header) || api::defence::is_off("L-10") {
        return Ok(());
    }
    Err(Error::Log { path: log.display().to_string() })
}

/// Returns true if these bytes are the header of a log.
fn is_header(bytes: &[u8]) -> bool {
    let Some((summed, sums)) = bytes.split_at_checked(SUMMED_BYTES) else { return false };
    let big = |bytes: &[u8]| -> Vec<u32> {
        bytes.as_chunks().0.iter().map(|word: &[u8; 4]| u32::from_be_bytes(*word)).collect()
    };
    let (words, sums) = (big(summed), big(sums));
    let [magic, version, ..] = *words.as_slice() else { return false };
    if magic & !1 != MAGIC || version != VERSION {
        return false;
    }
    let (mut first, mut second) = (0_u32, 0_u32);
    for pair in words.as_chunks::<2>().0 {
        let [one, other] = pair.map(|word| if magic & 1 == 1 { word } else { word.swap_bytes() });
        first = first.wrapping_add(one).wrapping_add(second);
        second = second.wrapping_add(other).wrapping_add(first);
    }
    sums == [first, second]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::{Place, sandbox};
    use super::*;

    #[tokio::test]
    async fn a_log_is_refused_when_any_bit_of_its_header_is_wrong() {
        // Attack L-10: the header of the log is damaged.
        let place = Place::new().await;
        place.ask(&sandbox("s1")).await.unwrap();
        let log = beside(&place.path, "-wal");
        let good = fs::read(&log).unwrap();
        assert!(good.len() > HEADER_BYTES && is_header(&good[..HEADER_BYTES]));
        check(&place.path).unwrap();
        let copy = place.path.with_file_name("copy.db");
        for byte in 0..HEADER_BYTES {
            let mut bad = good.clone();
            bad[byte] ^= 0x10;
            fs::write(beside(&copy, "-wal"), &bad).unwrap();
            assert!(matches!(check(&copy), Err(Error::Log { .. })), "byte {byte}");
        }
        fs::write(beside(&copy, "-wal"), &good[..HEADER_BYTES - 1]).unwrap();
        assert!(matches!(check(&copy), Err(Error::Log { .. })), "cut");
        fs::write(beside(&copy, "-wal"), b"").unwrap();
        check(&copy).unwrap();
    }

    #[tokio::test]
    async fn what_must_outlive_the_machine_is_never_only_in_the_log() {
        // Attack L-10: the log is damaged, so that a revoked key becomes valid again.
        let place = Place::new().await;
        place.ask(&sandbox("s1")).await.unwrap();
        let log = beside(&place.path, "-wal");
        assert!(fs::metadata(&log).unwrap().len() > 0, "the control: a sandbox is only in the log");
        place.store.put_project("q", &api::account::Quota::default(), 1).await.unwrap();
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
        place.store.put_secret("q", "KEY", b"sealed", 1).await.unwrap();
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
    }
}

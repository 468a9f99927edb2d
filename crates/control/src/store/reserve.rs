//! Disk space reserved beside the store, so that a key can be revoked even if the disk is full (attack L-11).
//!
//! ```text
//! <store>.ballast   blocks that are released to the file system, so that the store can be written again
//! <store>.revoked   the slate: revocations not yet in the store; overwritten in place, which needs no free block
//! ```
//!
//! A revoked key is refused at once, regardless of the disk, because pending revocations are also kept in
//! memory. Revocations on the slate survive a restart. They are moved into the store as soon as the store can
//! be written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::{Error, Store, beside};
use crate::audit::hex;

/// Size of the ballast. This is enough for a write-ahead log with the pages of a hundred revocations, and for
/// the checkpoint of that log, which writes the same pages again.
const BALLAST_BYTES: usize = 512 << 10;
/// Minimum free disk space for recreating the ballast. If less is free, the ballast would only take space
/// that an administrator has just freed.
const BALLAST_BELOW_BYTES: u64 = 64 << 20;
/// Length of one revocation on the slate: a key ID, a time, a checksum, and padding with spaces.
const LINE_BYTES: usize = 128;
/// Maximum number of revocations on the slate. It determines the size of the slate, which is 64 KiB.
const LINES_MAX: usize = 512;
/// Maximum length of a key ID that fits on a line of the slate. Valid key IDs are shorter.
const KEY_BYTES_MAX: usize = 64;
/// Number of digits of a line's checksum.
const SUM_DIGITS: usize = 16;

/// The ballast, the slate, and the pending revocations.
#[derive(Debug)]
pub(super) struct Reserve {
    ballast: PathBuf,
    slate: PathBuf,
    pending: Mutex<Vec<Revocation>>,
}

/// A revocation that is not in the store yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Revocation {
    key: String,
    at_ms: u64,
}

impl Reserve {
    /// Reads the slate, and reserves any disk space that is missing. If the disk is already full, only logs a
    /// warning.
    pub fn open(store: &Path) -> Self {
        let (ballast, slate) = (beside(store, ".ballast"), beside(store, ".revoked"));
        let lines = fs::read(&slate).unwrap_or_default();
        let mut pending = Vec::new();
        for line in lines.chunks(LINE_BYTES).filter(|line| line.iter().any(|byte| *byte != 0)) {
            match Revocation::parse(line) {
                Some(revocation) => pending.push(revocation),
                None => tracing::error!("cannot parse a pending revocation of a key: check {slate:?}"),
            }
        }
        if lines.len() < LINES_MAX * LINE_BYTES
            && let Err(error) = set_aside(&slate, &slate_of(&pending))
        {
            tracing::warn!(%error, "cannot reserve disk space for revocations of keys");
        }
        let reserve = Self { ballast, slate, pending: Mutex::new(pending) };
        reserve.restore();
        reserve
    }

    /// Returns true if the key has been revoked and the revocation is not in the store yet.
    pub fn refuses(&self, key: &str) -> bool {
        self.pending().iter().any(|one| one.key == key)
    }

    /// Adds a key to the pending revocations in memory. The server refuses the key from now on.
    fn refuse(&self, key: &str, at_ms: u64) {
        let mut pending = self.pending();
        if pending.iter().all(|one| one.key != key) {
            pending.push(Revocation { key: key.to_owned(), at_ms });
        }
    }

    /// Writes all pending revocations to the slate, in place.
    fn note(&self) -> io::Result<()> {
        let pending = self.pending();
        if pending.len() > LINES_MAX {
            return Err(io::Error::other(format!(
                "{LINES_MAX} revocations are already pending, the maximum"
            )));
        }
        let file = OpenOptions::new().write(true).open(&self.slate)?;
        file.write_all_at(&slate_of(&pending), 0)?;
        file.sync_data()
    }

    /// Removes a revocation that is now in the store.
    fn written(&self, key: &str) {
        self.pending().retain(|one| one.key != key);
        if let Err(error) = self.note() {
            // The revocation stays on the slate. After a restart, the server revokes the key again, which
            // changes nothing.
            tracing::warn!(%error, "cannot remove a saved revocation from the pending revocations");
        }
    }

    /// Releases the ballast to the file system. Returns false if there is no ballast.
    fn release(&self) -> bool {
        fs::remove_file(&self.ballast).is_ok()
    }

    /// Recreates the ballast if enough space is free.
    fn restore(&self) {
        let directory = self.ballast.parent().unwrap_or(Path::new("."));
        if self.ballast.exists() || node::admission::disk_free_bytes(directory) < BALLAST_BELOW_BYTES {
            return;
        }
        if let Err(error) = set_aside(&self.ballast, &vec![0; BALLAST_BYTES]) {
            tracing::warn!(%error, "cannot create the reserve of disk space that is released when the disk is full");
        }
    }

    fn pending(&self) -> MutexGuard<'_, Vec<Revocation>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Revocation {
    fn line(&self) -> String {
        let Self { key, at_ms } = self;
        format!("{key} {at_ms} {}", sum(key, *at_ms))
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.trim_end_matches('\0').split_whitespace();
        let (key, at_ms, found) = (words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?);
        (found == sum(&key, at_ms)).then_some(Self { key, at_ms })
    }
}

impl Store {
    /// Revokes a key after the store has failed to do so. The server refuses the key at once. It then
    /// releases the ballast and writes the revocation to the store or, if that fails too, to the slate.
    pub(super) async fn revoke_anyway(&self, id: &str, now_ms: u64) -> Result<bool, Error> {
        // If the lookup fails as well, assume that the key exists.
        if id.len() > KEY_BYTES_MAX || matches!(self.has_key(id).await, Ok(false)) {
            return Ok(false);
        }
        self.reserve.refuse(id, now_ms);
        if self.reserve.release() && self.write_revocation(id, now_ms).await.is_ok() {
            self.reserve.written(id);
            return Ok(true);
        }
        match self.reserve.note() {
            Ok(()) => Ok(true),
            Err(source) => Err(Error::NotLasting { key: id.to_owned(), source }),
        }
    }

    /// Moves pending revocations from the slate into the store, and stops at the first failure. Recreates the
    /// ballast after all of them have been moved.
    pub(super) async fn write_revocations(&self) -> Result<(), Error> {
        let pending = self.reserve.pending().clone();
        for Revocation { key, at_ms } in &pending {
            self.write_revocation(key, *at_ms).await?;
            self.reserve.written(key);
        }
        self.reserve.restore();
        Ok(())
    }
}

/// Creates a file and allocates its blocks by writing these bytes. Leaves no file behind on failure.
fn set_aside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

fn slate_of(pending: &[Revocation]) -> Vec<u8> {
    let mut text = Vec::with_capacity(LINES_MAX * LINE_BYTES);
    for revocation in pending {
        let mut line = revocation.line().into_bytes();
        line.resize(LINE_BYTES - 1, b' ');
        line.push(b'\n');
        text.extend(line);
    }
    text.resize(LINES_MAX * LINE_BYTES, 0);
    text
}

fn sum(key: &str, at_ms: u64) -> String {
    let mut digits = hex(&Sha256::digest(format!("{key} {at_ms}")));
    digits.truncate(SUM_DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slate_holds_over_a_restart_and_a_damaged_line_harms_no_other() {
        // Attack L-11: the disk is full, so that keys cannot be revoked in the store.
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("bellglass.db");
        let reserve = Reserve::open(&store);
        assert_eq!(fs::metadata(&reserve.slate).unwrap().len(), (LINES_MAX * LINE_BYTES) as u64);
        assert_eq!(fs::metadata(&reserve.ballast).unwrap().len(), BALLAST_BYTES as u64);
        for key in ["k1", "k2", "k3"] {
            reserve.refuse(key, 7);
        }
        reserve.note().unwrap();
        let again = Reserve::open(&store);
        assert!(["k1", "k2", "k3"].iter().all(|key| again.refuses(key)));
        again.written("k1");
        let slate = OpenOptions::new().write(true).open(&again.slate).unwrap();
        slate.write_all_at(b"garbage", 0).unwrap();
        let last = Reserve::open(&store);
        assert!(!last.refuses("k1") && !last.refuses("k2") && last.refuses("k3"));
        assert!(last.release() && !last.release());
        last.restore();
        assert!(last.release());
    }
}

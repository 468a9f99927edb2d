//! The guest's executable, which is embedded in the server's executable.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest"));

/// Installs the guest in the data directory, unless it is already there, and returns its path. The
/// directory's name contains the guest's hash. The file's own name does not, because sandboxes can see that
/// name in their mount tables.
///
/// # Errors
/// Returns an error if a file system operation fails.
pub fn install(data: &Path) -> io::Result<PathBuf> {
    let hash: String = Sha256::digest(GUEST).iter().map(|byte| format!("{byte:02x}")).collect();
    let directory = data.join("guest").join(format!("sha256-{hash}"));
    let path = directory.join("guest");
    if fs::metadata(&path).is_ok_and(|file| file.len() == GUEST.len() as u64) {
        return Ok(path);
    }
    fs::create_dir_all(&directory)?;
    // Atomic replacement: running sandboxes keep the file that they were started from.
    let fresh = directory.with_file_name(format!("new-{}", std::process::id()));
    fs::write(&fresh, GUEST)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o555))?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

//! The guest's executable, carried inside this one.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest"));

/// Puts the guest into the data directory, unless it is there, and says where: in a directory of its hash, under a name that a
/// sandbox may see in its table of mounts.
///
/// # Errors
/// What the file system said.
pub fn install(data: &Path) -> io::Result<PathBuf> {
    let hash: String = Sha256::digest(GUEST).iter().map(|byte| format!("{byte:02x}")).collect();
    let directory = data.join("guest").join(format!("sha256-{hash}"));
    let path = directory.join("guest");
    if fs::metadata(&path).is_ok_and(|file| file.len() == GUEST.len() as u64) {
        return Ok(path);
    }
    fs::create_dir_all(&directory)?;
    // Sandboxes that run keep the file they were started from; a new one takes its place in one step.
    let fresh = directory.with_file_name(format!("new-{}", std::process::id()));
    fs::write(&fresh, GUEST)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o555))?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

//! A small separate file system for a server, which can be filled up to its last block or inode.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FallocateFlags;
use tempfile::TempDir;

/// Size of the file system. A runtime keeps the last GiB of a disk free, so a smaller size would not work.
const BYTES: u64 = 2 << 30;
/// Number of inodes: enough for a server and a few sandboxes, but few enough to be exhausted quickly.
const INODES: u64 = 8192;

/// A file system on a loop device, which is unmounted when this value is dropped.
pub(crate) struct Disk {
    mounted: PathBuf,
    _place: TempDir,
}

/// Files that fill a disk. They are removed when this value is dropped.
pub(crate) struct Filling(PathBuf);

impl Disk {
    pub(crate) fn new() -> Self {
        let place = tempfile::Builder::new().prefix("bellglass-disk").tempdir().unwrap();
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o711)).unwrap();
        let (image, mounted) = (place.path().join("image"), place.path().join("disk"));
        File::create(&image).unwrap().set_len(BYTES).unwrap();
        std::fs::create_dir(&mounted).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", &INODES.to_string()]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted));
        Self { mounted, _place: place }
    }

    /// Creates a data directory on this disk.
    pub(crate) fn data(&self) -> TempDir {
        tempfile::Builder::new().prefix("bellglass-serve").tempdir_in(&self.mounted).unwrap()
    }

    /// Allocates every free block.
    pub(crate) fn fill(&self, name: &str) -> Filling {
        let path = self.mounted.join(name);
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let (mut end, mut chunk) = (0, 1 << 30);
        while chunk >= 1024 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), end, chunk) {
                Ok(()) => end += chunk,
                Err(_) => chunk /= 2,
            }
        }
        Filling(path)
    }

    /// Creates files until no free inode is left.
    pub(crate) fn use_up_inodes(&self) -> Filling {
        let path = self.mounted.join("inodes");
        std::fs::create_dir(&path).unwrap();
        let made =
            (0..=INODES).take_while(|number| File::create(path.join(number.to_string())).is_ok()).count();
        assert!(made > 1000 && made < usize::try_from(INODES).unwrap(), "{made} files");
        Filling(path)
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir_all(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mounted).status();
    }
}

/// Returns the total size of all files below a directory.
pub(crate) fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

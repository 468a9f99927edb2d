//! The file system of a sandbox behind walls: the workspace's root, mounted read-only, plus the writable
//! disks and the files that every sandbox has.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use api::walls::Walls;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_move,
    mount_remount, unmount,
};

use super::{Failed, step};
use crate::syscall::done;

/// Directory for the socket of process 1 and for retained output. It is also visible outside the walls.
const SPOOL: &str = "/.bellglass/spool";
/// Directory in which `/dev` is assembled.
const DEVICES: &str = "/.bellglass/dev";
/// Directory with the content of the files that every sandbox has.
const FILES: &str = "/.bellglass/files";
/// Devices that programs expect. None gives access to the machine.
const NODES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
/// Mount flags that disable set-user-ID programs and devices.
const TAME: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Mounts a separate disk for the spool, in the workspace's mount namespace.
pub fn spool(options: &str) -> Result<(), Failed> {
    step("create the spool", fs::create_dir_all(SPOOL))?;
    memory(SPOOL, options, TAME | MountFlags::NOEXEC)
}

/// Makes all mounts private, so that later mounts are not visible outside.
pub fn keep_to_ourselves() -> Result<(), Failed> {
    let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("make mounts private", mount_change("/", alone).map_err(Into::into))
}

/// Remounts a path writable for this process, if the workspace mounted it read-only.
pub fn make_writable(path: &Path) -> Result<(), Failed> {
    let flags = MountFlags::BIND | TAME | MountFlags::NOEXEC;
    step(&format!("make {} writable", path.display()), mount_remount(path, flags, "").map_err(Into::into))
}

/// Sets up all mounts, in this process's own mount namespace.
pub fn put_up(walls: &Walls) -> Result<(), Failed> {
    make_places(walls)?;
    gather_devices()?;
    // These mounts belong to the machine. Moreover, files in them that are open for writing would prevent
    // making the root read-only.
    for path in ["/dev", "/sys"] {
        step(&format!("unmount {path}"), unmount(path, UnmountFlags::DETACH).map_err(Into::into))?;
    }
    step("make the root read-only", read_only_below("/"))?;
    step("mount the spool", mount_bind(SPOOL, SPOOL).map_err(Into::into))?;
    again(SPOOL, TAME | MountFlags::NOEXEC)?;
    kernel()?;
    devices(walls)?;
    for (path, options) in &walls.disks {
        if path == "/dev/shm" {
            continue;
        }
        memory(path, options, TAME)?;
    }
    for path in walls.files.keys() {
        step(&format!("mount {path}"), mount_bind(kept(path), path).map_err(Into::into))?;
        again(path, TAME | MountFlags::NOEXEC | MountFlags::RDONLY)?;
    }
    for path in walls.read_only.iter().filter(|path| Path::new(path).exists()) {
        step(&format!("mount {path}"), mount_bind(path.as_str(), path.as_str()).map_err(Into::into))?;
        again(path, TAME | MountFlags::NOEXEC | MountFlags::RDONLY)?;
    }
    walls.masked.iter().try_for_each(|path| mask(path))
}

/// Creates the mount points while the root is still writable.
fn make_places(walls: &Walls) -> Result<(), Failed> {
    let places = walls.disks.keys().map(String::as_str).filter(|path| !path.starts_with("/dev/"));
    for path in places.chain([DEVICES, FILES]) {
        step(&format!("create {path}"), fs::create_dir_all(path))?;
    }
    for (path, content) in &walls.files {
        step(&format!("write {path}"), fs::write(kept(path), content))?;
        let there = fs::File::options().append(true).create(true).open(path);
        step(&format!("create {path}"), there)?;
    }
    Ok(())
}

/// Returns the path of the stored content for the file at `path`.
fn kept(path: &str) -> String {
    format!("{FILES}/{}", path.trim_start_matches('/').replace('/', "-"))
}

/// Replaces the workspace's `/proc` and `/sys` with those of the sandbox's own namespaces.
fn kernel() -> Result<(), Failed> {
    let flags = TAME | MountFlags::NOEXEC;
    step("mount /proc", mount("proc", "/proc", "proc", flags, None::<&std::ffi::CStr>).map_err(Into::into))?;
    let read_only = flags | MountFlags::RDONLY;
    step(
        "mount /sys",
        mount("sysfs", "/sys", "sysfs", read_only, None::<&std::ffi::CStr>).map_err(Into::into),
    )
}

/// Assembles a `/dev` that contains only the devices that programs expect. The workspace's own `/dev` may
/// contain all devices of the machine.
fn gather_devices() -> Result<(), Failed> {
    memory(DEVICES, "mode=755,size=64k", MountFlags::NOSUID | MountFlags::NOEXEC)?;
    for name in NODES {
        let path = format!("{DEVICES}/{name}");
        step(&format!("create {path}"), fs::write(&path, ""))?;
        step(
            &format!("mount {path}"),
            mount_bind(format!("/dev/{name}"), path.as_str()).map_err(Into::into),
        )?;
    }
    for (target, name) in LINKS {
        step(&format!("link {name}"), symlink(target, format!("{DEVICES}/{name}")))?;
    }
    for name in ["pts", "shm"] {
        step(&format!("create {name}"), fs::create_dir(format!("{DEVICES}/{name}")))?;
    }
    Ok(())
}

/// Moves the assembled devices to `/dev`, and mounts terminals and shared memory in it.
fn devices(walls: &Walls) -> Result<(), Failed> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    step("move /dev", mount_move(DEVICES, "/dev").map_err(Into::into))?;
    again("/dev", flags)?;
    for name in NODES {
        again(&format!("/dev/{name}"), flags)?;
    }
    let options = format!("newinstance,ptmxmode=0666,mode=0620,gid=5,max={}", walls.terminals);
    let options =
        step("build the mount options of /dev/pts", CString::new(options).map_err(io::Error::from))?;
    let terminals = mount("devpts", "/dev/pts", "devpts", flags, Some(options.as_c_str()));
    step("mount /dev/pts", terminals.map_err(Into::into))?;
    match walls.disks.get("/dev/shm") {
        Some(options) => memory("/dev/shm", options, TAME | MountFlags::NOEXEC),
        None => Ok(()),
    }
}

/// Mounts an in-memory disk.
fn memory(path: &str, options: &str, flags: MountFlags) -> Result<(), Failed> {
    let options = step("build the mount options of a disk", CString::new(options).map_err(io::Error::from))?;
    let mounted = mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str()));
    step(&format!("mount {path}"), mounted.map_err(Into::into))
}

/// Changes the mount flags of a bind mount.
fn again(path: &str, flags: MountFlags) -> Result<(), Failed> {
    let changed = mount_remount(path, MountFlags::BIND | flags, "");
    step(&format!("restrict {path}"), changed.map_err(Into::into))
}

/// Hides a file by mounting `/dev/null` over it, and a directory by mounting an empty one over it.
fn mask(path: &str) -> Result<(), Failed> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            memory(path, "size=4k,nr_inodes=2,mode=0755", TAME | MountFlags::NOEXEC | MountFlags::RDONLY)
        }
        // Skip a symlink: the list of masked paths also contains its target.
        Ok(found) if found.is_symlink() => Ok(()),
        Ok(_) => step(&format!("mask {path}"), mount_bind("/dev/null", path).map_err(Into::into)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cannot inspect {path}: {error}")),
    }
}

/// Makes all mounts at and below a path read-only, nosuid and nodev, including those of the workspace.
fn read_only_below(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    // Layout of `struct mount_attr`: flags to set, flags to clear, propagation, user namespace.
    let tame = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let attributes: [u64; 4] = [tame, 0, 0, 0];
    // SAFETY: The pointers refer to a NUL-terminated string and to a structure of the given size, which
    // outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    done(result as libc::c_int)
}

//! Reports changes to files while a caller listens.
//!
//! The kernel's queue is emptied even if the caller does not read. This process stores pending events, each
//! only once. When its storage is full, a single overflow event replaces all further events. A burst of
//! changes therefore uses bounded memory, and never blocks the program that causes it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use api::Error;
use api::files::{Change, DEPTH_MAX, FileAnswer, FileEvent, FileKind, FilePath, shown};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, CWD, Dir};
use rustix::io::Errno;
use rustix::stdio::stdout;

use super::failure::failed;
use super::parts;
use super::place::{FileLocation, is_temporary, join, kind};
use super::worker::unheard;

/// Maximum number of events that have not been sent yet.
const PENDING_MAX: usize = 4096;
/// Maximum number of watched directories. The kernel's own limit per user is often 8192.
const DIRECTORIES_MAX: usize = 4096;
/// Size of the buffer for the kernel's events.
const BUFFER_BYTES: usize = 64 * 1024;

/// Events that the kernel reports for a watched directory.
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::DONT_FOLLOW);

/// The watches of one request, and its pending events.
struct Watcher {
    kernel: OwnedFd,
    deep: bool,
    /// Watched path for each watch number of the kernel.
    watched: HashMap<i32, Vec<u8>>,
    pending: VecDeque<FileEvent>,
    known: HashSet<FileEvent>,
    overflowed: bool,
}

/// Reports changes to a path from now on, until the caller disconnects.
pub fn tell(path: &FilePath, deep: bool) -> Result<(), Error> {
    let place = FileLocation::find(path)?;
    let stat = place.stat().map_err(|errno| failed("watch", &place.path, errno))?;
    let kernel = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
        .map_err(|errno| failed("watch", &place.path, errno))?;
    let mut watcher = Watcher {
        kernel,
        deep: deep && kind(&stat) == FileKind::Directory,
        watched: HashMap::new(),
        pending: VecDeque::new(),
        known: HashSet::new(),
        overflowed: false,
    };
    watcher.add(&place.path).map_err(|errno| failed("watch", &place.path, errno))?;
    if watcher.deep {
        watcher.below(&place.path, 0, false);
    }
    parts::head(&FileAnswer::Streams).map_err(unheard)?;
    watcher.run().map_err(|errno| failed("watch", &place.path, errno))
}

impl Watcher {
    fn run(&mut self) -> Result<(), Errno> {
        loop {
            let wants = if self.pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            let (told, happened) = {
                let output = stdout();
                let mut waits = [PollFd::new(&output, wants), PollFd::new(&self.kernel, PollFlags::IN)];
                match poll(&mut waits, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
                let [output, kernel] = &waits;
                (output.revents(), kernel.revents())
            };
            if told.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return Ok(());
            }
            if happened.contains(PollFlags::IN) {
                self.take()?;
            }
            // A writable pipe accepts at least a page. Most events are smaller than a page; writing a larger
            // event can block.
            if told.contains(PollFlags::OUT)
                && let Some(event) = self.pending.pop_front()
            {
                self.known.remove(&event);
                self.overflowed &= event.event != Change::Overflow;
                let Ok(json) = serde_json::to_vec(&event) else { continue };
                if parts::data(&json).is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Reads all events that the kernel has queued.
    fn take(&mut self) -> Result<(), Errno> {
        let mut seen = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.kernel, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().to_vec());
                    seen.push((event.wd(), event.events(), name));
                    if reader.is_buffer_empty() {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        for (watch, what, name) in seen {
            self.heed(watch, what, name.as_deref());
        }
        Ok(())
    }

    fn heed(&mut self, watch: i32, what: ReadFlags, name: Option<&[u8]>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.overflow();
        }
        if what.contains(ReadFlags::IGNORED) {
            self.watched.remove(&watch);
            return;
        }
        let Some(directory) = self.watched.get(&watch) else { return };
        // Replacing a file creates a temporary file and renames it. Only the rename is reported, as the
        // creation of the target file.
        if name.is_some_and(is_temporary) {
            return;
        }
        let path = name.map_or_else(|| directory.clone(), |name| join(directory, name));
        if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.push(Change::Created, &path);
            if self.deep && what.contains(ReadFlags::ISDIR) && self.add(&path).is_ok() {
                // Report files that were created in the directory before it was watched.
                self.below(&path, 0, true);
            }
        } else if what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::DELETE_SELF) {
            self.push(Change::Removed, &path);
        } else if what.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE | ReadFlags::ATTRIB) {
            self.push(Change::Modified, &path);
        }
    }

    /// Watches the directories below a path. If `tell` is set, also reports all entries below it as created.
    fn below(&mut self, path: &[u8], depth: u32, tell: bool) {
        let flags = super::place::DIRECTORY.difference(rustix::fs::OFlags::PATH) | rustix::fs::OFlags::RDONLY;
        let Ok(directory) = rustix::fs::openat(CWD, path, flags, rustix::fs::Mode::empty()) else { return };
        let Ok(entries) = Dir::read_from(&directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let inner = join(path, name);
            if tell {
                self.push(Change::Created, &inner);
            }
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| kind(&stat) == FileKind::Directory) && depth < DEPTH_MAX {
                match self.add(&inner) {
                    Ok(()) => self.below(&inner, depth + 1, tell),
                    // The directory was removed before it could be watched.
                    Err(Errno::NOENT) => {}
                    Err(_) => self.overflow(),
                }
            }
        }
    }

    fn add(&mut self, path: &[u8]) -> Result<(), Errno> {
        if self.watched.len() >= DIRECTORIES_MAX {
            return Err(Errno::NOSPC);
        }
        let watch = inotify::add_watch(&self.kernel, path, WANTED)?;
        self.watched.insert(watch, path.to_vec());
        Ok(())
    }

    fn push(&mut self, event: Change, path: &[u8]) {
        if self.pending.len() >= PENDING_MAX && !api::defence::is_off("P-16") {
            return self.overflow();
        }
        let (path, path_encoded) = shown(path);
        let event = FileEvent { event, path: Some(path), path_encoded };
        if self.known.insert(event.clone()) {
            self.pending.push_back(event);
        }
    }

    /// Queues an event that reports missed events, unless one is already queued.
    fn overflow(&mut self) {
        if !self.overflowed {
            self.overflowed = true;
            self.pending.push_back(FileEvent { event: Change::Overflow, path: None, path_encoded: None });
        }
    }
}

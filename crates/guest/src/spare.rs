//! Spare files for spools, the output buffers of execs.
//!
//! The sandbox's disk reserves blocks for the guest, but no inodes, and user code can use up all inodes. So
//! some files are created before any user code runs, and files of finished execs are emptied and reused.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;

/// Number of spare files: two for one exec that floods both streams while user code holds every inode, and
/// two for another exec.
const MADE_AHEAD: usize = 4;
/// Mount point of the disk that only the guest may use.
const DIRECTORY: &str = "/.bellglass/spool";

/// Callback that frees space on the disk. It returns true if it freed any.
type Relief = Rc<dyn Fn() -> bool>;

thread_local! {
    static RELIEF: RefCell<Option<Relief>> = const { RefCell::new(None) };
    static SPARE: RefCell<Vec<File>> = const { RefCell::new(Vec::new()) };
}

/// Creates the spare files. Called before any user code runs.
pub fn make_ahead() {
    SPARE.with_borrow_mut(|spare| spare.extend((0..MADE_AHEAD).map_while(|_| make().ok())));
}

/// Sets the callback that frees space when the disk is full.
pub fn relieve_by(relief: impl Fn() -> bool + 'static) {
    RELIEF.set(Some(Rc::new(relief)));
}

/// Frees space on the disk if possible. Returns true if it freed any.
pub fn relieve() -> bool {
    let relief = RELIEF.with_borrow(Clone::clone);
    relief.is_some_and(|relief| relief())
}

/// Returns an empty unnamed file, which can use the blocks that are reserved for the guest.
pub fn take() -> io::Result<File> {
    SPARE.with_borrow_mut(Vec::pop).map_or_else(make, Ok)
}

/// Empties a file that is no longer needed. Keeps it as a spare file, unless there are enough.
pub fn give_back(file: File) {
    let keep = |spare: &mut Vec<File>| {
        if spare.len() < MADE_AHEAD && file.set_len(0).is_ok() {
            spare.push(file);
        }
    };
    // This fails only during process exit, when the thread-local is already destroyed.
    let _ = SPARE.try_with(|spare| keep(&mut spare.borrow_mut()));
}

fn make() -> io::Result<File> {
    let path = format!("{DIRECTORY}/next");
    // The file must not be readable by other users: under gVisor, any process can reach the guest's
    // descriptors through `/proc`, and only the file's mode denies access.
    let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

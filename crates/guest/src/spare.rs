//! Spare files for spools.
//!
//! The sandbox's disk reserves blocks for the guest, but no inodes: user code can take them all. So some files are
//! made before user code exists, and a file that an exec is done with is emptied and used again.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;

/// The two streams of one flood while user code holds every inode, and one exec more.
const MADE_AHEAD: usize = 4;
/// Where the sandbox's disk is bound for the guest alone.
const DIRECTORY: &str = "/.bellglass/spool";

/// Frees some room on the disk; says whether it did.
type Relief = Rc<dyn Fn() -> bool>;

thread_local! {
    static RELIEF: RefCell<Option<Relief>> = const { RefCell::new(None) };
    static SPARE: RefCell<Vec<File>> = const { RefCell::new(Vec::new()) };
}

/// Makes some files ahead. Called before user code exists.
pub fn make_ahead() {
    SPARE.with_borrow_mut(|spare| spare.extend((0..MADE_AHEAD).map_while(|_| make().ok())));
}

/// Says how room is freed on the disk when it is full.
pub fn relieve_by(relief: impl Fn() -> bool + 'static) {
    RELIEF.set(Some(Rc::new(relief)));
}

/// Frees some room on the disk, if that can be done; says whether it was.
pub fn relieve() -> bool {
    let relief = RELIEF.with_borrow(Clone::clone);
    relief.is_some_and(|relief| relief())
}

/// An empty file without a name, in the blocks that user code cannot fill.
pub fn take() -> io::Result<File> {
    SPARE.with_borrow_mut(Vec::pop).map_or_else(make, Ok)
}

/// Takes back a file that is not needed any more.
pub fn give_back(file: File) {
    let keep = |spare: &mut Vec<File>| {
        if spare.len() < MADE_AHEAD && file.set_len(0).is_ok() {
            spare.push(file);
        }
    };
    // At the very end of the process there is nothing to give back to.
    let _ = SPARE.try_with(|spare| keep(&mut spare.borrow_mut()));
}

fn make() -> io::Result<File> {
    let path = format!("{DIRECTORY}/next");
    // For nobody else: under gVisor any process can name our descriptors, and only the file's mode stops it.
    let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

//! The process that serves one file request: `guest files`. It has only the rights of the user that code runs
//! as.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use api::files::{FileAnswer, FileAsk};
use api::{Error, Ran};

use super::content::HashRequest;
use super::digest::Digest;
use super::parts::{self, PartReader};
use super::place::FileLocation;
use super::{archive, content, list, tree, watch};

/// True if the request has changed something that stays changed even if the request fails. A static suffices,
/// because this process serves only one request.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Records that the request has changed something. Later errors report this.
pub fn changed() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// Records that all changes of the request were undone.
pub fn undone() {
    CHANGED.store(false, Ordering::Relaxed);
}

/// Reads one request from standard input and answers it on standard output.
pub fn run() -> ExitCode {
    // Prevent other processes of this user from inspecting this one. A failure is harmless, because this
    // process has no rights that they lack.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let answered = match parts::ask().and_then(answer) {
        Ok(Some(answer)) => parts::head(&answer),
        // The operation has already written its answer, because the answer contains data.
        Ok(None) => Ok(()),
        Err(error) if CHANGED.load(Ordering::Relaxed) => {
            parts::head(&FileAnswer::Refused { error: Error { ran: Ran::Yes, ..error } })
        }
        Err(error) => parts::head(&FileAnswer::Refused { error }),
    };
    // A failed write means that the reader is gone, so only the exit code can report the failure.
    if answered.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn answer(ask: FileAsk) -> Result<Option<FileAnswer>, Error> {
    let done = |count: u64| Some(FileAnswer::Done { count });
    Ok(match ask {
        FileAsk::Stat { path } => Some(FileAnswer::Info { info: FileLocation::find(&path)?.info()? }),
        FileAsk::List { path, depth, after, limit } => Some(list::page(&path, depth, after, limit)?),
        FileAsk::Read { path, from, to, version, digest } => {
            content::read(&path, from, to, version.as_deref(), Digest::new(digest))?;
            None
        }
        FileAsk::Write { path, offset, mode, sha256, digest } => {
            let (wanted, sent) = (HashRequest { sha256, digest }, &mut PartReader::default());
            Some(match offset {
                Some(offset) => content::write_on(&path, offset, &wanted, sent)?,
                None => content::replace(&path, mode, &wanted, sent)?,
            })
        }
        FileAsk::Hash { path, digest } => Some(content::hash(&path, digest)?),
        FileAsk::Make { path } => done(tree::make(path.as_bytes())?),
        FileAsk::Move { from, to, replace } => done(tree::rename(&from, &to, replace)?),
        FileAsk::Copy { from, to, replace } => done(tree::copy(&from, &to, replace)?),
        FileAsk::Remove { path, all } => done(tree::remove(&path, all)?),
        FileAsk::Edit { path, old, new, all } => {
            Some(FileAnswer::Edited { count: content::edit(&path, old.as_bytes(), new.as_bytes(), all)? })
        }
        FileAsk::Watch { path, deep } => {
            watch::tell(&path, deep)?;
            None
        }
        FileAsk::Pack { path, compression } => {
            archive::pack(&path, compression)?;
            None
        }
        FileAsk::Unpack { path, compression } => {
            Some(FileAnswer::Unpacked { report: archive::unpack(&path, compression, PartReader::default())? })
        }
    })
}

/// Returns the error for an answer whose reader is gone. The error only stops the operation: no reader is
/// left to receive it.
pub fn unheard(_: io::Error) -> Error {
    Error::invalid("the caller has disconnected", "Retry.")
}

//! The process that serves one request: `guest files`. It has the rights of the user that code runs as, and no others.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use api::files::{FileAnswer, FileAsk};
use api::{Error, Ran};

use super::content::Wanted;
use super::digest::Digest;
use super::parts::{self, Sent};
use super::place::Place;
use super::{archive, content, list, tree, watch};

/// Whether anything was changed that stays as it is if the request fails. This process serves one request.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// From now on a failure is one of something half-done.
pub fn changed() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// What was changed is as it was again.
pub fn undone() {
    CHANGED.store(false, Ordering::Relaxed);
}

/// Takes one request from standard input and answers it on standard output.
pub fn run() -> ExitCode {
    // Other processes of this user cannot look into it; what they could do to it, they could do to their own.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let answered = match parts::ask().and_then(answer) {
        Ok(Some(answer)) => parts::head(&answer),
        // It has answered by itself: there was data.
        Ok(None) => Ok(()),
        Err(error) if CHANGED.load(Ordering::Relaxed) => {
            parts::head(&FileAnswer::Refused { error: Error { ran: Ran::Yes, ..error } })
        }
        Err(error) => parts::head(&FileAnswer::Refused { error }),
    };
    // Nobody listens any more: there is nobody to tell.
    if answered.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn answer(ask: FileAsk) -> Result<Option<FileAnswer>, Error> {
    let done = |count: u64| Some(FileAnswer::Done { count });
    Ok(match ask {
        FileAsk::Stat { path } => Some(FileAnswer::Info { info: Place::find(&path)?.info()? }),
        FileAsk::List { path, depth, after, limit } => Some(list::page(&path, depth, after, limit)?),
        FileAsk::Read { path, from, to, version, digest } => {
            content::read(&path, from, to, version.as_deref(), Digest::new(digest))?;
            None
        }
        FileAsk::Write { path, offset, mode, sha256, digest } => {
            let (wanted, sent) = (Wanted { sha256, digest }, &mut Sent::default());
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
            Some(FileAnswer::Unpacked { report: archive::unpack(&path, compression, Sent::default())? })
        }
    })
}

/// The error for an answer that nobody reads any more. Nobody reads it.
pub fn unheard(_: io::Error) -> Error {
    Error::invalid("the caller has disconnected", "Retry.")
}

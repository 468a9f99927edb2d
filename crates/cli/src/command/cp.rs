//! `bellglass cp`: files between this machine and a sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`place`] | `SANDBOX:PATH`, a path, or `-` |
//! | [`up`], [`down`] | copying into a sandbox, and to this machine |
//! | [`glob`] | wildcards in paths of a sandbox |
//! | [`pack`], [`unpack`] | directories, as archives; what comes from a sandbox is unpacked as a stranger's |
//! | [`pipe`] | between threads that wait for a disk and what must not wait |
//!
//! Single files are sent and taken so that a broken connection, or a server that is restarted, costs nothing but time; each is
//! there whole or not at all, and compared by its hash. Directories travel as archives: a copy that breaks off is begun anew. One
//! that is interrupted leaves nothing behind that is not whole.

mod down;
mod glob;
mod pack;
mod pipe;
mod place;
mod unpack;
mod up;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::Error;
use api::files::FilePath;
use client::{Client, Files};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::connect::{Connection, explain};
use crate::show::{self, Heard};
use down::Down;
use place::Place;
use up::Up;

/// How long what is not whole may take to be removed, here and there, once we are to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Exit codes as a shell has them for the two signals.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// Arguments of `bellglass cp`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass cp data.csv build:\n  bellglass cp build:result.json .\n  \
    bellglass cp 'build:logs/*.txt' logs/\n  bellglass cp src build:/workspace/src\n  tar c . | bellglass cp - build:all.tar\n  \
    bellglass cp build:out.bin - | sha256sum\n\n\
    SANDBOX:PATH is a path in a sandbox, relative to /workspace. Other paths are on this machine; - means\n\
    standard input or output. Directories are copied with their contents. If TARGET is an existing directory, the\n\
    sources are copied into it; otherwise the source is copied under the name TARGET. Existing files of\n\
    the same name are replaced. If the connection breaks, the copy of a file resumes. The exit code is 1 if\n\
    part of a directory was left out or changed while it was copied.")]
pub struct Arguments {
    /// Files and directories to copy, followed by the target, such as `data.csv build:`.
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    places: Vec<OsString>,
    /// Show no progress.
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Whether all of it was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// As it was.
    Whole,
    /// Something was left out, or is not what it was at any one time.
    Partly,
}

/// Where everything goes.
enum Target {
    There(Files, FilePath),
    Here(PathBuf),
    Pipe,
}

/// What every copy needs.
struct Work {
    bar: ProgressBar,
    /// Held by each thread that works on files of this machine, until it has ended.
    alive: mpsc::Sender<()>,
}

/// Copies all of it, or says what could not be.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut places =
        arguments.places.iter().map(|place| Place::parse(place)).collect::<Result<Vec<_>, _>>()?;
    let target = places.pop().ok_or_else(nothing)?;
    can_be_copied(&places, &target)?;
    let target = match target {
        Place::There { sandbox, path } => Target::There(client.files(&sandbox), path),
        Place::Here(path) => Target::Here(path),
        Place::Pipe => Target::Pipe,
    };
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let (alive, mut threads) = mpsc::channel(1);
    let work = Work { bar: bar(arguments.quiet), alive };
    let code = tokio::select! {
        copied = copy(&client, places, &target, &work) => {
            work.bar.finish_and_clear();
            return Ok(if copied? == Copied::Whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        _ = interrupt.recv() => INTERRUPTED,
        _ = terminate.recv() => TERMINATED,
    };
    work.bar.finish_and_clear();
    drop(work);
    // The copy was dropped: its threads end at the next piece, and what it sent has no name yet.
    let leaving = async {
        let _ = threads.recv().await;
        match &target {
            Target::There(files, _) => files.tidy().await.is_ok(),
            Target::Here(_) | Target::Pipe => true,
        }
    };
    if !tokio::time::timeout(LEAVE_WITHIN, leaving).await.unwrap_or(false) {
        show::note("a hidden .part file may remain next to the target; remove it");
    }
    Ok(ExitCode::from(code))
}

async fn copy(client: &Client, places: Vec<Place>, target: &Target, work: &Work) -> Result<Copied, Error> {
    let sources = expand(client, places).await?;
    let mut copied = Copied::Whole;
    match target {
        Target::There(files, path) => {
            apart(&sources)?;
            let up = Up { files, target: path, several: sources.len() > 1, work };
            for source in sources {
                copied = copied.and(up.copy(source).await?);
            }
        }
        Target::Here(target) => {
            apart(&sources)?;
            let inside = sources.len() > 1 || down::is_directory(target);
            let down = Down { inside, target, work };
            for (files, path) in of_sandboxes(client, sources) {
                copied = copied.and(down.copy(&files, &path).await?);
            }
        }
        Target::Pipe => {
            for (files, path) in of_sandboxes(client, sources) {
                if pour(&files, &path).await? == Heard::No {
                    break;
                }
            }
        }
    }
    Ok(copied)
}

/// Everything that is to be copied, with wildcards written out.
async fn expand(client: &Client, places: Vec<Place>) -> Result<Vec<Place>, Error> {
    let mut sources = Vec::new();
    for place in places {
        match place {
            Place::There { sandbox, path } => {
                let found = glob::expand(&client.files(&sandbox), &path).await?;
                let there = |path| Place::There { sandbox: sandbox.clone(), path };
                sources.extend(found.into_iter().map(there));
            }
            Place::Here(_) | Place::Pipe => sources.push(place),
        }
    }
    Ok(sources)
}

/// Those of them that are in sandboxes.
fn of_sandboxes(client: &Client, sources: Vec<Place>) -> impl Iterator<Item = (Files, FilePath)> {
    sources.into_iter().filter_map(|source| match source {
        Place::There { sandbox, path } => Some((client.files(&sandbox), path)),
        Place::Here(_) | Place::Pipe => None,
    })
}

/// One side is a sandbox, and no two are.
fn can_be_copied(places: &[Place], target: &Place) -> Result<(), Error> {
    for place in places {
        match (place, target) {
            (Place::There { sandbox: from, .. }, Place::There { sandbox: to, .. }) if from != to => {
                return Err(Error::invalid(
                    "cannot copy directly from one sandbox to another",
                    "Copy the files to this machine first, then to the other sandbox.",
                ));
            }
            (Place::There { .. }, _) | (_, Place::There { .. }) => {}
            (Place::Here(_) | Place::Pipe, Place::Here(_) | Place::Pipe) => return Err(nowhere()),
        }
    }
    Ok(())
}

/// Refuses things that would become one: the later would take the place of the earlier without a word.
fn apart(sources: &[Place]) -> Result<(), Error> {
    let mut names = HashMap::new();
    for source in sources {
        let Some(name) = source.name() else { continue };
        if let Some(other) = names.insert(name, source).filter(|other| *other != source) {
            return Err(Error::invalid(
                format!("{other} and {source} would both be copied to {:?}", String::from_utf8_lossy(name)),
                "Copy the sources one by one, each to a different name.",
            ));
        }
    }
    Ok(())
}

/// Writes the bytes of a file to standard output, and says whether anybody still reads it.
pub async fn pour(files: &Files, path: &FilePath) -> Result<Heard, Error> {
    let mut reader = files.reader(path).await.map_err(|error| explain(&error))?;
    let mut stdout = tokio::io::stdout();
    while let Some(bytes) = reader.next().await.map_err(|error| explain(&error))? {
        if show::heard(stdout.write_all(&bytes).await)? == Heard::No {
            return Ok(Heard::No);
        }
    }
    // Only then is it known whether the last bytes were taken.
    show::heard(stdout.flush().await)
}

impl Copied {
    fn and(self, other: Self) -> Self {
        if self == Self::Whole { other } else { self }
    }
}

/// Says what is not as it was.
fn tell(skipped: u64, changed: u64) -> Copied {
    if skipped > 0 {
        show::note(&format!(
            "{skipped} entries were skipped because they are unreadable, or are not files, directories or symlinks"
        ));
    }
    if changed > 0 {
        show::note(&format!("{changed} files changed while they were copied"));
    }
    if skipped + changed == 0 { Copied::Whole } else { Copied::Partly }
}

fn watch(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| crate::platform(format!("cannot install a signal handler: {error}")))
}

/// Hidden where standard error is no terminal.
fn bar(quiet: bool) -> ProgressBar {
    if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() }
}

fn begin(bar: &ProgressBar, name: &str, bytes: Option<u64>) {
    let (template, length) = match bytes {
        Some(bytes) => ("{bar:30} {bytes:>10} of {total_bytes} {bytes_per_sec} {msg}", bytes),
        None => ("{spinner} {bytes:>10} {bytes_per_sec} {msg}", 0),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.reset();
    bar.set_length(length);
    bar.set_message(show::escape(name));
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::invalid(
        format!("cannot use {}: {error}", path.display()),
        "Use a file or directory on this machine that you can access, or write SANDBOX:PATH.",
    )
}

fn nothing() -> Error {
    Error::invalid("there is nothing to copy", "Name at least one source and a target.")
}

fn nowhere() -> Error {
    Error::invalid(
        "neither the source nor the target is in a sandbox",
        "Write the source or the target as SANDBOX:PATH.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(texts: &[&str]) -> Vec<Place> {
        texts.iter().map(|text| Place::parse(text.as_ref()).unwrap()).collect()
    }

    #[test]
    fn two_things_do_not_become_one() {
        let error = apart(&places(&["box:run1/result.json", "box:run2/result.json"])).unwrap_err();
        assert!(error.message.contains("run1/result.json") && error.message.contains("run2/"), "{error:?}");
        assert!(apart(&places(&["a/x", "b/x/"])).is_err());
        assert!(apart(&places(&["box:a/x", "box:a/y", "box:a/x"])).is_ok(), "a thing is itself");
        assert!(apart(&places(&["a/.", "b/.", "-"])).is_ok(), "what has no name");
    }

    #[test]
    fn one_side_is_a_sandbox_and_no_two_are() {
        for (from, to, wanted) in [
            ("a", "box:", true),
            ("box:a", "box:b", true),
            ("box:a", "-", true),
            ("box:a", "other:", false),
            ("a", "b", false),
            ("-", "b", false),
        ] {
            let (from, to) = (places(&[from]), places(&[to]));
            assert_eq!(can_be_copied(&from, &to[0]).is_ok(), wanted, "{from:?} {to:?}");
        }
    }
}

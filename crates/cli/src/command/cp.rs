//! `bellglass cp`: copies files between this machine and a sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`place`] | sources and targets: `SANDBOX:PATH`, a local path, or `-` |
//! | [`up`], [`down`] | copying into a sandbox, and from a sandbox to this machine |
//! | [`glob`] | wildcards in sandbox paths |
//! | [`pack`], [`unpack`] | directories as archives; archives from a sandbox are untrusted |
//! | [`pipe`] | a pipe between blocking threads and async tasks |
//!
//! Copies of single files resume after a broken connection or a server restart. Each file is written
//! atomically and verified by its hash. A directory is sent as an archive, which does not resume after an
//! interruption. An interrupted copy leaves no incomplete files behind.

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

use crate::connect::{ServerConnection, explain};
use crate::show::{self, Heard};
use down::Down;
use place::CopyLocation;
use up::Up;

/// Timeout for removing incomplete files from this machine and from the sandbox after an interrupt.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Exit codes after SIGINT and SIGTERM, as shells use them.
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

/// Completeness of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// Everything was copied unchanged.
    Whole,
    /// Part of the source was left out, or changed while it was copied.
    Partly,
}

/// Target of a copy.
enum Target {
    There(Files, FilePath),
    Here(PathBuf),
    Pipe,
}

/// State shared by all copies of one command.
struct CopyState {
    bar: ProgressBar,
    /// Each thread that accesses local files holds a clone, so that an interrupted copy can wait for all.
    alive: mpsc::Sender<()>,
}

/// Copies all sources to the target, or returns the first error.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut places =
        arguments.places.iter().map(|place| CopyLocation::parse(place)).collect::<Result<Vec<_>, _>>()?;
    let target = places.pop().ok_or_else(nothing)?;
    can_be_copied(&places, &target)?;
    let target = match target {
        CopyLocation::There { sandbox, path } => Target::There(client.files(&sandbox), path),
        CopyLocation::Here(path) => Target::Here(path),
        CopyLocation::Pipe => Target::Pipe,
    };
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let (alive, mut threads) = mpsc::channel(1);
    let work = CopyState { bar: bar(arguments.quiet), alive };
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
    // The copy was cancelled, and its threads end at the next chunk. Incomplete files in the sandbox still
    // have temporary names, and `tidy` removes them.
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

async fn copy(
    client: &Client,
    places: Vec<CopyLocation>,
    target: &Target,
    work: &CopyState,
) -> Result<Copied, Error> {
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

/// Returns all sources, with wildcards expanded.
async fn expand(client: &Client, places: Vec<CopyLocation>) -> Result<Vec<CopyLocation>, Error> {
    let mut sources = Vec::new();
    for place in places {
        match place {
            CopyLocation::There { sandbox, path } => {
                let found = glob::expand(&client.files(&sandbox), &path).await?;
                let there = |path| CopyLocation::There { sandbox: sandbox.clone(), path };
                sources.extend(found.into_iter().map(there));
            }
            CopyLocation::Here(_) | CopyLocation::Pipe => sources.push(place),
        }
    }
    Ok(sources)
}

/// Returns the sources that are in sandboxes, with a client for each sandbox's files.
fn of_sandboxes(client: &Client, sources: Vec<CopyLocation>) -> impl Iterator<Item = (Files, FilePath)> {
    sources.into_iter().filter_map(|source| match source {
        CopyLocation::There { sandbox, path } => Some((client.files(&sandbox), path)),
        CopyLocation::Here(_) | CopyLocation::Pipe => None,
    })
}

/// Checks that each copy involves a sandbox, and does not go from one sandbox to a different sandbox.
fn can_be_copied(places: &[CopyLocation], target: &CopyLocation) -> Result<(), Error> {
    for place in places {
        match (place, target) {
            (CopyLocation::There { sandbox: from, .. }, CopyLocation::There { sandbox: to, .. })
                if from != to =>
            {
                return Err(Error::invalid(
                    "cannot copy directly from one sandbox to another",
                    "Copy the files to this machine first, then to the other sandbox.",
                ));
            }
            (CopyLocation::There { .. }, _) | (_, CopyLocation::There { .. }) => {}
            (CopyLocation::Here(_) | CopyLocation::Pipe, CopyLocation::Here(_) | CopyLocation::Pipe) => {
                return Err(nowhere());
            }
        }
    }
    Ok(())
}

/// Rejects sources that would be copied to the same name, because a later source would silently overwrite an
/// earlier one.
fn apart(sources: &[CopyLocation]) -> Result<(), Error> {
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

/// Writes the contents of a file to standard output. The result states whether standard output still has a
/// reader.
pub async fn pour(files: &Files, path: &FilePath) -> Result<Heard, Error> {
    let mut reader = files.reader(path).await.map_err(|error| explain(&error))?;
    let mut stdout = tokio::io::stdout();
    while let Some(bytes) = reader.next().await.map_err(|error| explain(&error))? {
        if show::heard(stdout.write_all(&bytes).await)? == Heard::No {
            return Ok(Heard::No);
        }
    }
    // Only a flush shows whether the last bytes were written.
    show::heard(stdout.flush().await)
}

impl Copied {
    fn and(self, other: Self) -> Self {
        if self == Self::Whole { other } else { self }
    }
}

/// Prints how many entries were skipped or changed.
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

/// Returns a progress bar, which is hidden if standard error is not a terminal.
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

    fn places(texts: &[&str]) -> Vec<CopyLocation> {
        texts.iter().map(|text| CopyLocation::parse(text.as_ref()).unwrap()).collect()
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

//! `belljar cp`: files between this machine and a sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`place`] | `SANDBOX:PATH`, a path, or `-` |
//! | [`glob`] | wildcards in paths of a sandbox |
//! | [`pack`], [`unpack`] | directories, as archives; what comes from a sandbox is unpacked as a stranger's |
//! | [`pipe`] | between threads that wait for a disk and what must not wait |
//!
//! Single files are sent and taken so that a broken connection, or a server that is restarted, costs nothing but time; each is
//! there whole or not at all, and compared by its hash. Directories travel as archives: a copy that breaks off is begun anew.

mod glob;
mod pack;
mod pipe;
mod place;
mod unpack;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::files::{FileKind, FilePath};
use api::layer::Compression;
use api::{Error, SandboxId};
use client::Files;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::AsyncWriteExt as _;

use crate::connect::{Connection, explain};
use crate::show::{self, Heard};
use place::{Place, below, last_name, local_name};
use unpack::Unpacker;

/// What to copy, and whereto.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  belljar cp data.csv build:\n  belljar cp build:result.json .\n  \
    belljar cp 'build:logs/*.txt' logs/\n  belljar cp src build:/workspace/src\n  tar c . | belljar cp - build:all.tar\n  \
    belljar cp build:out.bin - | sha256sum\n\n\
    SANDBOX:PATH is in a sandbox, relative to /workspace; anything else is on this machine; - is standard input or output. A \
    directory is copied with what is in it: into TARGET if that is a directory, else as TARGET. A file of the same name is \
    replaced. A file that is cut off on its way is gone on with.")]
pub struct Arguments {
    /// What to copy; the last one is whereto.
    #[arg(required = true, num_args = 2.., value_name = "SOURCE TARGET")]
    places: Vec<OsString>,
    /// Shows no progress.
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Copies all of it, or says what could not be.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut places =
        arguments.places.iter().map(|place| Place::parse(place)).collect::<Result<Vec<_>, _>>()?;
    let target = places.pop().ok_or_else(nothing)?;
    let bar = bar(arguments.quiet);
    match target {
        Place::There { sandbox, path } => {
            let files = client.files(&sandbox);
            let up =
                Up { files: &files, sandbox: &sandbox, target: &path, several: places.len() > 1, bar: &bar };
            for place in places {
                up.copy(place).await?;
            }
        }
        Place::Here(target) => {
            let mut sources = Vec::new();
            for place in places {
                let Place::There { sandbox, path } = place else { return Err(nowhere()) };
                let files = client.files(&sandbox);
                for path in glob::expand(&files, &path).await? {
                    sources.push((files.clone(), path));
                }
            }
            let down = Down { inside: sources.len() > 1 || is_directory(&target), target, bar: &bar };
            for (files, path) in sources {
                down.copy(&files, &path).await?;
            }
        }
        Place::Pipe => {
            for place in places {
                let Place::There { sandbox, path } = place else { return Err(nowhere()) };
                let files = client.files(&sandbox);
                for path in glob::expand(&files, &path).await? {
                    if pour(&files, &path).await? == Heard::No {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(ExitCode::SUCCESS)
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

/// Copying into a sandbox.
struct Up<'a> {
    files: &'a Files,
    sandbox: &'a SandboxId,
    target: &'a FilePath,
    several: bool,
    bar: &'a ProgressBar,
}

impl Up<'_> {
    async fn copy(&self, from: Place) -> Result<(), Error> {
        match from {
            Place::Pipe => {
                let mut stdin = tokio::io::stdin();
                let sent = self.files.write_from(self.target, &mut stdin, None).await;
                sent.map(drop).map_err(|error| explain(&error))
            }
            Place::Here(path) => {
                let known = std::fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
                // `dir/.` and `..` have no name of their own: what is in them goes into the target itself.
                let target = match path.file_name() {
                    Some(name) if self.goes_inside().await? => below(self.target, name.as_bytes())?,
                    Some(_) | None => self.target.clone(),
                };
                if known.is_dir() {
                    self.directory(&path, &target).await
                } else {
                    self.file(&path, known.len(), &target).await
                }
            }
            Place::There { sandbox, path } if sandbox == *self.sandbox => {
                for path in glob::expand(self.files, &path).await? {
                    let target = match last_name(&path) {
                        Some(name) if self.goes_inside().await? => below(self.target, name)?,
                        Some(_) | None => self.target.clone(),
                    };
                    let copied = self.files.copy(&path, &target, true).await;
                    copied.map_err(|error| explain(&error))?;
                }
                Ok(())
            }
            Place::There { .. } => Err(Error::invalid(
                "nothing is copied from one sandbox into another",
                "Copy it to this machine first, and from here into the other.",
            )),
        }
    }

    async fn file(&self, local: &Path, bytes: u64, target: &FilePath) -> Result<(), Error> {
        begin(self.bar, &local.to_string_lossy(), Some(bytes));
        let seen = |at| self.bar.set_position(at);
        self.files.upload(local, target, &seen).await.map_err(|error| explain(&error))?;
        Ok(())
    }

    async fn directory(&self, local: &Path, target: &FilePath) -> Result<(), Error> {
        begin(self.bar, &local.to_string_lossy(), None);
        let (mut inlet, mut outlet) = pipe::pipe();
        let directory = local.to_owned();
        let packing = tokio::task::spawn_blocking(move || {
            let packed = pack::pack(&directory, &mut inlet);
            let (packed, done) = match packed {
                Ok(packed) => (Some(packed), Ok(())),
                Err(error) => (None, Err(error)),
            };
            inlet.finish(done);
            packed
        });
        let report = self.files.unpack(target, Compression::None, &mut outlet).await;
        drop(outlet);
        let packed = packing.await.ok().flatten();
        let report = report.map_err(|error| explain(&error))?;
        let (skipped, changed) = packed.map_or((0, 0), |packed| (packed.skipped, packed.changed));
        self.bar.suspend(|| tell(skipped + report.skipped, changed + report.changed));
        Ok(())
    }

    /// Whether a thing goes into the target under its own name.
    async fn goes_inside(&self) -> Result<bool, Error> {
        if self.several || self.target.as_bytes().ends_with(b"/") {
            return Ok(true);
        }
        match self.files.stat(self.target).await {
            Ok(info) => Ok(info.kind == FileKind::Directory),
            Err(error) if error.code() == Some(api::ErrorCode::NotFound) => Ok(false),
            Err(error) => Err(explain(&error)),
        }
    }
}

/// Copying to this machine.
struct Down<'a> {
    target: PathBuf,
    /// Whether things go into it under their own names.
    inside: bool,
    bar: &'a ProgressBar,
}

impl Down<'_> {
    async fn copy(&self, files: &Files, path: &FilePath) -> Result<(), Error> {
        let info = files.stat(path).await.map_err(|error| explain(&error))?;
        // The root and the workspace itself have no name: what is in them goes into the target.
        let name = if self.inside { last_name(path) } else { None };
        if info.kind == FileKind::Directory {
            return self.directory(files, path, name).await;
        }
        let local = match name {
            Some(name) => {
                std::fs::create_dir_all(&self.target).map_err(|error| unreadable(&self.target, &error))?;
                self.target.join(local_name(name))
            }
            None => self.target.clone(),
        };
        begin(self.bar, &info.path, Some(info.size_bytes));
        let seen = |at| self.bar.set_position(at);
        files.download(path, &local, &seen).await.map_err(|error| explain(&error))?;
        Ok(())
    }

    async fn directory(&self, files: &Files, path: &FilePath, name: Option<&[u8]>) -> Result<(), Error> {
        begin(self.bar, &path.text(), None);
        let mut archive = files.pack(path, Compression::None).await.map_err(|error| explain(&error))?;
        let unpacker = Unpacker::new(&self.target, name)?;
        let (mut inlet, outlet) = pipe::pipe();
        let unpacking = tokio::task::spawn_blocking(move || unpacker.unpack(outlet));
        let read = loop {
            match archive.next().await {
                Ok(Some(bytes)) => {
                    self.bar.inc(bytes.len() as u64);
                    // Whoever unpacks has ended, and says why.
                    if inlet.push(bytes).await.is_err() {
                        break Ok(());
                    }
                }
                Ok(None) => {
                    inlet.end().await;
                    break Ok(());
                }
                Err(error) => break Err(explain(&error)),
            }
        };
        let unpacked = unpacking.await.map_err(|error| crate::platform(error.to_string()));
        // A connection that broke is why the archive did.
        read?;
        let unpacked = unpacked??;
        let report = archive.report().unwrap_or_default();
        self.bar.suspend(|| {
            tell(report.skipped, report.changed);
            if unpacked.left_out > 0 {
                show::note(&format!(
                    "{} symlinks lead out of the directory and were left out",
                    unpacked.left_out
                ));
            }
        });
        Ok(())
    }
}

fn tell(skipped: u64, changed: u64) {
    if skipped > 0 {
        show::note(&format!(
            "{skipped} things were left out: neither files, directories nor symlinks, or unreadable"
        ));
    }
    if changed > 0 {
        show::note(&format!("{changed} files were written to while they were copied"));
    }
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

fn is_directory(target: &Path) -> bool {
    target.is_dir() || target.as_os_str().as_bytes().ends_with(b"/")
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::invalid(
        format!("cannot use {}: {error}", path.display()),
        "Name a file or a directory of this machine that you may use, or write SANDBOX:PATH.",
    )
}

fn nothing() -> Error {
    Error::invalid("nothing is to be copied", "Name what to copy, and whereto.")
}

fn nowhere() -> Error {
    Error::invalid("neither side of the copy is a sandbox", "Write SANDBOX:PATH for one of them.")
}

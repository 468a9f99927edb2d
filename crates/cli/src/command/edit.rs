//! `bellglass edit`: edits a file in a sandbox, by replacing exact text or in an editor.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::files::{EDIT_BYTES_MAX, EditRequest, FilePath};
use api::{Error, ErrorCode, Layer, Ran, Retry, SandboxId};
use client::{Client, Files};

use crate::command::ls;
use crate::connect::{ServerConnection, answer};
use crate::show;

/// Arguments of `bellglass edit`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass edit build main.py --old 'port = 80' --new 'port = 8080'\n  \
    EDITOR=vim bellglass edit build main.py\n\n\
    The text given with --old must occur in the file exactly once, unless --all is given. Without --old,\n\
    the file is opened in $VISUAL or $EDITOR, and written back if the file in the sandbox has not changed\n\
    meanwhile. If the file cannot be written back, your version is kept and its path is printed.")]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// File to edit, relative to /workspace.
    #[arg(value_name = "PATH")]
    path: OsString,
    /// Exact text to replace.
    #[arg(long, requires = "new", value_name = "TEXT")]
    old: Option<String>,
    /// Replacement text.
    #[arg(long, requires = "old", value_name = "TEXT")]
    new: Option<String>,
    /// Replace every occurrence.
    #[arg(long, requires = "old")]
    all: bool,
}

/// Local copy of a file, which is deleted on drop.
struct Copy {
    path: PathBuf,
}

/// Edits the file.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let (files, path) = (client.files(&arguments.sandbox), ls::path(&arguments.path)?);
    let (Some(old), Some(new)) = (arguments.old, arguments.new) else {
        return in_editor(&client, &files, &path).await;
    };
    let edit = EditRequest { old, new, all: arguments.all };
    let count = answer(&client, files.edit(&path, &edit)).await?;
    show::note(&format!("replaced {count} occurrence{}", if count == 1 { "" } else { "s" }));
    Ok(ExitCode::SUCCESS)
}

async fn in_editor(client: &Client, files: &Files, path: &FilePath) -> Result<ExitCode, Error> {
    let info = answer(client, files.stat(path)).await?;
    let before = answer(client, files.read(path, EDIT_BYTES_MAX)).await?;
    let copy = Copy::of(&before)?;
    let edited = async {
        open_editor(&copy.path)?;
        let after = copy.read()?;
        if after == before {
            show::note("no changes");
            return Ok(());
        }
        if answer(client, files.stat(path)).await?.version != info.version {
            return Err(conflict(path));
        }
        answer(client, files.write(path, after.into(), Some(info.mode & 0o777))).await?;
        show::note("written back");
        Ok(())
    };
    match edited.await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(copy.kept_after(error, &before)),
    }
}

fn conflict(path: &FilePath) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message: format!("{:?} changed in the sandbox while you edited it", path.text()),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Compare your version with the version in the sandbox and copy the right version with `bellglass cp`.".into(),
    }
}

fn open_editor(path: &Path) -> Result<(), Error> {
    let named = |name| std::env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".into());
    // A shell starts the editor, as in other programs, because `VISUAL` and `EDITOR` may contain options.
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(path)
        .status()
        .map_err(|error| crate::platform(format!("cannot start the editor {editor:?}: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the editor {editor:?} failed: {status}"),
        "Nothing was written back. Set VISUAL or EDITOR to a working editor.",
    ))
}

impl Copy {
    fn of(bytes: &[u8]) -> Result<Self, Error> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| crate::platform(errno.to_string()))?;
        let name = format!("bellglass-edit-{:016x}", u64::from_ne_bytes(random));
        let copy = Self { path: std::env::temp_dir().join(name) };
        let fault = |error| crate::platform(format!("cannot write {}: {error}", copy.path.display()));
        let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy.path);
        opened.and_then(|mut file| file.write_all(bytes)).map_err(fault)?;
        Ok(copy)
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(&self.path);
        opened
            .and_then(|file| file.take(EDIT_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(|error| crate::platform(format!("cannot read {}: {error}", self.path.display())))?;
        if bytes.len() as u64 > EDIT_BYTES_MAX {
            return Err(api::limits::exceeded("the size of the file", bytes.len() as u64, EDIT_BYTES_MAX));
        }
        Ok(bytes)
    }

    /// Keeps the local copy if it differs from the original file, and adds the path of the copy to the error.
    /// The copy is the only place that holds the user's edits.
    fn kept_after(mut self, error: Error, before: &[u8]) -> Error {
        if self.read().is_ok_and(|bytes| bytes == before) {
            return error;
        }
        let path = std::mem::take(&mut self.path);
        Error { fix: format!("{} Your version is in {}.", error.fix, path.display()), ..error }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_outlives_every_failure() {
        let copy = Copy::of(b"before").unwrap();
        let path = copy.path.clone();
        std::fs::write(&path, "typed").unwrap();
        let error = copy.kept_after(Error::invalid("no", "Do this."), b"before");
        assert_eq!(error.fix, format!("Do this. Your version is in {}.", path.display()));
        assert_eq!(std::fs::read(&path).unwrap(), b"typed");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_copy_in_which_nothing_was_typed_is_removed() {
        let copy = Copy::of(b"before").unwrap();
        let path = copy.path.clone();
        assert_eq!(copy.kept_after(Error::invalid("no", "Do this."), b"before").fix, "Do this.");
        assert!(!path.exists());
    }
}

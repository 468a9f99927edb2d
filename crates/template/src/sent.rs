//! Files that a client uploaded for a build, as an archive, and the step that puts them in place.
//!
//! ```text
//! client ──bytes──▶ <data>/sent/<name> ──bytes──▶ sandbox of the step: its guest unpacks ──▶ a script puts files in place
//! ```
//!
//! The host treats the archive as opaque bytes: it is opened only in a sandbox. The client names the archive
//! by a digest of its content.

use std::path::Path;
use std::time::Duration;

use api::files::{FileAsk, FilePath};
use api::layer::Compression;
use bytes::Bytes;
use futures_util::StreamExt as _;
use guest_client::sandbox::Sandbox;
use host::clock;
use host::error::Error;
use host::objects::{Incoming, Objects, Outgoing, written_ms};
use object_store::path::Path as Key;

use crate::{layers, unsound};

/// Maximum size of one archive in bytes.
const BYTES_MAX: u64 = 4 << 30;
/// How long an archive is retained after its last upload. A client that needs the archive later uploads it
/// again.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);
/// Remaining retention time below which an archive is reported as missing, so that an archive is not removed
/// between the report and its use.
const LASTS: Duration = Duration::from_secs(24 * 3600);
/// Number of bytes received between two checks of the free disk space.
const LOOK_EVERY_BYTES: u64 = 64 << 20;
/// Directory in the sandbox where the guest unpacks an archive.
const UNPACKED: &str = "/var/tmp/.sent";

/// Script that moves the unpacked files to their target, following the rules of Docker's `COPY`. The content
/// of a directory goes into the target directory. A file takes the target's name, or goes into the target if
/// the target is a directory. If the source is a pattern, all unpacked files go into the target directory,
/// because only matching files were uploaded. Arguments: `$1` source, `$2` target, `$3` owner, `$4` mode.
const PUT: &str = r#"set -eu
cd /var/tmp/.sent
set -- "./$1" "$2" "$3" "$4"
chown -R "$3" .
if [ -n "$4" ]; then chmod -R "$4" .; fi
is() { [ -e "$1" ] || [ -L "$1" ]; }
into() { if [ ! -d "$1" ]; then mkdir -p -- "$1"; chown "$2" "$1"; fi; }
put() {
    if [ -d "$1" ] && [ ! -L "$1" ]; then
        into "$2" "$3"
        for inner in "$1"/* "$1"/.[!.]* "$1"/..?*; do
            if is "$inner"; then cp -a -- "$inner" "$2/"; fi
        done
    else
        case $2 in
            */) into "$2" "$3" ;;
            *) if [ ! -d "$2" ]; then into "$(dirname -- "$2")" "$3"; fi ;;
        esac
        cp -a -- "$1" "$2"
    fi
}
if is "$1"; then
    put "$1" "$2" "$3"
else
    at=$1
    while case $at in *[\*\?\[\{]*) true ;; *) false ;; esac; do at=${at%/*}; done
    some=
    for one in "$at"/* "$at"/.[!.]* "$at"/..?*; do
        if is "$one"; then some=1; put "$one" "${2%/}/" "$3"; fi
    done
    if [ -z "$some" ]; then echo "no uploaded files match $1" >&2; exit 1; fi
fi
rm -rf /var/tmp/.sent
"#;

/// The archives that were uploaded to this machine.
pub struct Archives {
    objects: Objects,
}

/// An archive that is being uploaded. Dropping this value discards the received bytes.
pub struct Receiving<'a> {
    objects: &'a Objects,
    incoming: Incoming,
    looked_bytes: u64,
}

/// Files of an uploaded archive, and their target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFiles {
    /// The name of the archive.
    pub archive: String,
    /// The source: a path in the archive, or a pattern.
    pub from: String,
    /// The target path. A trailing `/` denotes a directory.
    pub to: String,
    /// True if the files belong to the sandbox's user, false if they belong to root.
    pub by_user: bool,
    /// The mode of all files, as octal digits. Empty if the files keep their own modes.
    pub mode: String,
}

impl Archives {
    /// Opens the archives of this data directory.
    ///
    /// # Errors
    /// The data directory cannot be written.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let reserve = host::admission::Bounds::default().disk_reserve_bytes;
        Ok(Self { objects: Objects::open(data.join("sent"), reserve, None)? })
    }

    /// Returns true if an archive with this name exists and will be retained long enough to be used.
    ///
    /// # Errors
    /// The name is invalid, or a file system operation failed.
    pub async fn has(&self, name: &str) -> Result<bool, Error> {
        let oldest = clock::wall_ms().saturating_sub(clock::millis(KEPT.saturating_sub(LASTS)));
        Ok(self.objects.written(&key(name)?).await?.is_some_and(|at| at > oldest))
    }

    /// Starts an upload of this size, which replaces any existing archive with the same name.
    ///
    /// # Errors
    /// The name is invalid, the archive is too large, there is too little free disk space, or a file system
    /// operation failed.
    pub async fn receive(&self, name: &str, bytes: u64) -> Result<Receiving<'_>, Error> {
        if bytes > BYTES_MAX {
            return Err(over(bytes));
        }
        let incoming = self.objects.begin(&key(name)?).await?;
        let receiving = Receiving { objects: &self.objects, incoming, looked_bytes: 0 };
        receiving.check_room(bytes)?;
        Ok(receiving)
    }

    /// Removes expired archives and interrupted uploads.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn tidy(&self) -> Result<(), Error> {
        self.objects.sweep().await?;
        let oldest = clock::wall_ms().saturating_sub(clock::millis(KEPT));
        let mut all = self.objects.below(&Key::default());
        while let Some(found) = all.next().await {
            let found = found?;
            if written_ms(&found) < oldest {
                self.objects.remove(&found.location).await?;
            }
        }
        Ok(())
    }

    async fn read(&self, name: &str) -> Result<Outgoing, Error> {
        let found = self.objects.read(&key(name)?).await?;
        found.ok_or_else(|| {
            unsound("the files of this step were not uploaded", "Upload the files and build again.")
        })
    }

    /// Returns the digest of an archive's content.
    pub(super) async fn digest(&self, name: &str) -> Result<String, Error> {
        let mut reading = self.read(name).await?;
        let mut hasher = layers::Hashing::default();
        while let Some(bytes) = reading.next().await? {
            hasher.take(&bytes);
        }
        Ok(hasher.finish())
    }

    /// Sends an archive to a sandbox, whose guest unpacks it into the directory that the step's command
    /// reads.
    pub(super) async fn unpack(
        &self,
        name: &str,
        digest: &str,
        sandbox: &Sandbox,
        disk_bytes: u64,
    ) -> Result<(), Error> {
        let mut reading = self.read(name).await?;
        let mut hasher = layers::Hashing::default();
        let first = reading.next().await?.unwrap_or_default();
        let compression = Compression::sniff(&first);
        let path = FilePath::new(UNPACKED).map_err(Error::Request)?;
        let mut writing = sandbox.files(disk_bytes).write(FileAsk::Unpack { path, compression }).await?;
        hasher.take(&first);
        writing.push(first).await?;
        while let Some(bytes) = reading.next().await? {
            hasher.take(&bytes);
            writing.push(bytes).await?;
        }
        writing.finish().await?;
        if hasher.finish() != digest {
            return Err(unsound("the files of this step were replaced during the build", "Build again."));
        }
        Ok(())
    }
}

impl Receiving<'_> {
    /// Appends bytes.
    ///
    /// # Errors
    /// The archive is too large, there is too little free disk space, or a file system operation failed.
    pub async fn push(&mut self, bytes: &Bytes) -> Result<(), Error> {
        self.incoming.push(bytes).await?;
        let size = self.incoming.size_bytes();
        if size > BYTES_MAX {
            return Err(over(size));
        }
        if size >= self.looked_bytes {
            self.looked_bytes = size.saturating_add(LOOK_EVERY_BYTES);
            self.check_room(LOOK_EVERY_BYTES)?;
        }
        Ok(())
    }

    fn check_room(&self, bytes: u64) -> Result<(), Error> {
        if self.objects.has_room(bytes) {
            return Ok(());
        }
        let why = format!("there is not enough disk space for {bytes} more bytes");
        Err(Error::Runtime(runtime::Error::Capacity { what: "the uploaded files", why }))
    }

    /// Completes the upload: the archive becomes available under its name.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn finish(self) -> Result<(), Error> {
        self.incoming.finish().await
    }
}

impl SentFiles {
    /// Returns the command to run after the archive is unpacked.
    pub(super) fn program(&self) -> Vec<String> {
        let owner = if self.by_user { "1000:1000" } else { "0:0" };
        ["/bin/sh", "-c", PUT, "copy", &self.from, &self.to, owner, &self.mode].map(str::to_owned).to_vec()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let odd = |text: &str| text.contains('\0') || text.len() >= 4096;
        let climbs = self.from.split('/').any(|part| part == "..");
        if self.from.is_empty() || self.from.starts_with('/') || climbs || odd(&self.from) {
            return Err(format!("copies {:?}, which is not a path in the uploaded files", self.from));
        }
        if self.from.contains("**") {
            return Err(format!("copies {:?}; use a directory instead of `**`", self.from));
        }
        if !self.mode.chars().all(|c| ('0'..='7').contains(&c)) || self.mode.len() > 5 {
            return Err(format!("has the mode {:?}, which is not an octal number", self.mode));
        }
        match Path::new(&self.to) {
            _ if odd(&self.to) => Err("has a destination path that is too long".into()),
            root if root == Path::new("/") => Ok(()),
            _ => crate::recipe::place(&self.to),
        }
    }
}

/// Returns the storage key of an archive, after validating the name.
fn key(name: &str) -> Result<Key, Error> {
    if layers::is_key(name) {
        return Ok(Key::from(name));
    }
    let shown: String = name.chars().take(64).collect();
    Err(unsound(format!("{shown:?} is not a SHA-256 digest"), "Send 64 lower-case hexadecimal digits."))
}

fn over(bytes: u64) -> Error {
    Error::Request(api::limits::exceeded("the size of the copied files in bytes", bytes, BYTES_MAX))
}

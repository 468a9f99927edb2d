//! A layer that is being created: a directory that a sandbox fills, and that is renamed to its key when it is
//! complete.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::SandboxId;
use api::layer::LayerReport;
use host::error::Error;

use super::{LayerRecord, WALKED, directory, remove, write};
use crate::failed;

/// Mode of complete layers. Their files belong to user IDs that have no meaning on this machine.
const CLOSED: u32 = 0o700;

/// A layer that is being created. If this value is dropped, [`tidy`](super::tidy) removes the layer later.
pub(crate) struct Making {
    path: PathBuf,
    layers: PathBuf,
}

impl Making {
    /// Creates a directory in `layers` for a new layer, which the sandbox with this ID will fill.
    pub(super) fn begin(layers: PathBuf, id: &SandboxId) -> Result<Self, Error> {
        let path = layers.join(format!("making-{}-{id}", std::process::id()));
        directory(&path, WALKED)?;
        directory(&path.join("fs"), 0o755)?;
        Ok(Self { path, layers })
    }

    /// Returns the directory to fill.
    pub(crate) fn tree(&self) -> PathBuf {
        self.path.join("fs")
    }

    /// Returns the directory of the layer's files and temporary files. It is removed with the layer.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Marks the layer as complete and renames it to its key.
    pub(crate) fn keep(self, key: &str, report: &LayerReport) -> Result<(), Error> {
        let path = self.path.join("layer.json");
        let digest = report.digest.clone();
        let record = LayerRecord { digest, bytes: report.bytes, entries: report.entries };
        let text =
            serde_json::to_vec_pretty(&record).map_err(io::Error::from).map_err(failed("write", &path))?;
        write(&path, &text)?;
        self.rename(key)
    }

    /// Removes the incomplete layer. Must not be called while a sandbox can still write to the layer.
    pub(crate) fn discard(self) -> Result<(), Error> {
        remove(&self.path)
    }

    /// Flushes the layer to disk and renames it. If a layer with this name exists, this one is removed.
    pub(super) fn rename(self, name: &str) -> Result<(), Error> {
        let opened = File::open(&self.path).map_err(failed("open", &self.path))?;
        // Flushed before it is renamed: a key promises a complete layer, even after a power failure.
        rustix::fs::syncfs(&opened).map_err(|errno| failed("flush", &self.path)(errno.into()))?;
        fs::set_permissions(&self.path, fs::Permissions::from_mode(CLOSED))
            .map_err(failed("close", &self.path))?;
        let path = self.layers.join(name);
        match fs::rename(&self.path, &path) {
            // Another process stored the same layer first.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                self.discard()
            }
            other => other.map_err(failed("store", &path)),
        }
    }
}

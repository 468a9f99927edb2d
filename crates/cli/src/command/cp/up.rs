//! Copying files into a sandbox.

use std::path::Path;

use api::Error;
use api::files::{FileKind, FilePath};
use api::layer::Compression;
use client::Files;

use super::place::{CopyLocation, below};
use super::{Copied, CopyState, begin, pack, pipe, tell, unreadable};
use crate::connect::explain;

/// Copy into a sandbox.
pub struct Up<'a> {
    pub files: &'a Files,
    pub target: &'a FilePath,
    /// True if there is more than one source.
    pub several: bool,
    pub work: &'a CopyState,
}

impl Up<'_> {
    /// Copies one file or directory.
    pub async fn copy(&self, from: CopyLocation) -> Result<Copied, Error> {
        // The sources `dir/.` and `..` have no name of their own, so their contents are copied directly into
        // the target.
        let target = match from.name() {
            Some(name) if self.goes_inside().await? => below(self.target, name)?,
            Some(_) | None => self.target.clone(),
        };
        match from {
            CopyLocation::Pipe => {
                let mut stdin = tokio::io::stdin();
                let sent = self.files.write_from(&target, &mut stdin, None).await;
                sent.map_err(|error| explain(&error))?;
            }
            CopyLocation::Here(path) => {
                let known = std::fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
                if known.is_dir() {
                    return self.directory(&path, &target).await;
                }
                self.file(&path, known.len(), &target).await?;
            }
            CopyLocation::There { path, .. } => {
                let copied = self.files.copy(&path, &target, true).await;
                copied.map_err(|error| explain(&error))?;
            }
        }
        Ok(Copied::Whole)
    }

    async fn file(&self, local: &Path, bytes: u64, target: &FilePath) -> Result<(), Error> {
        begin(&self.work.bar, &local.to_string_lossy(), Some(bytes));
        let seen = |at| self.work.bar.set_position(at);
        self.files.upload(local, target, &seen).await.map_err(|error| explain(&error))?;
        Ok(())
    }

    async fn directory(&self, local: &Path, target: &FilePath) -> Result<Copied, Error> {
        begin(&self.work.bar, &local.to_string_lossy(), None);
        let (mut inlet, mut outlet) = pipe::pipe();
        let (directory, alive) = (local.to_owned(), self.work.alive.clone());
        let packing = tokio::task::spawn_blocking(move || {
            let packed = pack::pack(&directory, &mut inlet);
            let (packed, done) = match packed {
                Ok(packed) => (Some(packed), Ok(())),
                Err(error) => (None, Err(error)),
            };
            inlet.finish(done);
            drop(alive);
            packed
        });
        let report = self.files.unpack(target, Compression::None, &mut outlet).await;
        drop(outlet);
        let packed = packing.await.ok().flatten();
        let report = report.map_err(|error| explain(&error))?;
        let (skipped, changed) = packed.map_or((0, 0), |packed| (packed.skipped, packed.changed));
        Ok(self.work.bar.suspend(|| tell(skipped + report.skipped, changed + report.changed)))
    }

    /// Returns true if the target is a directory into which the sources are copied under their own names.
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

//! Copying files from a sandbox to this machine.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use api::Error;
use api::files::{FileKind, FilePath};
use api::layer::Compression;
use client::Files;

use super::place::{last_name, local_name};
use super::unpack::DirectoryUnpacker;
use super::{Copied, CopyState, begin, pipe, tell, unreadable};
use crate::connect::explain;
use crate::show;

/// Copy from a sandbox to this machine.
pub struct Down<'a> {
    pub target: &'a Path,
    /// True if the target is a directory into which the sources are copied under their own names.
    pub inside: bool,
    pub work: &'a CopyState,
}

impl Down<'_> {
    /// Copies one file or directory.
    pub async fn copy(&self, files: &Files, path: &FilePath) -> Result<Copied, Error> {
        let info = files.stat(path).await.map_err(|error| explain(&error))?;
        // The root directory and the workspace itself have no name, so their contents are copied directly
        // into the target.
        let name = if self.inside { last_name(path) } else { None };
        if info.kind == FileKind::Directory {
            return self.directory(files, path, name).await;
        }
        let local = match name {
            Some(name) => {
                std::fs::create_dir_all(self.target).map_err(|error| unreadable(self.target, &error))?;
                self.target.join(local_name(name))
            }
            None => self.target.to_owned(),
        };
        begin(&self.work.bar, &info.path, Some(info.size_bytes));
        let seen = |at| self.work.bar.set_position(at);
        files.download(path, &local, &seen).await.map_err(|error| explain(&error))?;
        Ok(Copied::Whole)
    }

    async fn directory(&self, files: &Files, path: &FilePath, name: Option<&[u8]>) -> Result<Copied, Error> {
        begin(&self.work.bar, &path.text(), None);
        let mut archive = files.pack(path, Compression::None).await.map_err(|error| explain(&error))?;
        let unpacker = DirectoryUnpacker::new(self.target, name)?;
        let (mut inlet, outlet) = pipe::pipe();
        let alive = self.work.alive.clone();
        let unpacking = tokio::task::spawn_blocking(move || {
            let unpacked = unpacker.unpack(outlet);
            drop(alive);
            unpacked
        });
        let read = loop {
            match archive.next().await {
                Ok(Some(bytes)) => {
                    self.work.bar.inc(bytes.len() as u64);
                    // The unpacker has already ended. Its result, which is checked below, contains the error.
                    if inlet.push(bytes).await.is_err() {
                        break Ok(());
                    }
                }
                Ok(None) => {
                    inlet.end().await;
                    break Ok(());
                }
                Err(error) => {
                    // Without this drop, the unpacker would wait for more data.
                    drop(inlet);
                    break Err(explain(&error));
                }
            }
        };
        let unpacked = unpacking.await.map_err(|error| crate::platform(error.to_string()));
        // If the connection broke, report the connection error instead of a truncated archive.
        read?;
        let unpacked = unpacked??;
        let report = archive.report().unwrap_or_default();
        Ok(self.work.bar.suspend(|| {
            let copied = tell(report.skipped, report.changed);
            if unpacked.left_out > 0 {
                show::note(&format!(
                    "skipped {} symlinks that point outside the directory",
                    unpacked.left_out
                ));
                return Copied::Partly;
            }
            copied
        }))
    }
}

/// Returns true if the target is a directory into which the sources are copied under their own names.
pub fn is_directory(target: &Path) -> bool {
    target.is_dir() || target.as_os_str().as_bytes().ends_with(b"/")
}

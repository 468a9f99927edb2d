//! Files that a session stores, and files that it copies into its sandbox.

use std::collections::HashMap;

use api::artifact::mime;
use api::files::{FileAnswer, FileAsk, FileInfo, FileKind, FilePath, Hashing};
use api::session::{Session, SessionArtifact, SessionEvent, ToolSet};
use api::{ErrorCode, ExecId};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use node::folder::StoredFile;
use node::{Call, Folder, Manifest, Outgoing};
use serde_json::Value;
use tools::{analysis, interpreter};

use super::Live;
use super::queue::TurnState;
use crate::fault::Answer;

/// Maximum number of symlinks that are followed when a path is resolved, as in Linux.
const LINKS_MAX: usize = 40;
/// Maximum size of a file to edit, because the whole file is held in memory.
const EDIT_BYTES_MAX: u64 = api::files::EDIT_BYTES_MAX;

/// Versions of the files in a folder, by file name.
pub(super) type Versions = HashMap<String, String>;

impl Live {
    /// Lists the files that the session has stored.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn artifacts(&self) -> Result<Vec<SessionArtifact>, node::Error> {
        let session = self.shown().await;
        let manifest = self.folder.manifest().await?;
        Ok(manifest.files().map(|(name, kept)| artifact(&session, name, kept)).collect())
    }

    /// Returns the content of a stored file.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn artifact(&self, name: &str) -> Result<Option<(SessionArtifact, Outgoing)>, node::Error> {
        let session = self.shown().await;
        let manifest = self.folder.manifest().await?;
        let Some(kept) = manifest.file(name) else { return Ok(None) };
        let outgoing = self.folder.contents(kept).await?;
        Ok(outgoing.map(|outgoing| (artifact(&session, name, kept), outgoing)))
    }

    /// Removes the stored files, and returns their number.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn clear(&self) -> Answer<usize> {
        let _waiting = self.queue.wait()?;
        let _turn = self.queue.turn().await;
        Ok(self.folder.clear().await?)
    }

    /// Stores new text files and pictures from the output folder (requirement A5.04), and publishes the
    /// pictures. Considers only the first `FILES_MAX` files of the folder. Returns the names of all its
    /// files, and the newly stored files.
    ///
    /// # Errors
    /// Returns an error if the sandbox does not respond or a file system operation fails.
    pub(super) async fn keep_outputs(
        &self,
        turn: &mut TurnState,
        session: &Session,
        run: &ExecId,
        call: &Call,
    ) -> Result<(Vec<String>, Vec<SessionArtifact>), node::Error> {
        let (found, complete) = call.regular_files(analysis::OUTPUT).await?;
        if !complete {
            tracing::warn!(session = %session.id, "some output files of a session could not be listed");
        }
        let named: Vec<_> = found.iter().map(|info| (below(analysis::OUTPUT, info), info)).collect();
        let mut manifest = self.folder.manifest().await?;
        let mut fresh = Vec::new();
        for (name, info) in named.iter().take(analysis::FILES_MAX).filter(|(name, _)| analysis::is_kept(name))
        {
            if turn.kept.get(name) == Some(&info.version) && manifest.file(name).is_some() {
                continue;
            }
            if self.folder.take(&mut manifest, call, name, info).await? {
                turn.kept.insert(name.clone(), info.version.clone());
                fresh.extend(manifest.file(name).map(|kept| artifact(session, name, kept)));
            }
        }
        if !fresh.is_empty() {
            self.folder.save(&mut manifest).await?;
        }
        self.show(run, &fresh);
        Ok((named.into_iter().map(|(name, _)| name).collect(), fresh))
    }

    /// Stores the files of the workspace that a run changed, and deletes the stored copies of files that the
    /// run removed (requirement A5.07). Returns the files for the response; pictures include their content
    /// (requirements A5.08, A5.09, A5.11).
    ///
    /// # Errors
    /// Returns an error if the sandbox does not respond or a file system operation fails.
    pub(super) async fn keep_workspace(
        &self,
        session: &Session,
        run: &ExecId,
        call: &Call,
        before: &Versions,
        stdout: Option<Bytes>,
    ) -> Result<(Vec<interpreter::File>, Vec<SessionArtifact>), node::Error> {
        let (found, complete) = call.regular_files(interpreter::WORKSPACE).await?;
        let mut manifest = self.folder.manifest().await?;
        let names: HashMap<String, &FileInfo> =
            found.iter().map(|info| (below(interpreter::WORKSPACE, info), info)).collect();
        // If the listing is incomplete, unlisted files may still exist.
        manifest.forget(|name| complete && !names.contains_key(name));
        let (mut told, mut left) = (Vec::new(), 0_u64);
        for info in &found {
            let name = below(interpreter::WORKSPACE, info);
            if before.get(&name) == Some(&info.version) && manifest.file(&name).is_some() {
                continue;
            }
            let kept = self.folder.take(&mut manifest, call, &name, info).await?;
            left += u64::from(!kept);
            if kept && interpreter::is_collected(&name) {
                told.push(name);
            }
        }
        if left > 0 || !complete {
            tracing::warn!(session = %session.id, left, complete, "some files of a run were not stored");
        }
        if let Some(stdout) = stdout {
            let path = FilePath::new(format!("{}/{}", interpreter::WORKSPACE, interpreter::STDOUT))
                .map_err(node::Error::Request)?;
            self.folder.put(&mut manifest, interpreter::STDOUT, &path, &stdout).await?;
        }
        self.folder.save(&mut manifest).await?;
        let small = |name: &&String| {
            let size = manifest.file(name).map_or(0, |kept| kept.size_bytes);
            if size > interpreter::FILE_BYTES_MAX {
                tracing::warn!(
                    session = %session.id,
                    name,
                    size,
                    "a file of a session is too large to be returned"
                );
            }
            size <= interpreter::FILE_BYTES_MAX
        };
        let told = told.iter().filter(small).take(interpreter::FILES_MAX);
        let artifacts: Vec<_> =
            told.filter_map(|name| Some(artifact(session, name, manifest.file(name)?))).collect();
        self.show(run, &artifacts);
        let mut files = Vec::new();
        for artifact in &artifacts {
            files.push(interpreter::File::new(artifact, picture(&self.folder, &manifest, artifact).await));
        }
        Ok((files, artifacts))
    }

    /// Adds the content of pictures to a stored response again, if they are still stored and have the same
    /// size.
    pub(super) async fn put_pictures_back(&self, result: &mut Value) {
        let session = self.shown().await;
        let Ok(manifest) = self.folder.manifest().await else { return };
        for file in result.get_mut("files").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(file) = file.as_object_mut() else { continue };
            let Some(name) = file.get("name").and_then(Value::as_str) else { continue };
            let Some(kept) = manifest.file(name) else { continue };
            let same = file.get("size").and_then(Value::as_u64) == Some(kept.size_bytes);
            if let Some(base64) =
                picture(&self.folder, &manifest, &artifact(&session, name, kept)).await.filter(|_| same)
            {
                file.insert("base64".into(), base64.into());
            }
        }
    }

    /// Publishes an event for each picture (requirement A5.06).
    fn show(&self, run: &ExecId, artifacts: &[SessionArtifact]) {
        for artifact in artifacts.iter().filter(|artifact| analysis::is_picture(&artifact.name)) {
            self.say(SessionEvent::Visualization { run: run.clone(), artifact: artifact.clone() });
        }
    }
}

/// Returns a picture in base64, unless it is empty, too large or no longer stored (requirement A5.11).
async fn picture(folder: &Folder, manifest: &Manifest, artifact: &SessionArtifact) -> Option<String> {
    let fits = (1..=interpreter::PICTURE_BYTES_MAX).contains(&artifact.size);
    if !fits || !analysis::is_picture(&artifact.name) {
        return None;
    }
    let outgoing = folder.contents(manifest.file(&artifact.name)?).await.ok()??;
    Some(STANDARD.encode(whole(outgoing).await.ok()?))
}

/// Reads all bytes of a file that is known to be small.
pub async fn whole(mut outgoing: Outgoing) -> Result<Vec<u8>, node::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = outgoing.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Returns the versions of all files in the workspace, so that the changes of a run can be detected.
pub(super) async fn versions(call: &Call) -> Result<Versions, node::Error> {
    let (found, _) = call.regular_files(interpreter::WORKSPACE).await?;
    Ok(found.into_iter().map(|info| (below(interpreter::WORKSPACE, &info), info.version)).collect())
}

/// Writes a file in a sandbox atomically.
pub(super) async fn write(call: &Call, path: &str, bytes: impl Into<Bytes>) -> Result<(), node::Error> {
    let path = FilePath::new(path).map_err(node::Error::Request)?;
    let ask = FileAsk::Write { path, offset: None, mode: None, sha256: None, digest: Hashing::Sha256 };
    let mut writing = call.files().write(ask).await?;
    writing.push(bytes.into()).await?;
    writing.finish().await.map(drop)
}

/// Reads a file in a sandbox for editing. Returns `None` if the file is too large.
pub(super) async fn read(call: &Call, path: &str) -> Result<Option<Vec<u8>>, node::Error> {
    let path = FilePath::new(path).map_err(node::Error::Request)?;
    let ask = FileAsk::Read { path, from: 0, to: None, version: None, digest: Hashing::Sha256 };
    let (head, mut reading) = call.files().read(&ask).await?;
    let FileAnswer::Content { from, to, .. } = head else { return Ok(None) };
    if to - from > EDIT_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    while let node::ReadChunk::Data(piece) = reading.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

/// Returns true if a path is below the permitted folders after its symlinks are resolved (requirement A2.12).
/// Components that do not exist are taken literally.
pub(super) async fn stays_inside(call: &Call, path: &str) -> Result<bool, node::Error> {
    let mut left: Vec<String> =
        path.split('/').filter(|name| !name.is_empty()).rev().map(str::to_owned).collect();
    let (mut at, mut links) = (String::new(), 0);
    while let Some(name) = left.pop() {
        match name.as_str() {
            "" | "." => continue,
            ".." => {
                at.truncate(at.rfind('/').unwrap_or(0));
                continue;
            }
            _ => {}
        }
        let next = format!("{at}/{name}");
        let asked = FileAsk::Stat { path: FilePath::new(next.as_bytes()).map_err(node::Error::Request)? };
        let target = match call.files().ask(&asked).await {
            Ok(FileAnswer::Info { info }) if info.kind == FileKind::Symlink => {
                info.target.unwrap_or_default()
            }
            Ok(_) => {
                at = next;
                continue;
            }
            Err(error) if error.to_api().code == ErrorCode::NotFound => {
                at = next;
                continue;
            }
            Err(error) => return Err(error),
        };
        links += 1;
        if links > LINKS_MAX {
            return Ok(false);
        }
        if target.starts_with('/') {
            at.clear();
        }
        left.extend(target.split('/').rev().map(str::to_owned));
    }
    Ok(analysis::is_placed(&at))
}

/// Converts a stored file into its public form.
fn artifact(session: &Session, name: &str, kept: &StoredFile) -> SessionArtifact {
    let folder = match session.set {
        ToolSet::Analysis => format!("output/session_{}", session.id),
        ToolSet::Python | ToolSet::Interpreter => interpreter::output_dir(&session.id),
    };
    SessionArtifact {
        name: name.to_owned(),
        path: format!("{folder}/{name}"),
        mime: mime(name).to_owned(),
        size: kept.size_bytes,
    }
}

/// Returns the path of a file relative to a folder.
fn below(folder: &str, info: &FileInfo) -> String {
    // Prefer the encoded path. Two different paths that are not valid UTF-8 may have the same lossy text.
    let path = info.path_encoded.as_ref().unwrap_or(&info.path);
    let rest = path.strip_prefix(folder).unwrap_or(path);
    rest.trim_start_matches('/').to_owned()
}

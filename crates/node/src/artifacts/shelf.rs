//! Storage of artifacts.
//!
//! ```text
//! <data>/artifacts/wanted/<project>/<sandbox>/<exec>.json           request, written before the exec is started
//!                  kept/<project>/<sandbox>/<exec>/<number>         content of an artifact
//!                  kept/<project>/<sandbox>/<exec>/manifest.json    written last; the request is removed afterwards
//! ```
//!
//! The project is part of each key, so that a request never finds the artifacts of another project. Requests
//! have a separate directory, so that a restarted server can find unfinished collections without listing all
//! artifacts.

use std::time::Duration;

use api::artifact::{Artifacts, Keep};
use api::{ExecId, SandboxId};
use futures_util::StreamExt as _;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::choice::Marks;
use host::clock;
use host::error::{Error, chain};
use host::objects::{Incoming, Objects, Outgoing, key, written_ms};

const KEPT: &str = "kept";
const WANTED: &str = "wanted";
const MANIFEST: &str = "manifest.json";
/// Maximum number of expired manifests that the cleanup removes in one pass.
const REMOVED_AT_ONCE: usize = 1000;

/// The exec to which artifacts belong.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Of {
    /// The project.
    pub project: String,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The exec.
    pub exec: ExecId,
}

/// A request to keep artifacts of an exec, recorded before the exec is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectionRequest {
    /// The exec.
    pub of: Of,
    /// Rules that select the files.
    pub keep: Keep,
    /// Files that were in the folders before the exec.
    pub before: Marks,
    /// True if the folders contained more files than were listed.
    pub unseen: bool,
    /// True if the exec is known to have started.
    pub started: bool,
}

/// The stored artifacts of all projects.
pub struct Shelf {
    objects: Objects,
    retention: Duration,
}

impl Shelf {
    pub fn new(objects: Objects, retention: Duration) -> Self {
        Self { objects, retention }
    }

    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// Returns true if both the project's quota and the disk have room for this many bytes.
    pub async fn may_keep(&self, of: &Of, bytes: u64) -> Result<bool, Error> {
        self.objects.may_keep(&exec_key(of), bytes).await
    }

    pub async fn want(&self, wanted: &CollectionRequest) -> Result<(), Error> {
        self.objects.put_json(&wanted_key(&wanted.of), wanted).await
    }

    pub async fn is_wanted(&self, of: &Of) -> Result<bool, Error> {
        self.objects.has(&wanted_key(of)).await
    }

    /// Returns the recorded request for an exec, including the files that were in its folders before the
    /// exec.
    pub async fn wanted(&self, of: &Of) -> Result<Option<CollectionRequest>, Error> {
        Ok(self.objects.json(&wanted_key(of)).await?.map(|(wanted, _)| wanted))
    }

    pub async fn unwant(&self, of: &Of) -> Result<(), Error> {
        self.objects.remove(&wanted_key(of)).await
    }

    /// Returns all recorded requests. Unreadable requests are logged and skipped.
    pub async fn all_wanted(&self) -> Result<Vec<CollectionRequest>, Error> {
        let mut all = Vec::new();
        let mut found = self.objects.below(&key([WANTED]));
        while let Some(meta) = found.next().await {
            let location = meta?.location;
            match self.objects.json::<CollectionRequest>(&location).await {
                Ok(found) => all.extend(found.map(|(wanted, _)| wanted)),
                Err(error) => {
                    tracing::error!(%location, error = chain(&error), "cannot read the record of an artifact collection");
                }
            }
        }
        Ok(all)
    }

    /// Starts writing the content of an artifact.
    pub async fn begin(&self, of: &Of, number: u32) -> Result<Incoming, Error> {
        self.objects.begin(&kept_key(of, &number.to_string())).await
    }

    /// Opens the content of an artifact.
    pub async fn contents(&self, of: &Of, number: u32) -> Result<Option<Outgoing>, Error> {
        self.objects.read(&kept_key(of, &number.to_string())).await
    }

    /// Removes the partial collection of an exec, so that the collection can be repeated.
    pub async fn clear(&self, of: &Of) -> Result<(), Error> {
        self.objects.remove_below(&exec_key(of), None).await
    }

    /// Writes the manifest, which makes the artifacts available.
    pub async fn keep(&self, of: &Of, artifacts: &Artifacts) -> Result<(), Error> {
        self.objects.put_json(&kept_key(of, MANIFEST), artifacts).await
    }

    /// Returns the manifest of an exec, unless it has expired.
    pub async fn kept(&self, of: &Of) -> Result<Option<Artifacts>, Error> {
        let found = self.objects.json::<Artifacts>(&kept_key(of, MANIFEST)).await?;
        Ok(found.and_then(|(artifacts, written)| {
            let expires_at_ms = written.saturating_add(clock::millis(self.retention));
            (expires_at_ms > clock::wall_ms())
                .then_some(Artifacts { expires_at_ms: Some(expires_at_ms), ..artifacts })
        }))
    }

    /// Returns the execs of a sandbox with stored artifacts, ordered by ID.
    pub async fn execs(&self, project: &str, sandbox: &SandboxId) -> Result<Vec<ExecId>, Error> {
        let names = self.objects.names(&key([KEPT, project, sandbox.as_str()])).await?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Removes expired artifacts. Contents are removed before their manifest, so that an interrupted cleanup
    /// leaves no contents without a manifest.
    pub async fn tidy(&self) -> Result<(), Error> {
        self.objects.sweep().await?;
        loop {
            let (mut old, mut found) = (Vec::new(), self.objects.below(&key([KEPT])));
            let before = clock::wall_ms().saturating_sub(clock::millis(self.retention));
            while let Some(meta) = found.next().await {
                let meta = meta?;
                if meta.location.filename() == Some(MANIFEST) && written_ms(&meta) <= before {
                    old.push(meta.location);
                }
                if old.len() == REMOVED_AT_ONCE {
                    break;
                }
            }
            for manifest in &old {
                let parts: Vec<_> = manifest.parts().collect();
                let above = parts.iter().take(parts.len().saturating_sub(1)).cloned();
                self.objects.remove_below(&Path::from_iter(above), Some(manifest)).await?;
                self.objects.remove(manifest).await?;
            }
            if old.len() < REMOVED_AT_ONCE {
                return Ok(());
            }
        }
    }
}

fn wanted_key(of: &Of) -> Path {
    let file = format!("{}.json", of.exec);
    key([WANTED, &of.project, of.sandbox.as_str(), &file])
}

fn exec_key(of: &Of) -> Path {
    key([KEPT, &of.project, of.sandbox.as_str(), of.exec.as_str()])
}

fn kept_key(of: &Of, file: &str) -> Path {
    key([KEPT, &of.project, of.sandbox.as_str(), of.exec.as_str(), file])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn of(project: &str) -> Of {
        Of { project: project.into(), sandbox: "s1".parse().unwrap(), exec: "e1".parse().unwrap() }
    }

    fn some(of: &Of) -> Artifacts {
        let (sandbox, exec) = (of.sandbox.clone(), of.exec.clone());
        Artifacts { pending: false, complete: true, ..Artifacts::pending(sandbox, exec) }
    }

    async fn filled(retention: Duration) -> (tempfile::TempDir, Shelf) {
        let data = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(Objects::open(data.path().join("a"), 0, None).unwrap(), retention);
        let mut incoming = shelf.begin(&of("p"), 0).await.unwrap();
        incoming.push(&Bytes::from_static(b"x")).await.unwrap();
        incoming.finish().await.unwrap();
        shelf.keep(&of("p"), &some(&of("p"))).await.unwrap();
        (data, shelf)
    }

    #[tokio::test]
    async fn what_is_kept_is_there_for_its_project_and_for_no_other() {
        let (_data, shelf) = filled(Duration::from_secs(60)).await;
        let kept = shelf.kept(&of("p")).await.unwrap().unwrap();
        assert!(kept.complete && kept.expires_at_ms > Some(clock::wall_ms()));
        assert!(shelf.contents(&of("p"), 0).await.unwrap().is_some());
        assert_eq!(shelf.execs("p", &of("p").sandbox).await.unwrap(), [of("p").exec]);
        shelf.tidy().await.unwrap();
        assert!(shelf.kept(&of("p")).await.unwrap().is_some());
        assert!(shelf.kept(&of("q")).await.unwrap().is_none());
        assert!(shelf.contents(&of("q"), 0).await.unwrap().is_none());
        assert_eq!(shelf.execs("q", &of("q").sandbox).await.unwrap(), []);
    }

    #[tokio::test]
    async fn what_is_too_old_is_not_there_and_is_removed_with_its_contents() {
        let (data, shelf) = filled(Duration::from_millis(1)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(shelf.kept(&of("p")).await.unwrap().is_none());
        shelf.tidy().await.unwrap();
        assert!(shelf.contents(&of("p"), 0).await.unwrap().is_none());
        assert!(!data.path().join("a/kept/p").exists(), "not even its directory");
    }

    #[tokio::test]
    async fn what_is_wanted_is_found_again() {
        let (_data, shelf) = filled(Duration::from_secs(60)).await;
        let keep = Keep::folders(vec!["/workspace".into()]);
        let (of_p, before) = (of("p"), Marks::default());
        let wanted = CollectionRequest { of: of_p, keep, before, unseen: false, started: true };
        shelf.want(&wanted).await.unwrap();
        let all = shelf.all_wanted().await.unwrap();
        assert_eq!(all.iter().map(|one| one.of.clone()).collect::<Vec<_>>(), [of("p")]);
        assert!(shelf.wanted(&of("p")).await.unwrap().is_some_and(|one| one.started));
        shelf.unwant(&of("p")).await.unwrap();
        shelf.unwant(&of("p")).await.unwrap();
        assert!(
            shelf.all_wanted().await.unwrap().is_empty() && shelf.wanted(&of("p")).await.unwrap().is_none()
        );
    }
}

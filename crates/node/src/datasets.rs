//! Datasets: files that a project stores on the node, copied into its sandboxes before their first run.
//!
//! ```text
//! <data>/datasets/<project>/<name>/dataset.json      names the current content; replaced atomically
//!                                 /<random>          content of one upload; unreferenced unless dataset.json names it
//! ```
//!
//! The guest of a sandbox writes datasets as the user who runs code, and verifies their hashes before they
//! become visible.

use std::collections::BTreeMap;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::Duration;

use api::dataset::{DATASET_BYTES_MAX, DATASETS_MAX, Dataset, check_name};
use api::files::{FileAsk, FilePath, Hashing};
use api::{Ran, limits};
use bytes::Bytes;
use futures_util::StreamExt as _;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

use guest_client::files::{Files, worked};
use guest_client::sandbox::Sandbox;
use host::error::Error;
use host::ledger::Ledger;
use host::objects::{Incoming, LedgerScope, Objects, Outgoing, is_full, key};
use host::{clock, machine};

const POINTER: &str = "dataset.json";

/// The datasets of all projects.
pub struct Datasets {
    objects: Objects,
    /// Held while datasets are counted and a dataset is added, so that concurrent uploads cannot exceed the
    /// limit.
    counting: Mutex<()>,
}

/// An upload of a dataset in progress. Dropping this value leaves an existing dataset unchanged.
pub struct Putting<'a> {
    datasets: &'a Datasets,
    project: String,
    name: String,
    object: String,
    sha256: Option<String>,
    incoming: Incoming,
}

/// Metadata of a dataset, and the name of the object that holds its content.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pointer {
    dataset: Dataset,
    object: String,
}

/// A dataset and its path in a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    project: String,
    path: FilePath,
    key: Path,
    dataset: Dataset,
}

impl Datasets {
    pub(crate) fn open(data: &FsPath, reserve_bytes: u64, ledger: &Arc<Ledger>) -> Result<Self, Error> {
        let tally = LedgerScope { ledger: Arc::clone(ledger), depth: 0 };
        let objects = Objects::open(data.join("datasets"), reserve_bytes, Some(tally))?;
        Ok(Self { objects, counting: Mutex::default() })
    }

    /// Lists the datasets of a project, ordered by name.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn list(&self, project: &str) -> Result<Vec<Dataset>, Error> {
        let mut all = Vec::new();
        for name in self.objects.names(&key([project])).await? {
            all.extend(self.pointer(project, &name).await?.map(|pointer| pointer.dataset));
        }
        Ok(all)
    }

    /// Starts an upload. Once it is complete, it replaces any existing dataset with the same name. Until
    /// then, both count against the project's quota.
    ///
    /// # Errors
    /// The name is invalid, the project has reached its maximum number of datasets, or its quota has no room
    /// for `size_bytes`.
    pub async fn begin(
        &self,
        project: &str,
        name: &str,
        sha256: Option<String>,
        size_bytes: Option<u64>,
    ) -> Result<Putting<'_>, Error> {
        check_name(name).map_err(Error::Request)?;
        self.check_count(project, name).await?;
        let object = random_name()?;
        let mut incoming = self.objects.begin(&key([project, name, &object])).await.map_err(full)?;
        if let Some(size_bytes) = size_bytes.filter(|size| *size <= DATASET_BYTES_MAX) {
            incoming.prepay(size_bytes)?;
        }
        let (project, name) = (project.to_owned(), name.to_owned());
        Ok(Putting { datasets: self, project, name, object, sha256, incoming })
    }

    /// Removes a dataset. Succeeds if it does not exist.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn remove(&self, project: &str, name: &str) -> Result<(), Error> {
        check_name(name).map_err(Error::Request)?;
        let _counting = self.counting.lock().await;
        self.objects.remove(&key([project, name, POINTER])).await?;
        self.objects.remove_below(&key([project, name]), None).await
    }

    /// Returns the datasets for a sandbox. Fails if any of them does not exist.
    pub(crate) async fn resolve(
        &self,
        project: &str,
        places: &BTreeMap<String, String>,
    ) -> Result<Vec<Placed>, Error> {
        let mut placed = Vec::new();
        for (path, name) in places {
            check_name(name).map_err(Error::Request)?;
            let path = FilePath::new(path.as_bytes()).map_err(Error::Request)?;
            let pointer = self.pointer(project, name).await?;
            let Pointer { dataset, object } = pointer.ok_or_else(|| Error::Request(missing(name)))?;
            let key = key([project, name, &object]);
            placed.push(Placed { project: project.to_owned(), path, key, dataset });
        }
        Ok(placed)
    }

    /// Copies datasets into a sandbox that was just started. If copying fails, removes the sandbox. If the
    /// startup is abandoned in the meantime, returns the sandbox at once.
    pub(crate) async fn put_in(
        &self,
        sandbox: Sandbox,
        disk_bytes: u64,
        placed: &[Placed],
        mut unwanted: watch::Receiver<bool>,
    ) -> Result<Sandbox, Error> {
        if placed.is_empty() {
            return Ok(sandbox);
        }
        let within = worked(placed.iter().map(|one| one.dataset.size_bytes).sum());
        let files = sandbox.files(disk_bytes);
        let put = async {
            for one in placed {
                self.put_one(&files, one).await?;
            }
            Ok(())
        };
        let put = tokio::select! {
            put = tokio::time::timeout(within, put) => {
                put.unwrap_or(Err(Error::Deadline { what: "copying datasets into the sandbox", after: within }))
            }
            // `Ok` does not match a closed channel, so the copy continues if the sender is gone.
            Ok(_) = unwanted.wait_for(|unwanted| *unwanted) => Ok(()),
        };
        match put {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.stop(Duration::ZERO).await?;
                Err(error)
            }
        }
    }

    /// Removes contents that no dataset references. Killed servers and disconnected clients leave such
    /// contents behind.
    pub(crate) async fn tidy(&self) -> Result<(), Error> {
        self.objects.sweep().await?;
        for project in self.objects.names(&Path::default()).await? {
            // An upload completes its content and references it under this lock, so unreferenced contents
            // found here are garbage.
            let _counting = self.counting.lock().await;
            for name in self.objects.names(&key([&*project])).await? {
                let named = self.pointer(&project, &name).await?.map(|pointer| pointer.object);
                self.remove_others(&project, &name, named.as_deref()).await?;
            }
        }
        Ok(())
    }

    /// Removes all contents of a dataset except `object`.
    async fn remove_others(&self, project: &str, name: &str, object: Option<&str>) -> Result<(), Error> {
        let mut found = self.objects.below(&key([project, name]));
        while let Some(meta) = found.next().await {
            let location = meta?.location;
            if location.filename() != Some(POINTER) && location.filename() != object {
                self.objects.remove(&location).await?;
            }
        }
        Ok(())
    }

    async fn put_one(&self, files: &Files, placed: &Placed) -> Result<(), Error> {
        let name = &placed.dataset.name;
        let (sha256, mut outgoing) = self.contents(placed).await?;
        let sha256 = Some(sha256);
        let (path, digest) = (placed.path.clone(), Hashing::Sha256);
        let ask = FileAsk::Write { path, offset: None, mode: None, sha256, digest };
        let told = |error: Error| {
            let Error::Guest(error) = error else { return error };
            let message = format!("cannot copy dataset {name:?} into the sandbox: {}", error.message);
            Error::Request(api::Error { message, ran: Ran::No, ..error })
        };
        let mut writing = files.write(ask).await.map_err(told)?;
        while let Some(bytes) = outgoing.next().await? {
            writing.push(bytes).await.map_err(told)?;
        }
        writing.finish().await.map(drop).map_err(told)
    }

    /// Returns the hash and the content of a dataset. If the dataset was replaced after the request, returns
    /// the hash and the content of the new dataset.
    async fn contents(&self, placed: &Placed) -> Result<(String, Outgoing), Error> {
        let name = &placed.dataset.name;
        if let Some(outgoing) = self.objects.read(&placed.key).await? {
            return Ok((placed.dataset.sha256.clone(), outgoing));
        }
        let gone = || Error::Request(missing(name));
        let Pointer { dataset, object } = self.pointer(&placed.project, name).await?.ok_or_else(gone)?;
        let outgoing = self.objects.read(&key([&*placed.project, &**name, &*object])).await?;
        Ok((dataset.sha256, outgoing.ok_or_else(gone)?))
    }

    async fn pointer(&self, project: &str, name: &str) -> Result<Option<Pointer>, Error> {
        Ok(self.objects.json(&key([project, name, POINTER])).await?.map(|(pointer, _)| pointer))
    }

    /// Returns an error if this dataset would exceed the project's maximum number of datasets.
    async fn check_count(&self, project: &str, name: &str) -> Result<(), Error> {
        let others = self.objects.names(&key([project])).await?;
        let count = others.iter().filter(|other| *other != name).count() + 1;
        if count > DATASETS_MAX {
            let (count, most) = (count as u64, DATASETS_MAX as u64);
            return Err(Error::Request(limits::exceeded("the number of datasets", count, most)));
        }
        Ok(())
    }
}

impl Putting<'_> {
    /// Appends bytes.
    ///
    /// # Errors
    /// The dataset is too large, the quota is exceeded, or the disk is full.
    pub async fn push(&mut self, bytes: &Bytes) -> Result<(), Error> {
        let size = self.incoming.size_bytes().saturating_add(bytes.len() as u64);
        if size > DATASET_BYTES_MAX {
            return Err(Error::Request(limits::exceeded(
                "the size of the dataset in bytes",
                size,
                DATASET_BYTES_MAX,
            )));
        }
        self.incoming.push(bytes).await.map_err(full)
    }

    /// Completes the upload and replaces an existing dataset atomically.
    ///
    /// # Errors
    /// See [`Putting::push`]. In addition, fails if the hash differs from the announced hash.
    pub async fn finish(self) -> Result<Dataset, Error> {
        let (size_bytes, sha256) = (self.incoming.size_bytes(), self.incoming.sha256());
        if self.sha256.as_ref().is_some_and(|promised| *promised != sha256) {
            return Err(Error::Request(api::Error::invalid(
                "the received bytes do not match content-digest",
                "Send the dataset again. If the error persists, check that no proxy changes the bytes.",
            )));
        }
        let _counting = self.datasets.counting.lock().await;
        self.datasets.check_count(&self.project, &self.name).await?;
        let Self { datasets, project, name, object, incoming, .. } = self;
        incoming.finish().await.map_err(full)?;
        let dataset = Dataset { name: name.clone(), size_bytes, sha256, created_at_ms: clock::wall_ms() };
        let pointer = Pointer { dataset: dataset.clone(), object: object.clone() };
        let own = key([&*project, &*name, &*object]);
        if let Err(error) = datasets.objects.put_json(&key([&*project, &*name, POINTER]), &pointer).await {
            datasets.objects.remove(&own).await?;
            return Err(full(error));
        }
        // The previous content is now unreferenced.
        datasets.remove_others(&project, &name, Some(&object)).await?;
        Ok(dataset)
    }
}

fn missing(name: &str) -> api::Error {
    api::Error {
        fix: "Use an existing dataset, or upload this dataset first.".into(),
        ..api::Error::not_found(format!("there is no dataset {name:?}"))
    }
}

fn no_room() -> Error {
    let why = "the remaining disk space is reserved".into();
    Error::Runtime(runtime::Error::Capacity { what: "the dataset", why })
}

fn full(error: Error) -> Error {
    if is_full(&error) { no_room() } else { error }
}

fn random_name() -> Result<String, Error> {
    let bytes: [u8; 16] = machine::random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ErrorCode;

    fn datasets() -> (tempfile::TempDir, Datasets) {
        let data = tempfile::tempdir().unwrap();
        let datasets = Datasets::open(data.path(), 0, &Arc::new(Ledger::new(data.path()))).unwrap();
        (data, datasets)
    }

    async fn put(datasets: &Datasets, name: &str, bytes: &'static [u8]) -> Result<Dataset, Error> {
        let mut putting = datasets.begin("p", name, None, None).await?;
        putting.push(&Bytes::from_static(bytes)).await?;
        putting.finish().await
    }

    fn code<T>(result: Result<T, Error>) -> ErrorCode {
        result.err().unwrap().to_api().code
    }

    async fn content(datasets: &Datasets, name: &str) -> Bytes {
        let places = BTreeMap::from([("x".to_owned(), name.to_owned())]);
        let placed = datasets.resolve("p", &places).await.unwrap();
        datasets.objects.read(&placed[0].key).await.unwrap().unwrap().next().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_dataset_is_the_one_before_until_the_next_is_whole() {
        let (data, datasets) = datasets();
        let first = put(&datasets, "a.csv", b"first").await.unwrap();
        assert_eq!(first.size_bytes, 5);
        let mut half = datasets.begin("p", "a.csv", None, None).await.unwrap();
        half.push(&Bytes::from_static(b"half")).await.unwrap();
        assert_eq!(content(&datasets, "a.csv").await, &b"first"[..]);
        drop(half);
        assert_eq!(content(&datasets, "a.csv").await, &b"first"[..]);
        let wrong = datasets.begin("p", "a.csv", Some("0".repeat(64)), None).await.unwrap();
        assert_eq!(code(wrong.finish().await), ErrorCode::InvalidRequest);
        let second = put(&datasets, "a.csv", b"second").await.unwrap();
        assert_eq!(content(&datasets, "a.csv").await, &b"second"[..]);
        assert_eq!(datasets.list("p").await.unwrap(), [second]);
        assert_eq!(std::fs::read_dir(data.path().join("datasets/p/a.csv")).unwrap().count(), 2);
        datasets.remove("p", "a.csv").await.unwrap();
        datasets.remove("p", "a.csv").await.unwrap();
        assert_eq!(datasets.list("p").await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_project_has_its_own_datasets_within_its_quota() {
        let data = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger::new(data.path()));
        let datasets = Datasets::open(data.path(), 0, &ledger).unwrap();
        ledger.set_quota("p", 20_000);
        put(&datasets, "a", b"12345").await.unwrap();
        // The metadata of a dataset counts against the quota too, and so do uploads in progress.
        let mut coming = datasets.begin("p", "b", None, Some(5)).await.unwrap();
        coming.push(&Bytes::from_static(b"12345")).await.unwrap();
        assert_eq!(code(datasets.begin("p", "c", None, Some(8000)).await), ErrorCode::QuotaExceeded);
        let mut longer = datasets.begin("p", "c", None, None).await.unwrap();
        assert_eq!(code(longer.push(&Bytes::from(vec![0; 8000])).await), ErrorCode::QuotaExceeded);
        drop((coming, longer));
        put(&datasets, "a", b"54321").await.unwrap();
        assert_eq!(datasets.list("p").await.unwrap().len(), 1);
        let places = BTreeMap::from([("x".to_owned(), "a".to_owned())]);
        assert_eq!(code(datasets.resolve("q", &places).await), ErrorCode::NotFound);
        assert_eq!(code(datasets.begin("p", "../x", None, None).await), ErrorCode::InvalidRequest);
        assert_eq!(datasets.list("q").await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_machine_without_room_takes_none() {
        let data = tempfile::tempdir().unwrap();
        let datasets = Datasets::open(data.path(), u64::MAX, &Arc::new(Ledger::new(data.path()))).unwrap();
        assert_eq!(code(put(&datasets, "a", b"1").await), ErrorCode::Capacity);
        assert_eq!(datasets.list("p").await.unwrap(), []);
    }

    #[tokio::test]
    async fn contents_that_no_dataset_names_are_removed_and_others_are_not() {
        let (_data, datasets) = datasets();
        put(&datasets, "a.csv", b"named").await.unwrap();
        // Simulates a server that is killed between writing contents and referencing them.
        for name in ["a.csv", "never.csv"] {
            let mut left = datasets.objects.begin(&key(["p", name, "left"])).await.unwrap();
            left.push(&Bytes::from_static(b"left")).await.unwrap();
            left.finish().await.unwrap();
        }
        datasets.tidy().await.unwrap();
        assert_eq!(content(&datasets, "a.csv").await, &b"named"[..]);
        assert!(!datasets.objects.has(&key(["p", "a.csv", "left"])).await.unwrap());
        assert!(!datasets.objects.has(&key(["p", "never.csv", "left"])).await.unwrap());
    }

    #[tokio::test]
    async fn a_dataset_that_is_replaced_while_a_sandbox_starts_is_the_one_in_its_place() {
        let (_data, datasets) = datasets();
        put(&datasets, "a.csv", b"first").await.unwrap();
        let places = BTreeMap::from([("x".to_owned(), "a.csv".to_owned())]);
        let placed = datasets.resolve("p", &places).await.unwrap();
        let second = put(&datasets, "a.csv", b"second").await.unwrap();
        let (sha256, mut outgoing) = datasets.contents(&placed[0]).await.unwrap();
        assert_eq!(
            (sha256, outgoing.next().await.unwrap().unwrap()),
            (second.sha256, Bytes::from_static(b"second"))
        );
        datasets.remove("p", "a.csv").await.unwrap();
        assert_eq!(code(datasets.contents(&placed[0]).await), ErrorCode::NotFound);
    }
}

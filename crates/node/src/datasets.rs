//! Datasets: files that a project stores on the node, copied into its sandboxes before their first run.
//!
//! ```text
//! <data>/datasets/<project>/<name>/dataset.json      names the current content; replaced atomically
//!                                 /<random>          content of one upload; unreferenced unless dataset.json names it
//! ```
//!
//! The guest of a sandbox writes datasets as the user who runs code, and verifies their hashes before they
//! become visible.
//!
//! | module | contents |
//! |---|---|
//! | `upload` | the upload of a dataset |
//! | `placement` | the placement of datasets in a sandbox |

mod placement;
mod upload;

use std::path::Path as FsPath;
use std::sync::Arc;

use api::dataset::{DATASET_BYTES_MAX, DATASETS_MAX, Dataset, check_name};
use api::limits;
use futures_util::StreamExt as _;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use host::error::Error;
use host::ledger::Ledger;
use host::machine;
use host::objects::{LedgerScope, Objects, key};
pub(crate) use placement::Placed;
pub use upload::Putting;
use upload::full;

const POINTER: &str = "dataset.json";

/// The datasets of all projects.
pub struct Datasets {
    objects: Objects,
    /// Held while datasets are counted and a dataset is added, so that concurrent uploads cannot exceed the
    /// limit.
    counting: Mutex<()>,
}

/// Metadata of a dataset, and the name of the object that holds its content.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pointer {
    dataset: Dataset,
    object: String,
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

fn missing(name: &str) -> api::Error {
    api::Error {
        fix: "Use an existing dataset, or upload this dataset first.".into(),
        ..api::Error::not_found(format!("there is no dataset {name:?}"))
    }
}

fn random_name() -> Result<String, Error> {
    let bytes: [u8; 16] = machine::random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::ErrorCode;
    use bytes::Bytes;

    use super::*;

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

//! The upload of a dataset.

use api::dataset::{DATASET_BYTES_MAX, Dataset};
use api::limits;
use bytes::Bytes;
use host::clock;
use host::error::Error;
use host::objects::{Incoming, is_full, key};

use super::{Datasets, POINTER, Pointer};

/// An upload of a dataset in progress. Dropping this value leaves an existing dataset unchanged.
pub struct Putting<'a> {
    pub(super) datasets: &'a Datasets,
    pub(super) project: String,
    pub(super) name: String,
    pub(super) object: String,
    pub(super) sha256: Option<String>,
    pub(super) incoming: Incoming,
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

/// Converts the error for a full disk into the error for a machine without room for the dataset.
pub(super) fn full(error: Error) -> Error {
    if is_full(&error) { no_room() } else { error }
}

fn no_room() -> Error {
    let why = "the remaining disk space is reserved".into();
    Error::Runtime(runtime::Error::Capacity { what: "the dataset", why })
}

//! Datasets of a session: files that a client has registered, and that every sandbox of the session gets.

use api::files::FilePath;
use api::session::{DATASETS_BYTES_MAX, DATASETS_MAX, SessionDataset, dataset_path};
use api::{Error, ErrorCode, limits};
use node::{Call, folder};
use sha2::{Digest, Sha256};

use super::{Live, check_open};
use crate::audit::hex;
use crate::fault::Answer;
use crate::platform::Platform;
use crate::store::SessionRecord;

impl Live {
    /// Adds a dataset to the session. Its content must already be stored. From now on, every sandbox of the
    /// session gets the dataset.
    ///
    /// # Errors
    /// Returns an error if another name maps to the same file, there are too many datasets, or the store does
    /// not respond (requirement A5.02).
    pub async fn add_dataset(
        &self,
        platform: &Platform,
        name: &str,
        size_bytes: u64,
    ) -> Answer<SessionDataset> {
        let mut record = self.record.lock().await;
        let dataset = self.check_dataset(&record, name, size_bytes)?;
        record.session.datasets.retain(|other| other.name != name);
        record.session.datasets.push(dataset.clone());
        // The sandbox may have the previous content of the dataset, so copy the dataset again.
        record.placed.retain(|path| *path != dataset.path);
        self.save(platform, &record).await?;
        Ok(dataset)
    }

    /// Returns true if the session is open and has a dataset with this name, which means that the dataset's
    /// stored content is in use.
    pub async fn has_dataset(&self, name: &str) -> bool {
        let record = self.record.lock().await;
        check_open(&record.session).is_ok() && record.session.datasets.iter().any(|one| one.name == name)
    }

    /// Checks that a dataset with this name can be added, before its content is received.
    ///
    /// # Errors
    /// See [`Live::add_dataset`].
    pub async fn accepts_dataset(&self, name: &str) -> Answer<()> {
        let record = self.record.lock().await;
        Ok(self.check_dataset(&record, name, 0).map(drop)?)
    }

    fn check_dataset(
        &self,
        record: &SessionRecord,
        name: &str,
        size_bytes: u64,
    ) -> Result<SessionDataset, Error> {
        check_open(&record.session)?;
        let path = dataset_path(name)?;
        let others = || record.session.datasets.iter().filter(|other| other.name != name);
        if let Some(other) = others().find(|other| other.path == path) {
            return Err(Error {
                code: ErrorCode::Conflict,
                ..Error::invalid(
                    format!("the datasets {:?} and {name:?} would have the same path {path}", other.name),
                    "Give one of the datasets another name.",
                )
            });
        }
        if others().count() >= DATASETS_MAX {
            return Err(limits::exceeded(
                "the number of datasets",
                others().count() as u64 + 1,
                DATASETS_MAX as u64,
            ));
        }
        let whole = others().map(|other| other.size_bytes).sum::<u64>().saturating_add(size_bytes);
        if whole > DATASETS_BYTES_MAX {
            return Err(limits::exceeded(
                "the total size of the session's datasets in bytes",
                whole,
                DATASETS_BYTES_MAX,
            ));
        }
        Ok(SessionDataset { name: name.to_owned(), path, size_bytes })
    }

    /// Copies the datasets that the sandbox lacks (requirement A5.02).
    pub(super) async fn place_datasets(
        &self,
        platform: &Platform,
        record: &mut SessionRecord,
        call: &Call,
    ) -> Answer<()> {
        let datasets = record.session.datasets.clone();
        let missing = datasets.iter().filter(|dataset| !record.placed.contains(&dataset.path));
        let missing: Vec<_> = missing.cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        for dataset in missing {
            let outgoing = self.folder.read(&["datasets", &dataset_key(&dataset.name)]).await?;
            let gone = || Error {
                code: ErrorCode::Platform,
                fix: "Register the dataset again.".into(),
                ..Error::not_found(format!("the content of the dataset {:?} is missing", dataset.name))
            };
            let outgoing = outgoing.ok_or_else(gone)?;
            folder::give(&call.files(), FilePath::new(dataset.path.as_bytes())?, 0o644, outgoing).await?;
            record.placed.push(dataset.path);
        }
        self.save(platform, record).await?;
        Ok(())
    }
}

/// Returns the key under which the content of a dataset is stored.
pub fn dataset_key(name: &str) -> String {
    hex(&Sha256::digest(name))
}

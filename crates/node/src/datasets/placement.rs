//! The placement of datasets in a sandbox: they are resolved when the sandbox is planned, and copied when its
//! processes have started.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Ran;
use api::dataset::{Dataset, check_name};
use api::files::{FileAsk, FilePath, Hashing};
use guest_client::files::{Files, worked};
use guest_client::sandbox::Sandbox;
use host::error::Error;
use host::objects::{Outgoing, key};
use object_store::path::Path;
use tokio::sync::watch;

use super::{Datasets, Pointer, missing};

/// A dataset and its path in a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    project: String,
    path: FilePath,
    pub(super) key: Path,
    dataset: Dataset,
}

impl Datasets {
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
    pub(super) async fn contents(&self, placed: &Placed) -> Result<(String, Outgoing), Error> {
        let name = &placed.dataset.name;
        if let Some(outgoing) = self.objects.read(&placed.key).await? {
            return Ok((placed.dataset.sha256.clone(), outgoing));
        }
        let gone = || Error::Request(missing(name));
        let Pointer { dataset, object } = self.pointer(&placed.project, name).await?.ok_or_else(gone)?;
        let outgoing = self.objects.read(&key([&*placed.project, &**name, &*object])).await?;
        Ok((dataset.sha256, outgoing.ok_or_else(gone)?))
    }
}

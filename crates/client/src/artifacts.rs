//! Requests for artifacts and datasets.

use std::time::{Duration, Instant};

use api::artifact::{Artifact, Artifacts, WAIT_MS_MAX};
use api::dataset::Dataset;
use api::files::DIGEST_HEADER;
use api::server::Page;
use api::{ExecId, SandboxId};
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::HeaderName;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::client::{Client, escape};
use crate::error::Error;
use crate::files::{digest, hex, sending};
use crate::link::{ApiRequest, FailedAttempt};

/// Maximum time that one request asks the server to wait. Idle timeouts of common proxies are longer.
const WAIT_ONCE: Duration = Duration::from_secs(20);
/// Pause before artifacts that are still pending are requested again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

impl Client {
    /// Returns the artifacts of an exec that was started with `artifacts`. Waits up to `wait` until the exec
    /// has ended and its files are collected. If that takes longer, the result is incomplete and marked as
    /// `pending`. Works even after the sandbox has ended.
    ///
    /// # Errors
    /// Returns an error if no artifacts are stored for the exec (`not_found`).
    pub async fn artifacts(
        &self,
        sandbox: &SandboxId,
        exec: &ExecId,
        wait: Duration,
    ) -> Result<Artifacts, Error> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait_ms = u64::try_from(left.min(WAIT_ONCE).as_millis()).unwrap_or(WAIT_MS_MAX);
            let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/artifacts?wait_ms={wait_ms}");
            let found: Artifacts = self.link.call(&ApiRequest::get(path)).await?;
            if !found.pending || left.is_zero() {
                return Ok(found);
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Returns the artifacts of all execs of a sandbox.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn all_artifacts(&self, sandbox: &SandboxId) -> Result<Vec<Artifacts>, Error> {
        let (mut items, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let after =
                cursor.as_deref().map(|cursor| format!("?cursor={}", escape(cursor))).unwrap_or_default();
            let page: Page<Artifacts> =
                self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/artifacts{after}"))).await?;
            let is_over = page.items.is_empty();
            items.extend(page.items);
            cursor = page.next;
            if is_over || cursor.is_none() {
                return Ok(items);
            }
        }
    }

    /// Returns the bytes of an artifact after verifying its hash. Holds the whole artifact in memory.
    ///
    /// # Errors
    /// Returns an error if the artifact is no longer stored (`not_found`).
    pub async fn artifact(
        &self,
        sandbox: &SandboxId,
        exec: &ExecId,
        item: &Artifact,
    ) -> Result<Vec<u8>, Error> {
        let mut attempts = self.link.attempts();
        loop {
            let mut bytes = Vec::new();
            match self.try_artifact(sandbox, exec, item, &mut bytes).await {
                Ok(()) => return Ok(bytes),
                Err(failure) => self.link.pause(&mut attempts, failure).await?,
            }
        }
    }

    /// Writes the bytes of an artifact to `into` and verifies its hash. Does not retry, because bytes that
    /// have been written cannot be taken back.
    ///
    /// # Errors
    /// Fails like [`Client::artifact`]. Also fails if the connection breaks or a write to `into` fails.
    pub async fn artifact_into(
        &self,
        sandbox: &SandboxId,
        exec: &ExecId,
        item: &Artifact,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Error> {
        self.try_artifact(sandbox, exec, item, into).await.map_err(|failure| failure.error)
    }

    /// Stores bytes as a dataset of the project. Replaces an existing dataset with the same name.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or if there is not enough space.
    pub async fn put_dataset(&self, name: &str, bytes: Bytes) -> Result<Dataset, Error> {
        let digest = digest(&Sha256::digest(&bytes).into());
        let ask = ApiRequest::new(Method::PUT, dataset(name)).raw(bytes);
        self.link.call(&ask.header(HeaderName::from_static(DIGEST_HEADER), &digest)).await
    }

    /// Stores all bytes from a reader as a dataset, like [`Client::put_dataset`]. Does not retry, because the
    /// reader can be read only once.
    ///
    /// # Errors
    /// Fails like [`Client::put_dataset`]. Also fails if the connection breaks.
    pub async fn put_dataset_from(
        &self,
        name: &str,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<Dataset, Error> {
        let mut hasher = Sha256::new();
        let ask = ApiRequest::new(Method::PUT, dataset(name));
        let sending = sending::Sending { link: &self.link, ask: &ask, before: 0, seen: &|_| {} };
        let sent: Dataset =
            sending.send(from, &mut |bytes| hasher.update(bytes)).await.map_err(|failure| failure.error)?;
        if sent.sha256 != hex(&hasher.finalize().into()) {
            return Err(self
                .link
                .protocol(format!("the hash of dataset {name} does not match the data sent")));
        }
        Ok(sent)
    }

    /// Lists the project's datasets, sorted by name.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn datasets(&self) -> Result<Vec<Dataset>, Error> {
        let page: Page<Dataset> = self.link.call(&ApiRequest::get("/v1/datasets")).await?;
        Ok(page.items)
    }

    /// Removes a dataset. Succeeds even if the dataset does not exist.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn remove_dataset(&self, name: &str) -> Result<(), Error> {
        self.link.done(&ApiRequest::new(Method::DELETE, dataset(name))).await
    }

    async fn try_artifact(
        &self,
        sandbox: &SandboxId,
        exec: &ExecId,
        item: &Artifact,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), FailedAttempt> {
        let fatal = |error| FailedAttempt { error, trouble: None, pause: None };
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/artifacts/{}", item.number);
        let mut response = self.link.open(&ApiRequest::get(path)).await?;
        let silence = self.link.options.answer_within;
        let (mut hasher, mut left) = (Sha256::new(), item.size_bytes);
        loop {
            let bytes = match tokio::time::timeout(silence, response.chunk()).await {
                Ok(Ok(Some(bytes))) => bytes,
                Ok(Ok(None)) => break,
                Ok(Err(error)) => return Err(self.link.cut(crate::link::root_cause(&error))),
                Err(_) => return Err(self.link.cut(format!("received no data for {silence:?}"))),
            };
            let fits = left.checked_sub(bytes.len() as u64);
            left = fits.ok_or_else(|| {
                fatal(self.link.protocol("received more bytes than the size of the artifact".into()))
            })?;
            hasher.update(&bytes);
            into.write_all(&bytes).await.map_err(|error| {
                fatal(Error::Local { act: "write an artifact".into(), why: error.to_string() })
            })?;
        }
        if hex(&hasher.finalize().into()) != item.sha256 {
            return Err(fatal(self.link.protocol(format!(
                "the hash of artifact {} does not match the data received",
                item.number
            ))));
        }
        into.flush()
            .await
            .map_err(|error| fatal(Error::Local { act: "write an artifact".into(), why: error.to_string() }))
    }
}

fn dataset(name: &str) -> String {
    format!("/v1/datasets/{}", escape(name))
}

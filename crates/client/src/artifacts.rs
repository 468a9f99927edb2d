//! What a client does with artifacts and datasets.

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
use crate::link::{Ask, Failure};

/// One answer waits so long: less than anything in between does.
const WAIT_ONCE: Duration = Duration::from_secs(20);
/// What there is between two questions at least.
const ASK_AGAIN: Duration = Duration::from_millis(50);

impl Client {
    /// What was kept of the files of an exec that was started with `artifacts`. Waits so long for the exec to end and its files to
    /// be read; what is still `pending` then is told so. Works after its sandbox is gone.
    ///
    /// # Errors
    /// Nothing is kept of it (`not_found`).
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
            let found: Artifacts = self.link.call(&Ask::get(path)).await?;
            if !found.pending || left.is_zero() {
                return Ok(found);
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// What was kept of all execs of a sandbox.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn all_artifacts(&self, sandbox: &SandboxId) -> Result<Vec<Artifacts>, Error> {
        let (mut items, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let after =
                cursor.as_deref().map(|cursor| format!("?cursor={}", escape(cursor))).unwrap_or_default();
            let page: Page<Artifacts> =
                self.link.call(&Ask::get(format!("/v1/sandboxes/{sandbox}/artifacts{after}"))).await?;
            let is_over = page.items.is_empty();
            items.extend(page.items);
            cursor = page.next;
            if is_over || cursor.is_none() {
                return Ok(items);
            }
        }
    }

    /// The bytes of an artifact, compared with its hash. It is held in memory.
    ///
    /// # Errors
    /// It is not kept any more (`not_found`).
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

    /// Writes the bytes of an artifact, compared with its hash. Asked once: what was written cannot be taken back.
    ///
    /// # Errors
    /// As [`Client::artifact`]; or the connection broke, or it cannot be written.
    pub async fn artifact_into(
        &self,
        sandbox: &SandboxId,
        exec: &ExecId,
        item: &Artifact,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Error> {
        self.try_artifact(sandbox, exec, item, into).await.map_err(|failure| failure.error)
    }

    /// Keeps bytes as a dataset of the project. It takes the place of the one before.
    ///
    /// # Errors
    /// The name is none, or there is no room for it.
    pub async fn put_dataset(&self, name: &str, bytes: Bytes) -> Result<Dataset, Error> {
        let digest = digest(&Sha256::digest(&bytes).into());
        let ask = Ask::new(Method::PUT, dataset(name)).raw(bytes);
        self.link.call(&ask.header(HeaderName::from_static(DIGEST_HEADER), &digest)).await
    }

    /// Keeps everything that comes out of a reader, likewise. Asked once: a reader gives its bytes once.
    ///
    /// # Errors
    /// As [`Client::put_dataset`]; or the connection broke.
    pub async fn put_dataset_from(
        &self,
        name: &str,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<Dataset, Error> {
        let mut hasher = Sha256::new();
        let ask = Ask::new(Method::PUT, dataset(name));
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

    /// The project's datasets, by name.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn datasets(&self) -> Result<Vec<Dataset>, Error> {
        let page: Page<Dataset> = self.link.call(&Ask::get("/v1/datasets")).await?;
        Ok(page.items)
    }

    /// Removes a dataset. One that is not there is fine.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn remove_dataset(&self, name: &str) -> Result<(), Error> {
        self.link.done(&Ask::new(Method::DELETE, dataset(name))).await
    }

    async fn try_artifact(
        &self,
        sandbox: &SandboxId,
        exec: &ExecId,
        item: &Artifact,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Failure> {
        let fatal = |error| Failure { error, trouble: None, pause: None };
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/artifacts/{}", item.number);
        let mut response = self.link.open(&Ask::get(path)).await?;
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

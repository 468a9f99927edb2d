//! Indexes of packages: fetched from an upstream, parsed, and cached for a minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::policy::Preset;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Gate, next, nothing};
use crate::party::Party;
use crate::{Refusal, RefusalKind};

/// Maximum size in bytes of the index of one package.
const INDEX_BYTES_MAX: usize = 32 << 20;
/// Time during which a cached index is served without being fetched again.
const INDEX_FRESH: Duration = Duration::from_secs(60);
/// Maximum total size in bytes of all cached indexes.
const INDEXES_BYTES_MAX: usize = 64 << 20;
/// Maximum number of indexes that are fetched and parsed at the same time. Parsing an index takes several
/// times its size in memory.
const INDEXES_AT_ONCE: usize = 4;
/// Timeout for fetching a whole index.
const INDEX_WITHIN: Duration = Duration::from_secs(120);
/// Timeout for obtaining a permit to fetch an index.
const TURN_WITHIN: Duration = Duration::from_secs(30);

/// The cached indexes by key, and the permits to fetch more.
pub(super) struct IndexCache {
    indexes: Mutex<HashMap<String, (Instant, Arc<Index>)>>,
    turns: Semaphore,
}

/// The parsed index of one package.
pub(super) struct Index {
    pub(super) files: Vec<IndexEntry>,
    /// The page that is served to sandboxes.
    pub(super) page: Bytes,
}

/// A request for a package's index, and the parser for the response.
pub(super) struct IndexRequest {
    pub(super) kind: Preset,
    pub(super) package: String,
    pub(super) minimum_age_ms: u64,
    pub(super) url: String,
    pub(super) accept: &'static str,
    pub(super) parse: Parse,
}

/// A parser for an index, which takes the content type of the response, its final URL, and its body.
pub(super) type Parse = fn(&IndexRequest, &str, &str, &[u8]) -> Option<Index>;

/// One file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// The file's name, which needs no escaping in a URL.
    pub(super) name: String,
    /// The file's URL at the upstream.
    pub(super) url: String,
    pub(super) hash: Hash,
    /// True if the file is younger than the policy allows, or its age is unknown.
    pub(super) is_young: bool,
}

/// The expected hash of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// The SHA-256, in hexadecimal digits.
    Sha256(String),
    /// The SHA-512, in base64.
    Sha512(String),
    /// The gate does not know the hash; the installer verifies the file.
    Unknown,
}

impl Gate {
    /// Returns the index of a package, which may be up to a minute old.
    pub(super) async fn index(&self, asking: IndexRequest, party: &Party) -> Result<Arc<Index>, Refusal> {
        if let Some(index) = self.indexes.known(&asking.key()) {
            return Ok(index);
        }
        // Each sandbox may fetch one index at a time, and all sandboxes together [`INDEXES_AT_ONCE`], because
        // parsing an index takes several times its size in memory.
        let turn = async { (party.index.acquire().await, self.indexes.turns.acquire().await) };
        let turn = tokio::time::timeout(TURN_WITHIN, turn).await;
        let _turn =
            turn.map_err(|_| Refusal::unreachable("too many package index requests are in progress".into()))?;
        // An earlier holder of the permits may have fetched the same index.
        if let Some(index) = self.indexes.known(&asking.key()) {
            return Ok(index);
        }
        let (key, name) = (asking.key(), asking.package.clone());
        let fetched = tokio::time::timeout(INDEX_WITHIN, self.fetch_index(&asking)).await;
        let (kind, at, body) =
            fetched.map_err(|_| Refusal::unreachable("the package index does not respond".into()))??;
        let parsed = tokio::task::spawn_blocking(move || (asking.parse)(&asking, &kind, &at, &body)).await;
        let index = parsed.ok().flatten().map(Arc::new);
        let index =
            index.ok_or_else(|| Refusal::unreachable(format!("cannot parse the package index of {name}")))?;
        self.indexes.keep(key, &index);
        Ok(index)
    }

    /// Fetches an index, and returns its content type, its final URL and its body.
    async fn fetch_index(&self, asking: &IndexRequest) -> Result<(String, String, Vec<u8>), Refusal> {
        let mut response = self.fetch(&asking.url, &[("accept", asking.accept)]).await?;
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let (kind, at) = (kind.unwrap_or_default().to_owned(), response.url().to_string());
        let mut body = Vec::new();
        while let Some(piece) = next(&mut response).await? {
            if body.len() + piece.len() > INDEX_BYTES_MAX {
                return Err(Refusal::unreachable(format!(
                    "the package index of {} is too long",
                    asking.package
                )));
            }
            body.extend_from_slice(&piece);
        }
        Ok((kind, at, body))
    }
}

impl IndexCache {
    pub(super) fn new() -> Self {
        Self { indexes: Mutex::default(), turns: Semaphore::new(INDEXES_AT_ONCE) }
    }

    /// Returns a cached index that is fresh enough to be served.
    fn known(&self, key: &str) -> Option<Arc<Index>> {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = indexes.get(key).filter(|(since, _)| since.elapsed() < INDEX_FRESH);
        fresh.map(|(_, index)| Arc::clone(index))
    }

    fn keep(&self, key: String, index: &Arc<Index>) {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|_, (since, _)| since.elapsed() < INDEX_FRESH);
        let all: usize = indexes.values().map(|(_, index)| index.weight()).sum();
        if all + index.weight() > INDEXES_BYTES_MAX {
            indexes.clear();
        }
        indexes.insert(key, (Instant::now(), Arc::clone(index)));
    }
}

impl IndexRequest {
    fn key(&self) -> String {
        format!("{} {} {}", self.kind.name(), self.minimum_age_ms, self.package)
    }
}

impl Index {
    /// Returns the file with this name, if the policy allows it.
    pub(super) fn file(&self, name: &str) -> Result<&IndexEntry, Refusal> {
        let found = self.files.iter().find(|entry| entry.name == name).ok_or_else(|| nothing(name))?;
        if found.is_young {
            let why = format!(
                "{name} has not reached the minimum package age of this sandbox, or its age is unknown"
            );
            return Err(Refusal { kind: RefusalKind::Denied, why });
        }
        Ok(found)
    }

    /// Returns the approximate size of the index in memory, in bytes.
    fn weight(&self) -> usize {
        self.page.len()
            + self
                .files
                .iter()
                .map(|file| size_of::<IndexEntry>() + file.url.len() + file.name.len() + 128)
                .sum::<usize>()
    }
}

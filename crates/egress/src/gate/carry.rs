//! The transfer of one file to a sandbox, from the cache or from the upstream. The file is hashed and
//! metered. A file from the upstream is cached if it matches the hash in its index.

use std::io;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use api::policy::Installed;
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use sha2::{Digest, Sha256, Sha512};
use streamed::Feed;
use tokio::io::AsyncReadExt as _;

use super::index::{Hash, IndexEntry};
use super::request::{PackageRequest, allow};
use super::store::PartialPackage;
use super::{ANSWER_WITHIN, Gate, Recipient};
use crate::Refusal;
use crate::body::Body;
use crate::flow::SPENT;

/// Maximum number of bytes in one read of a cached file.
const PIECE_BYTES: usize = 256 << 10;
/// Maximum number of chunks that are buffered for a sandbox that does not read.
const PIECES_WAITING: usize = 2;
/// Maximum size of a package file in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// The running hash of the bytes transferred so far.
enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// The reason why a transfer ends early.
enum Cut {
    /// The program has disconnected, or the rest of the file cannot be read or is too long.
    Gone,
    /// The policy no longer allows the transfer, or the file does not match its hash.
    Refused(String),
}

/// The sending half of a transfer to a sandbox.
struct TransferSender {
    to: Feed,
    /// Tracks the response body. It can no longer be upgraded once the program has stopped reading.
    heard: Weak<()>,
    party: Arc<crate::Party>,
    policy: tokio::sync::watch::Receiver<api::policy::Policy>,
    kind: api::policy::Preset,
    package: String,
}

impl Gate {
    /// Sends a file to a sandbox.
    pub(super) async fn give(
        &self,
        entry: &IndexEntry,
        to: Recipient<'_>,
    ) -> Result<Response<Body>, Refusal> {
        let key = to.key(entry);
        if let Some((file, size)) = self.store.open(&key).await {
            let (way, response) = TransferSender::open(to, Some(size));
            let (store, entry) = (Arc::clone(&self.store), entry.clone());
            tokio::spawn(async move {
                if !way.carry_kept(file, &entry).await {
                    store.forget(&key).await;
                }
            });
            return Ok(response);
        }
        let answer = self.fetch(&entry.url, &[]).await?;
        // A file whose hash is unknown must at least have a known length, so that truncation is detected.
        if answer.status() != 200 || (entry.hash == Hash::Unknown && answer.content_length().is_none()) {
            return Err(Refusal::unreachable("the package index returned an incomplete response".into()));
        }
        if answer.content_length().is_some_and(|length| length > FILE_BYTES_MAX) {
            return Err(Refusal::unreachable(format!("{} is too large", entry.name)));
        }
        let part = self.store.begin(&key).await;
        let (way, response) = TransferSender::open(to, answer.content_length());
        let (store, entry) = (Arc::clone(&self.store), entry.clone());
        tokio::spawn(async move {
            if let Some(part) = way.carry_fetched(answer, part, &entry).await {
                store.keep(part).await;
            }
        });
        Ok(response)
    }

    /// Forwards a response as it arrives, without caching it.
    pub(super) fn pass(&self, answer: reqwest::Response, to: Recipient<'_>) -> Response<Body> {
        let (mut way, response) = TransferSender::open(to, answer.content_length());
        let mut answer = answer;
        tokio::spawn(async move {
            loop {
                match tokio::time::timeout(ANSWER_WITHIN, answer.chunk()).await {
                    Ok(Ok(Some(piece))) => {
                        if let Err(cut) = way.send(piece).await {
                            return way.cut(&cut, "");
                        }
                    }
                    Ok(Ok(None)) => return,
                    Ok(Err(_)) | Err(_) => return way.cut(&Cut::Gone, ""),
                }
            }
        });
        response
    }
}

impl TransferSender {
    fn open(to: Recipient<'_>, length: Option<u64>) -> (Self, Response<Body>) {
        let (sender, body) = streamed::body(PIECES_WAITING);
        let reader = Arc::new(());
        let heard = Arc::downgrade(&reader);
        let body = body.map_err(move |error| {
            let _reader = &reader;
            error.into()
        });
        let mut response = Response::new(body.boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if let Some(length) = length {
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        let Recipient { party, policy, kind, package, .. } = to;
        (Self { to: sender, heard, party: Arc::clone(party), policy, kind, package }, response)
    }

    /// Sends a cached file. Returns false if the file is unreadable or no longer matches its hash.
    async fn carry_kept(mut self, mut file: tokio::fs::File, entry: &IndexEntry) -> bool {
        let mut hasher = Hasher::of(&entry.hash);
        let mut last: Option<Bytes> = None;
        loop {
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            match file.read_buf(&mut piece).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => {
                    self.cut(&Cut::Gone, &entry.name);
                    return false;
                }
            }
            hasher.update(&piece);
            if let Err(cut) = self.pass_on(&mut last, piece.freeze()).await {
                self.cut(&cut, &entry.name);
                // Only the transfer failed; the file is still valid.
                return true;
            }
        }
        self.end(hasher, last, entry, true).await
    }

    /// Sends a file as it arrives from the upstream. Returns the partial file for the cache if it is complete
    /// and matches its hash.
    async fn carry_fetched(
        mut self,
        mut answer: reqwest::Response,
        mut part: Option<PartialPackage>,
        entry: &IndexEntry,
    ) -> Option<PartialPackage> {
        let (mut hasher, mut bytes) = (Hasher::of(&entry.hash), 0);
        let expected = answer.content_length();
        let mut last: Option<Bytes> = None;
        loop {
            let piece = match tokio::time::timeout(ANSWER_WITHIN, answer.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => break,
                Ok(Err(_)) | Err(_) => {
                    self.cut(&Cut::Gone, &entry.name);
                    return None;
                }
            };
            bytes += piece.len() as u64;
            hasher.update(&piece);
            if let Some(open) = &mut part
                && !open.add(&piece).await
            {
                part = None;
            }
            // The download stops as soon as the program stops reading.
            let passed = self.pass_on(&mut last, piece).await;
            if let Err(cut) = passed.and(if bytes > FILE_BYTES_MAX { Err(Cut::Gone) } else { Ok(()) }) {
                self.cut(&cut, &entry.name);
                return None;
            }
        }
        if expected.is_some_and(|expected| expected != bytes) {
            self.cut(&Cut::Gone, &entry.name);
            return None;
        }
        if self.end(hasher, last, entry, false).await { part } else { None }
    }

    /// Sends the previous chunk and holds this one back. The last chunk of a file is sent only after the hash
    /// of the whole file has been checked.
    async fn pass_on(&mut self, last: &mut Option<Bytes>, piece: Bytes) -> Result<(), Cut> {
        match last.replace(piece) {
            Some(before) => self.send(before).await,
            None => Ok(()),
        }
    }

    /// Checks the hash and sends the last chunk. Returns false if the hash does not match.
    async fn end(mut self, hasher: Hasher, last: Option<Bytes>, entry: &IndexEntry, cached: bool) -> bool {
        let Some(hash) = hasher.compared(&entry.hash) else {
            tracing::warn!(
                file = entry.name,
                cached,
                "a package does not match the hash in the package index"
            );
            self.cut(
                &Cut::Refused("the file does not match the hash in the package index".into()),
                &entry.name,
            );
            return false;
        };
        let sent = match last {
            Some(last) => self.send(last).await,
            None => Ok(()),
        };
        match sent {
            Ok(()) => self.installed(entry, hash, cached),
            Err(cut) => self.cut(&cut, &entry.name),
        }
        true
    }

    /// Sends a chunk at the policy's rate. Fails if the policy no longer allows the transfer, or if the
    /// program has stopped reading.
    async fn send(&mut self, piece: Bytes) -> Result<(), Cut> {
        loop {
            let wait = {
                let policy = self.policy.borrow_and_update();
                let wanted = PackageRequest { kind: self.kind, package: self.package.clone(), rest: "" };
                allow(&policy, &wanted).map_err(|refusal| Cut::Refused(refusal.why))?;
                self.party.wait(&policy).ok_or_else(|| Cut::Refused(SPENT.into()))?
            };
            if wait.is_zero() {
                break;
            }
            if self.heard.strong_count() == 0 {
                return Err(Cut::Gone);
            }
            tokio::time::sleep(wait).await;
        }
        self.party.carried(piece.len(), &self.policy.borrow());
        let mut changes = self.policy.clone();
        let mut sending = std::pin::pin!(self.to.send(piece));
        loop {
            tokio::select! {
                sent = &mut sending => return sent.map_err(|_| Cut::Gone),
                // A policy change ends the transfer even if the program does not read.
                Ok(()) = changes.changed() => {
                    let wanted = PackageRequest { kind: self.kind, package: self.package.clone(), rest: "" };
                    allow(&changes.borrow(), &wanted).map_err(|refusal| Cut::Refused(refusal.why))?;
                }
            }
        }
    }

    fn installed(&self, entry: &IndexEntry, hash: String, cached: bool) {
        // A file that belongs to no package is an index, which is not reported.
        if !self.package.is_empty() {
            let (kind, package, file) = (self.kind, self.package.clone(), entry.name.clone());
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let at_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            self.party.tell_installed(Installed { kind, package, file, hash, cached, at_ms });
        }
    }

    /// Aborts the response, so that it cannot be mistaken for a complete file. Reports the reason if the
    /// transfer was refused.
    fn cut(self, cut: &Cut, file: &str) {
        if let Cut::Refused(why) = cut {
            self.party
                .tell_package(&format!("{} {file}", self.package), Err(&format!("disconnected: {why}")));
        }
        self.to.abort(io::ErrorKind::ConnectionReset.into());
    }
}

impl Hasher {
    fn of(hash: &Hash) -> Self {
        match hash {
            Hash::Sha256(_) | Hash::Unknown => Self::Sha256(Sha256::new()),
            Hash::Sha512(_) => Self::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Returns the hash as text, or `None` if it differs from the expected hash.
    fn compared(self, expected: &Hash) -> Option<String> {
        let made = match self {
            Self::Sha256(hasher) => hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
            Self::Sha512(hasher) => base64::prelude::BASE64_STANDARD.encode(hasher.finalize()),
        };
        match expected {
            Hash::Sha256(digits) => (*digits == made).then(|| format!("sha256:{made}")),
            Hash::Sha512(text) => (*text == made).then(|| format!("sha512-{made}")),
            Hash::Unknown => Some(format!("sha256:{made}")),
        }
    }
}

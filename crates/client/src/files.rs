//! What a client does with the files of a sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`reader`] | the bytes of one file over as many connections as it takes |
//! | [`transfer`] | whole files between this machine and a sandbox: resumable, compared by their hash |
//! | [`sending`] | bodies that are made while they are sent |
//! | [`archive`] | many files as one archive |
//! | [`watch`] | what happens to files |

mod archive;
mod reader;
pub(crate) mod sending;
mod transfer;
mod watch;

use std::sync::{Arc, Mutex};

use api::SandboxId;
use api::files::{Counted, DIGEST_HEADER, EditRequest, FileInfo, FilePath, Hash, HashedFile};
use api::limits::Limits;
use api::server::Page;
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::HeaderName;
use sha2::{Digest, Sha256};
use tokio::io::AsyncRead;

use crate::client::Client;
use crate::error::Error;
use crate::link::Ask;

pub use archive::Archive;
pub use reader::Reader;
pub use transfer::Progress;
pub use watch::Watch;

/// A listing of more than ten million is a server that goes round in circles.
const PAGES_MAX: usize = 10_000;

/// What makes a request one in which BLAKE3 is told.
const BLAKE3: &str = "&digest=blake3";

/// The files of one sandbox. Cheap to clone.
#[derive(Clone)]
pub struct Files {
    client: Client,
    sandbox: SandboxId,
    /// Whether they are opened as root.
    as_root: bool,
    /// Parts of uploads that were dropped before their end; as many as there were uploads.
    left: Arc<Mutex<Vec<FilePath>>>,
}

/// One page of a listing.
pub type Listed = Page<FileInfo>;

impl Client {
    /// The files of a sandbox. Nothing is sent yet.
    pub fn files(&self, sandbox: &SandboxId) -> Files {
        Files { client: self.clone(), sandbox: sandbox.clone(), as_root: false, left: Arc::default() }
    }
}

impl Files {
    /// The same files, opened as root of the sandbox. Requests fail if the project does not allow root.
    #[must_use]
    pub fn as_root(self) -> Self {
        Self { as_root: true, ..self }
    }

    /// What is at a path. A symlink is not followed.
    ///
    /// # Errors
    /// There is nothing, or it may not be looked at.
    pub async fn stat(&self, path: &FilePath) -> Result<FileInfo, Error> {
        self.client.link.call(&Ask::get(self.route("", &[("path", path)]))).await
    }

    /// Everything in a directory, and in those below it down to `depth`.
    ///
    /// # Errors
    /// It is no directory, or may not be read.
    pub async fn list(&self, path: &FilePath, depth: u32) -> Result<Vec<FileInfo>, Error> {
        let (mut items, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = self.page(path, depth, cursor.as_deref()).await?;
            items.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(items);
            }
        }
        Err(self.client.link.protocol(format!("a listing has more than {PAGES_MAX} pages")))
    }

    /// One page of that: the first, or the one after another, whose `next` is the cursor.
    ///
    /// # Errors
    /// As [`Files::list`].
    pub async fn page(&self, path: &FilePath, depth: u32, cursor: Option<&str>) -> Result<Listed, Error> {
        let mut route = self.route("/list", &[("path", path)]);
        route.push_str(&format!("&depth={depth}"));
        if let Some(cursor) = cursor {
            route.push_str(&format!("&cursor={}", crate::client::escape(cursor)));
        }
        self.client.link.call(&Ask::get(route)).await
    }

    /// The SHA-256 of a regular file, made in the sandbox.
    ///
    /// # Errors
    /// It is none, or may not be read.
    pub async fn hash(&self, path: &FilePath) -> Result<HashedFile, Error> {
        self.hash_at(self.route("/hash", &[("path", path)])).await
    }

    /// Its BLAKE3 instead, by which whatever goes to a sandbox or comes from one in many pieces is compared.
    async fn blake3(&self, path: &FilePath) -> Result<HashedFile, Error> {
        self.hash_at(self.route("/hash", &[("path", path)]) + BLAKE3).await
    }

    async fn hash_at(&self, route: String) -> Result<HashedFile, Error> {
        let ask = Ask::get(route).within(sending::worked(Limits::MAX.disk_bytes));
        self.client.link.call(&ask).await
    }

    /// All bytes of a regular file of at most so many.
    ///
    /// # Errors
    /// It is larger (`too_large`), no file, or changes faster than it can be read.
    pub async fn read(&self, path: &FilePath, most: u64) -> Result<Vec<u8>, Error> {
        let mut reader = self.reader(path).await?;
        if reader.info().size_bytes > most {
            return Err(Error::Refused(too_large(reader.info(), most)));
        }
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Puts bytes into a file, which is there whole at the end or as it was before. `mode` is its permissions.
    ///
    /// # Errors
    /// It cannot be written there.
    pub async fn write(&self, path: &FilePath, bytes: Bytes, mode: Option<u32>) -> Result<HashedFile, Error> {
        let digest = digest(&Sha256::digest(&bytes).into());
        let within = sending::carried(bytes.len() as u64);
        let ask = Ask::new(Method::PUT, self.content(path, None, mode)).raw(bytes).within(within);
        self.client.link.call(&ask.header(HeaderName::from_static(DIGEST_HEADER), &digest)).await
    }

    /// Puts everything that comes out of a reader into a file, likewise. Asked once: a reader gives its bytes once.
    ///
    /// # Errors
    /// It cannot be written there, or the connection broke.
    pub async fn write_from(
        &self,
        path: &FilePath,
        from: &mut (impl AsyncRead + Unpin),
        mode: Option<u32>,
    ) -> Result<HashedFile, Error> {
        let mut hasher = blake3::Hasher::new();
        let ask = Ask::new(Method::PUT, self.content(path, None, mode) + BLAKE3);
        let sending = sending::Sending { link: &self.client.link, ask: &ask, before: 0, seen: &|_| {} };
        let sent: HashedFile = sending
            .send(from, &mut |bytes| _ = hasher.update(bytes))
            .await
            .map_err(|failure| failure.error)?;
        if sent.hash != finished(&hasher) {
            return Err(self
                .client
                .link
                .protocol(format!("the hash of {} does not match the data sent", path.text())));
        }
        Ok(sent)
    }

    /// Makes a directory and those above it. One that is there is fine.
    ///
    /// # Errors
    /// Something else is there, or it may not be made.
    pub async fn make(&self, path: &FilePath) -> Result<u64, Error> {
        // What can be repeated without harm is repeated.
        self.counted(Ask::new(Method::POST, self.route("/make", &[("path", path)])).again()).await
    }

    /// Gives a thing another name; with `replace`, also where there is a file of that name.
    ///
    /// # Errors
    /// There is none, or one of that name. When the connection breaks, the error says that it may have been done.
    pub async fn rename(&self, from: &FilePath, to: &FilePath, replace: bool) -> Result<u64, Error> {
        let route = self.route("/move", &[("from", from), ("to", to)]) + &format!("&replace={replace}");
        self.counted(Ask::new(Method::POST, route)).await
    }

    /// Copies a file, or a directory with what is in it.
    ///
    /// # Errors
    /// As [`Files::rename`].
    pub async fn copy(&self, from: &FilePath, to: &FilePath, replace: bool) -> Result<u64, Error> {
        let route = self.route("/copy", &[("from", from), ("to", to)]) + &format!("&replace={replace}");
        self.counted(Ask::new(Method::POST, route)).await
    }

    /// Removes a thing; with `all`, a directory with what is in it. One that is not there is fine.
    ///
    /// # Errors
    /// It may not be removed, or is a directory that is not empty.
    pub async fn remove(&self, path: &FilePath, all: bool) -> Result<u64, Error> {
        let route = self.route("", &[("path", path)]) + &format!("&all={all}");
        self.counted(Ask::new(Method::DELETE, route)).await
    }

    /// Replaces a text in a file; says in how many places.
    ///
    /// # Errors
    /// The file does not have it, or has it more than once and not all were meant.
    pub async fn edit(&self, path: &FilePath, edit: &EditRequest) -> Result<u64, Error> {
        let ask = Ask::new(Method::POST, self.route("/edit", &[("path", path)])).json(edit)?;
        self.counted(ask).await
    }

    async fn counted(&self, ask: Ask) -> Result<u64, Error> {
        let ask = ask.within(sending::worked(Limits::MAX.disk_bytes));
        let Counted { count } = self.client.link.call(&ask).await?;
        Ok(count)
    }

    fn content(&self, path: &FilePath, offset: Option<u64>, mode: Option<u32>) -> String {
        let mut route = self.route("/content", &[("path", path)]);
        if let Some(offset) = offset {
            route.push_str(&format!("&offset={offset}"));
        }
        if let Some(mode) = mode {
            route.push_str(&format!("&mode={:04o}", mode & 0o777));
        }
        route
    }

    fn route(&self, below: &str, paths: &[(&str, &FilePath)]) -> String {
        let query: Vec<_> = paths.iter().map(|(name, path)| format!("{name}={}", path.encode())).collect();
        let user = if self.as_root { "&uid=0" } else { "" };
        format!("/v1/sandboxes/{}/files{below}?{}{user}", self.sandbox, query.join("&"))
    }
}

pub(crate) fn digest(hash: &[u8; 32]) -> String {
    use base64::Engine as _;
    format!("sha-256=:{}:", base64::prelude::BASE64_STANDARD.encode(hash))
}

fn finished(hasher: &blake3::Hasher) -> Hash {
    Hash::Blake3(hasher.finalize().to_string())
}

pub(crate) fn hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn too_large(info: &FileInfo, most: u64) -> api::Error {
    api::Error {
        code: api::ErrorCode::TooLarge,
        message: format!("{:?} has {} bytes, but the maximum is {most}", info.path, info.size_bytes),
        layer: api::Layer::UserCode,
        ran: api::Ran::No,
        retry: api::Retry::Useless,
        fix: "Read the file in chunks, or download it.".into(),
    }
}

//! Requests for files in a sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`reader`] | a reader of one file that reconnects as often as necessary |
//! | [`transfer`] | resumable transfers of whole files between this machine and a sandbox, verified by hash |
//! | [`sending`] | streamed request bodies |
//! | [`archive`] | transfers of many files as one archive |
//! | [`watch`] | live file events |

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
use crate::link::ApiRequest;

pub use archive::Archive;
pub use reader::FileReader;
pub use transfer::ProgressCallback;
pub use watch::FileWatch;

/// Maximum number of pages that a listing may have. A listing of more than ten million entries means that the
/// server keeps returning the same pages.
const PAGES_MAX: usize = 10_000;

/// Query parameter that makes the server hash the content with BLAKE3.
const BLAKE3: &str = "&digest=blake3";

/// The files of one sandbox. Cheap to clone.
#[derive(Clone)]
pub struct Files {
    client: Client,
    sandbox: SandboxId,
    /// True if files are accessed as root.
    as_root: bool,
    /// Partial files that dropped uploads left in the sandbox, at most one per upload. [`Files::tidy`]
    /// removes them.
    left: Arc<Mutex<Vec<FilePath>>>,
}

/// One page of a directory listing.
pub type FilePage = Page<FileInfo>;

impl Client {
    /// Returns access to the files of a sandbox. Does not connect yet.
    pub fn files(&self, sandbox: &SandboxId) -> Files {
        Files { client: self.clone(), sandbox: sandbox.clone(), as_root: false, left: Arc::default() }
    }
}

impl Files {
    /// Switches to access as the sandbox's root user. Requests fail if the project does not allow root.
    #[must_use]
    pub fn as_root(self) -> Self {
        Self { as_root: true, ..self }
    }

    /// Returns the metadata of a path. Symlinks are not followed.
    ///
    /// # Errors
    /// Returns an error if the path does not exist or is not accessible.
    pub async fn stat(&self, path: &FilePath) -> Result<FileInfo, Error> {
        self.client.link.call(&ApiRequest::get(self.route("", &[("path", path)]))).await
    }

    /// Lists a directory and its subdirectories down to `depth`.
    ///
    /// # Errors
    /// Returns an error if the path is not a directory or cannot be read.
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

    /// Returns one page of a listing. Pass no cursor for the first page, and then the previous page's `next`.
    ///
    /// # Errors
    /// Fails like [`Files::list`].
    pub async fn page(&self, path: &FilePath, depth: u32, cursor: Option<&str>) -> Result<FilePage, Error> {
        let mut route = self.route("/list", &[("path", path)]);
        route.push_str(&format!("&depth={depth}"));
        if let Some(cursor) = cursor {
            route.push_str(&format!("&cursor={}", crate::client::escape(cursor)));
        }
        self.client.link.call(&ApiRequest::get(route)).await
    }

    /// Returns the SHA-256 hash of a regular file, computed in the sandbox.
    ///
    /// # Errors
    /// Returns an error if the path is not a regular file or cannot be read.
    pub async fn hash(&self, path: &FilePath) -> Result<HashedFile, Error> {
        self.hash_at(self.route("/hash", &[("path", path)])).await
    }

    /// Returns the BLAKE3 hash of a file. It is used to verify transfers that consist of several chunks.
    async fn blake3(&self, path: &FilePath) -> Result<HashedFile, Error> {
        self.hash_at(self.route("/hash", &[("path", path)]) + BLAKE3).await
    }

    async fn hash_at(&self, route: String) -> Result<HashedFile, Error> {
        let ask = ApiRequest::get(route).within(sending::worked(Limits::MAX.disk_bytes));
        self.client.link.call(&ask).await
    }

    /// Reads a regular file of at most `most` bytes.
    ///
    /// # Errors
    /// Returns an error if the file exceeds `most` (`too_large`), is not regular, or changed during the read.
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

    /// Writes a file atomically: readers see either its old or its new content. `mode` sets its permissions.
    ///
    /// # Errors
    /// Returns an error if the path cannot be written to.
    pub async fn write(&self, path: &FilePath, bytes: Bytes, mode: Option<u32>) -> Result<HashedFile, Error> {
        let digest = digest(&Sha256::digest(&bytes).into());
        let within = sending::carried(bytes.len() as u64);
        let ask = ApiRequest::new(Method::PUT, self.content(path, None, mode)).raw(bytes).within(within);
        self.client.link.call(&ask.header(HeaderName::from_static(DIGEST_HEADER), &digest)).await
    }

    /// Writes a file atomically from a reader. Does not retry, because the reader can be read only once.
    ///
    /// # Errors
    /// Returns an error if the path cannot be written to or if the connection broke.
    pub async fn write_from(
        &self,
        path: &FilePath,
        from: &mut (impl AsyncRead + Unpin),
        mode: Option<u32>,
    ) -> Result<HashedFile, Error> {
        let mut hasher = blake3::Hasher::new();
        let ask = ApiRequest::new(Method::PUT, self.content(path, None, mode) + BLAKE3);
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

    /// Creates a directory and its parents. Succeeds if the directory already exists.
    ///
    /// # Errors
    /// Returns an error if the path exists and is not a directory or if the directory cannot be created.
    pub async fn make(&self, path: &FilePath) -> Result<u64, Error> {
        // Creating a directory can safely be repeated.
        self.counted(ApiRequest::new(Method::POST, self.route("/make", &[("path", path)])).again()).await
    }

    /// Renames a file or directory. With `replace`, replaces an existing file at the new path.
    ///
    /// # Errors
    /// Returns an error if `from` does not exist, or if `to` exists and must not be replaced. If the
    /// connection breaks, the error says that the rename may have happened.
    pub async fn rename(&self, from: &FilePath, to: &FilePath, replace: bool) -> Result<u64, Error> {
        let route = self.route("/move", &[("from", from), ("to", to)]) + &format!("&replace={replace}");
        self.counted(ApiRequest::new(Method::POST, route)).await
    }

    /// Copies a file, or a directory with its content.
    ///
    /// # Errors
    /// Fails like [`Files::rename`].
    pub async fn copy(&self, from: &FilePath, to: &FilePath, replace: bool) -> Result<u64, Error> {
        let route = self.route("/copy", &[("from", from), ("to", to)]) + &format!("&replace={replace}");
        self.counted(ApiRequest::new(Method::POST, route)).await
    }

    /// Removes a file or directory. With `all`, also removes the content of a directory. Succeeds if the path
    /// does not exist.
    ///
    /// # Errors
    /// Returns an error if the path cannot be removed or is a directory that is not empty.
    pub async fn remove(&self, path: &FilePath, all: bool) -> Result<u64, Error> {
        let route = self.route("", &[("path", path)]) + &format!("&all={all}");
        self.counted(ApiRequest::new(Method::DELETE, route)).await
    }

    /// Replaces text in a file and returns the number of replacements.
    ///
    /// # Errors
    /// Returns an error if the file does not contain the text or contains the text more than once although
    /// the request did not ask to replace all occurrences.
    pub async fn edit(&self, path: &FilePath, edit: &EditRequest) -> Result<u64, Error> {
        let ask = ApiRequest::new(Method::POST, self.route("/edit", &[("path", path)])).json(edit)?;
        self.counted(ask).await
    }

    async fn counted(&self, ask: ApiRequest) -> Result<u64, Error> {
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

//! Transfers of whole files between this machine and a sandbox.
//!
//! A file appears under its name only after it is complete and its hash has been verified. An interrupted
//! transfer resumes where it stopped, even after a restart of the server. Memory use does not depend on the
//! file size.
//!
//! ```text
//! upload     .NAME.RANDOM.part, appended to    ──▶ hashes match ──▶ moved to NAME    (small files: one request with a digest)
//! download   .NAME.RANDOM.part next to NAME    ──▶ hashes match ──▶ renamed to NAME
//! ```

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use api::files::{FileInfo, FilePath, Hash, HashedFile};
use api::{ErrorCode, Layer, Ran, Retry};
use reqwest::Method;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::reader::changed;
use super::sending::Sending;
use super::{BLAKE3, Files, finished};
use crate::error::Error;
use crate::link::ApiRequest;

/// Maximum size of a file that is sent in a single request. A failed request is repeated as a whole.
const SMALL_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of attempts to download a file that keeps changing during the read.
const BEGUN_ANEW_MAX: u32 = 3;
/// Maximum number of attempts to rename a completed upload if the response is lost.
const NAMED_AGAIN_MAX: u32 = 3;
/// Maximum number of bytes of the final name that the partial file's name contains. File names can have 255
/// bytes; the remaining bytes are for the prefix and the random suffix.
const NAME_KEPT_BYTES: usize = 200;

/// Permissions that the owner of a partial file needs in order to append to it and hash it.
const OWNER: u32 = 0o600;

/// Progress callback. Receives the number of bytes transferred so far.
pub type ProgressCallback<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// A local file that is not complete yet. The file is removed if this value is dropped before the file gets
/// its final name.
struct PartialFile {
    path: PathBuf,
    named: bool,
}

/// A partial file in the sandbox that does not have its final name yet. If this value is dropped in this
/// state, [`Files::tidy`] removes the file later.
struct Unnamed<'a> {
    files: &'a Files,
    part: Option<FilePath>,
}

/// Hash state of a local file. Each byte is hashed only once, even if it is sent several times.
struct Hashed {
    hasher: blake3::Hasher,
    upto: u64,
}

impl Files {
    /// Uploads a local file into the sandbox, with its permissions. A large file also gets read and write
    /// permissions for its owner. If the upload is dropped before it is complete, [`Files::tidy`] removes the
    /// partial file. The returned hash is SHA-256 for a small file and BLAKE3 for a large one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read locally or written in the sandbox, it changed during the
    /// upload (`conflict`), or the server no longer responds.
    pub async fn upload(
        &self,
        local: &Path,
        path: &FilePath,
        seen: ProgressCallback<'_>,
    ) -> Result<HashedFile, Error> {
        let mut file = File::open(local).await.map_err(|error| failed("open", local, &error))?;
        let known = file.metadata().await.map_err(|error| failed("inspect", local, &error))?;
        if !known.is_file() {
            return Err(failed("send", local, &std::io::Error::other("the file is not a regular file")));
        }
        let mode = mode(&known);
        if known.len() <= SMALL_BYTES_MAX {
            let mut bytes = Vec::new();
            let mut small = tokio::io::AsyncReadExt::take(&mut file, SMALL_BYTES_MAX + 1);
            tokio::io::AsyncReadExt::read_to_end(&mut small, &mut bytes)
                .await
                .map_err(|error| failed("read", local, &error))?;
            if bytes.len() as u64 <= SMALL_BYTES_MAX {
                let count = bytes.len() as u64;
                let sent = self.write(path, bytes.into(), Some(mode)).await?;
                seen(count);
                return Ok(sent);
            }
        }
        let part = FilePath::new(beside(path.as_bytes())?).map_err(Error::Refused)?;
        let mut unnamed = Unnamed { files: self, part: Some(part.clone()) };
        let sent = async {
            // The partial file keeps its initial permissions when data is appended to it and when it is
            // renamed. The owner therefore gets read and write permissions even if the local file does not
            // grant them; otherwise, appending would fail.
            self.write(&part, bytes::Bytes::new(), Some(mode | OWNER)).await?;
            let hash = self.send_on(&mut file, local, &part, seen).await?;
            self.name(&part, path, hash).await
        };
        let sent = sent.await;
        if sent.is_err() {
            let _ = self.remove(&part, false).await;
        }
        unnamed.part = None;
        sent
    }

    /// Removes the partial files that dropped uploads left in the sandbox.
    ///
    /// # Errors
    /// Returns an error if a partial file cannot be removed or if the server does not respond.
    pub async fn tidy(&self) -> Result<(), Error> {
        loop {
            let part = self.left.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(part) = part else { return Ok(()) };
            self.remove(&part, false).await?;
        }
    }

    /// Downloads a file from the sandbox to this machine, with its permissions.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read in the sandbox or written locally, the local path is not a
    /// regular file (`not_regular`), the file keeps changing during the read (`conflict`), or the server no
    /// longer responds.
    pub async fn download(
        &self,
        path: &FilePath,
        local: &Path,
        seen: ProgressCallback<'_>,
    ) -> Result<FileInfo, Error> {
        replaceable(local).await?;
        let mut begun = 0;
        loop {
            let mut reader = self.reader(path).await?;
            let mut part = PartialFile::beside(local)?;
            let mut file = part.open(reader.info().mode).await?;
            let mut count = 0;
            let read = loop {
                match reader.next().await {
                    Ok(Some(bytes)) => {
                        file.write_all(&bytes).await.map_err(|error| failed("write", local, &error))?;
                        count += bytes.len() as u64;
                        seen(count);
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            begun += 1;
            match read {
                Ok(()) => {
                    file.flush().await.map_err(|error| failed("write", local, &error))?;
                    drop(file);
                    part.name(local).await?;
                    return Ok(reader.info().clone());
                }
                Err(_) if reader.is_spoiled() && begun < BEGUN_ANEW_MAX => {}
                Err(_) if reader.is_spoiled() => {
                    let info = reader.info();
                    let what = format!("the file was modified {begun} times while it was being read");
                    return Err(Error::Refused(api::Error { retry: Retry::Unknown, ..changed(info, &what) }));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the remaining data of a partial file, starting at its current length, and returns the file's
    /// hash.
    async fn send_on(
        &self,
        file: &mut File,
        local: &Path,
        part: &FilePath,
        seen: ProgressCallback<'_>,
    ) -> Result<Hash, Error> {
        let link = &self.client.link;
        let mut hashed = Hashed { hasher: blake3::Hasher::new(), upto: 0 };
        let (mut attempts, mut offset) = (link.attempts(), 0);
        let sent = loop {
            file.seek(std::io::SeekFrom::Start(offset))
                .await
                .map_err(|error| failed("read", local, &error))?;
            let ask = ApiRequest::new(Method::PUT, self.content(part, Some(offset), None) + BLAKE3);
            let sending = Sending { link, ask: &ask, before: offset, seen };
            let mut at = offset;
            match sending.send::<HashedFile>(file, &mut |bytes| hashed.pass(&mut at, bytes)).await {
                Ok(sent) => break sent,
                Err(failure) => link.pause(&mut attempts, failure).await?,
            }
            let there = self.stat(part).await?.size_bytes;
            if there > offset {
                attempts.progress();
            }
            if there > hashed.upto {
                return Err(link
                    .protocol("the partial file on the server is longer than the data sent so far".into()));
            }
            offset = there;
        };
        if sent.hash != finished(&hashed.hasher) {
            return Err(Error::Refused(unequal(local)));
        }
        Ok(sent.hash)
    }

    /// Renames a partial file to its final name. If the response is lost, determines whether the rename
    /// succeeded.
    async fn name(&self, part: &FilePath, path: &FilePath, hash: Hash) -> Result<HashedFile, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.rename(part, path, true).await {
                Ok(_) => return Ok(HashedFile { file: self.stat(path).await?, hash }),
                Err(Error::Unreachable { .. }) if tries < NAMED_AGAIN_MAX => {}
                // The partial file no longer exists, because the rename whose response was lost has
                // succeeded.
                Err(error) if tries > 1 && error.code() == Some(ErrorCode::NotFound) => {
                    let there = self.blake3(path).await?;
                    return if there.hash == hash { Ok(there) } else { Err(error) };
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Hashed {
    /// Hashes bytes that begin at offset `at`. Skips bytes that have already been hashed.
    fn pass(&mut self, at: &mut u64, bytes: &[u8]) {
        let known = usize::try_from(self.upto.saturating_sub(*at)).unwrap_or(usize::MAX);
        let fresh = bytes.get(known.min(bytes.len())..).unwrap_or_default();
        self.hasher.update(fresh);
        self.upto += fresh.len() as u64;
        *at += bytes.len() as u64;
    }
}

impl PartialFile {
    fn beside(local: &Path) -> Result<Self, Error> {
        use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
        let path = beside(local.as_os_str().as_bytes())?;
        Ok(Self { path: std::ffi::OsString::from_vec(path).into(), named: false })
    }

    async fn open(&self, mode: u32) -> Result<File, Error> {
        let mut options = tokio::fs::OpenOptions::new();
        // The owner needs write permission until the file is complete.
        options.write(true).create_new(true).mode((mode & 0o777) | 0o200);
        options.open(&self.path).await.map_err(|error| failed("create", &self.path, &error))
    }

    async fn name(&mut self, local: &Path) -> Result<(), Error> {
        tokio::fs::rename(&self.path, local).await.map_err(|error| failed("write", local, &error))?;
        self.named = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.named {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for Unnamed<'_> {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            self.files.left.lock().unwrap_or_else(PoisonError::into_inner).push(part);
        }
    }
}

/// Checks that a download may replace the local path. Renaming a file onto a device or a pipe would replace
/// it with a regular file instead of writing to it.
async fn replaceable(local: &Path) -> Result<(), Error> {
    match tokio::fs::metadata(local).await {
        Ok(known) if !known.is_file() => Err(Error::Refused(api::Error {
            code: ErrorCode::NotRegular,
            message: format!("cannot overwrite {} on this machine: it is not a regular file", local.display()),
            layer: Layer::UserCode,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "Use a regular file or a path that does not exist yet. To write to standard output with `bellglass cp`, use `-`.".into(),
        })),
        // Other problems with the path are reported when the partial file is created.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns the path of a partial file with a hidden, unique name in the directory of `path`.
fn beside(path: &[u8]) -> Result<Vec<u8>, Error> {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let (directory, name) = path.split_at(at);
    let name = name.get(..name.len().min(NAME_KEPT_BYTES)).unwrap_or_default();
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| Error::Configuration {
        what: "a temporary file name".into(),
        why: error.to_string(),
    })?;
    let end = format!(".{:016x}.part", u64::from_be_bytes(random));
    Ok([directory, b".", name, end.as_bytes()].concat())
}

fn mode(known: &std::fs::Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    known.permissions().mode() & 0o777
}

fn failed(act: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::Local { act: format!("{act} {}", path.display()), why: error.to_string() }
}

fn unequal(local: &Path) -> api::Error {
    api::Error {
        code: ErrorCode::Conflict,
        message: format!("{} changed while it was sent, or was corrupted in transit", local.display()),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Send the file again when no program writes to it.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stands_beside_its_file_under_a_name_that_fits() {
        let long = [b"/a/".as_slice(), &[0xff; 255]].concat();
        for path in [&b"/workspace/x"[..], b"x", &long] {
            let part = beside(path).unwrap();
            let name = part.rsplit(|byte| *byte == b'/').next().unwrap();
            assert!(name.len() <= 255 && name.starts_with(b".") && name.ends_with(b".part"));
            let directory =
                |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map(|at| path[..at].to_vec());
            assert_eq!(directory(&part), directory(path));
        }
    }

    #[tokio::test]
    async fn only_a_regular_file_is_replaced() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("/dev/null", here.path().join("link")).unwrap();
        for place in [Path::new("/dev/null"), here.path(), &here.path().join("link")] {
            let error = replaceable(place).await.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::NotRegular), "{}", place.display());
        }
        for place in [file, here.path().join("new"), here.path().join("no/such")] {
            assert!(replaceable(&place).await.is_ok(), "{}", place.display());
        }
    }

    #[test]
    fn a_byte_that_is_sent_twice_is_hashed_once() {
        let mut hashed = Hashed { hasher: blake3::Hasher::new(), upto: 0 };
        let mut at = 0;
        hashed.pass(&mut at, b"abcdef");
        let mut at = 2;
        hashed.pass(&mut at, b"cd");
        hashed.pass(&mut at, b"efgh");
        assert_eq!((at, hashed.upto), (8, 8));
        assert_eq!(hashed.hasher.finalize(), blake3::hash(b"abcdefgh"));
    }
}

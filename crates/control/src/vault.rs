//! Where secrets are kept: sealed in the store, with a key in a file beside it. A copy of the store alone tells nothing.
//!
//! ```text
//! secrets.key: 32 random bytes, made once ──┐
//! store: nonce, sealed value ───────────────┴─▶ opened when a request goes out, and forgotten after it
//! ```
//!
//! What is sealed names its project and itself: a row that is moved to another place does not open there. The authority of a
//! project is kept likewise. It is not precious: where its key does not open, another one takes its place.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use api::secret::{PutSecret, Secret};
use api::{ErrorCode, Layer, Ran, Retry};
use async_trait::async_trait;
use node::clock;
use node::secrets::{Authority, SecretValue};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use crate::fault::Fault;
use crate::store::{self, Store};

/// The name of the file with the key, in the data directory.
pub const KEY_FILE: &str = "secrets.key";
const KEY_BYTES: usize = 32;
/// Authorities in memory. Those of other projects are read again.
const AUTHORITIES_MAX: usize = 1024;

/// Where secrets are kept.
pub struct Vault {
    store: Store,
    path: PathBuf,
    key: OnceLock<LessSafeKey>,
    /// One at a time: an authority is made once.
    authorities: Mutex<HashMap<String, Arc<Authority>>>,
}

/// Why a secret could not be kept or had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// There are secrets, and the key that they are sealed with is gone.
    #[error("cannot open the secrets: their key {KEY_FILE} is missing from the data directory")]
    KeyMissing,
    /// There is a key, and it is another one.
    #[error("{0} was sealed with a different key than the one in {KEY_FILE}")]
    KeyForeign(String),
    /// The file with the key cannot be used.
    #[error("cannot {act} {KEY_FILE}")]
    KeyFile {
        /// What was to be done.
        act: &'static str,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The system has no random bytes.
    #[error("cannot seal a secret: the system has no random bytes")]
    Random,
    /// No authority could be made.
    #[error(transparent)]
    Authority(#[from] node::secrets::AuthorityError),
}

impl Vault {
    /// The secrets of a store, sealed with the key in a data directory.
    pub fn new(store: Store, data: &Path) -> Self {
        Self { store, path: data.join(KEY_FILE), key: OnceLock::new(), authorities: Mutex::default() }
    }

    /// Keeps a value under a name.
    ///
    /// # Errors
    /// The project has too many, the key is missing, or the store does not answer.
    pub async fn put(&self, project: &str, name: &str, put: PutSecret) -> Result<Secret, Error> {
        let value = SecretValue::new(put.value);
        let sealed = self.seal(&secret_of(project, name), value.expose().as_bytes()).await?;
        Ok(self.store.put_secret(project, name, &sealed, clock::wall_ms()).await?)
    }

    async fn open_secret(&self, project: &str, name: &str) -> Result<Option<SecretValue>, Error> {
        let Some(sealed) = self.store.sealed_secret(project, name).await? else { return Ok(None) };
        let value = self.unseal(&secret_of(project, name), sealed).await?;
        let value = value.and_then(|value| std::str::from_utf8(&value).ok().map(str::to_owned));
        value.map(|value| Some(SecretValue::new(value))).ok_or_else(|| Error::KeyForeign(name.to_owned()))
    }

    async fn authority_of(&self, project: &str) -> Result<Arc<Authority>, Error> {
        let mut known = self.authorities.lock().await;
        if let Some(authority) = known.get(project) {
            return Ok(Arc::clone(authority));
        }
        let place = format!("authority\0{project}");
        let stored = match self.store.authority(project).await? {
            Some((certificate, sealed)) => self.unseal(&place, sealed).await?.map(|key| (certificate, key)),
            None => None,
        };
        let authority = match stored {
            Some((certificate, key)) => Authority::open(project, certificate, &key)?,
            None => {
                let (certificate, key) = Authority::mint(project, SystemTime::now())?;
                let sealed = self.seal(&place, &key).await?;
                self.store.put_authority(project, (&certificate, &sealed), clock::wall_ms()).await?;
                Authority::open(project, certificate, &key)?
            }
        };
        if known.len() >= AUTHORITIES_MAX {
            known.clear();
        }
        let authority = Arc::new(authority);
        known.insert(project.to_owned(), Arc::clone(&authority));
        Ok(authority)
    }

    async fn seal(&self, place: &str, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let key = self.key().await?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| Error::Random)?;
        let mut sealed = bytes.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(place), &mut sealed)
            .map_err(|_| Error::Random)?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// What was sealed for this place with this key; nothing if it was not.
    async fn unseal(&self, place: &str, sealed: Vec<u8>) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let key = self.key().await?;
        let mut sealed = Zeroizing::new(sealed);
        let Some((nonce, rest)) = sealed.split_first_chunk_mut::<NONCE_LEN>() else { return Ok(None) };
        let nonce = Nonce::assume_unique_for_key(*nonce);
        Ok(key.open_in_place(nonce, Aad::from(place), rest).ok().map(|bytes| Zeroizing::new(bytes.to_vec())))
    }

    /// The key, which is made where nothing needs the one that is not there.
    async fn key(&self) -> Result<&LessSafeKey, Error> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.store.has_secrets().await? {
                    return Err(Error::KeyMissing);
                }
                make(&self.path)?
            }
            Err(source) => return Err(Error::KeyFile { act: "read", source }),
        };
        let key = (bytes.len() == KEY_BYTES).then(|| UnboundKey::new(&CHACHA20_POLY1305, &bytes));
        let Some(Ok(key)) = key else {
            let why = format!("the file has {} bytes, but a key has {KEY_BYTES} bytes", bytes.len());
            return Err(Error::KeyFile { act: "use", source: io::Error::other(why) });
        };
        Ok(self.key.get_or_init(|| LessSafeKey::new(key)))
    }
}

#[async_trait]
impl node::secrets::Vault for Vault {
    async fn secret(&self, project: &str, name: &str) -> Result<Option<SecretValue>, api::Error> {
        self.open_secret(project, name).await.map_err(told)
    }

    async fn authority(&self, project: &str) -> Result<Arc<Authority>, api::Error> {
        self.authority_of(project).await.map_err(told)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error.into(),
            Error::KeyMissing
            | Error::KeyForeign(_)
            | Error::KeyFile { .. }
            | Error::Random
            | Error::Authority(_) => told(error).into(),
        }
    }
}

/// What is said of it outside.
fn told(error: Error) -> api::Error {
    let message = node::error::chain(&error);
    tracing::error!(error = message, "cannot store or read a secret");
    let fix = match error {
        Error::Store(error) => return Fault::from(error).error().clone(),
        Error::KeyMissing => {
            "Ask the operator of the server to restore the key file from a copy. Without a copy, remove all secrets and set them again."
        }
        Error::KeyForeign(_) => {
            "Set the secret again, or ask the operator of the server to restore the key file that the secret was sealed with."
        }
        Error::KeyFile { .. } | Error::Random | Error::Authority(_) => {
            "Ask the operator of the server to check the server log."
        }
    };
    api::Error {
        code: ErrorCode::StoreUnavailable,
        message,
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: fix.into(),
    }
}

/// Where a secret belongs; what is sealed for one place does not open at another. Neither part can have the byte between them.
fn secret_of(project: &str, name: &str) -> String {
    format!("secret\0{project}\0{name}")
}

/// Makes a key: whole, on the disk, and readable by nobody else, before it is used.
fn make(path: &Path) -> Result<Vec<u8>, Error> {
    let mut key = vec![0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| Error::Random)?;
    let fresh = path.with_extension("key.new");
    let write = || {
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&key)?;
        file.sync_all()?;
        // Never in the place of one that is there: two that make one at once have the same one afterwards.
        let linked = fs::hard_link(&fresh, path);
        fs::remove_file(&fresh)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        fs::read(path)
    };
    write().map_err(|source| Error::KeyFile { act: "create", source })
}

#[cfg(test)]
mod tests;

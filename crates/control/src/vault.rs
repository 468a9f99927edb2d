//! Storage of secrets. Secrets are encrypted in the store, and the encryption key is in a separate file, so a
//! copy of the store alone reveals no secret.
//!
//! ```text
//! secrets.key: 32 random bytes, created once ──┐
//! store: nonce, sealed value ──────────────────┴─▶ decrypted for an outgoing request, then discarded
//! ```
//!
//! Encrypted data is bound to its project and name, so a row that is moved to a different project or name
//! cannot be decrypted. The certificate authority of a project is stored in the same way. An authority is
//! replaceable: if its key cannot be decrypted, a new authority is created.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use api::secret::{PutSecret, Secret};
use api::{ErrorCode, Layer, Ran, Retry};
use async_trait::async_trait;
use node::clock;
use node::secrets::{Authority, SecretValue};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::{Mutex, OnceCell};
use zeroize::Zeroizing;

use crate::fault::Fault;
use crate::store::{self, Store};

/// Name of the key file in the data directory.
pub const KEY_FILE: &str = "secrets.key";
const KEY_BYTES: usize = 32;
/// Maximum number of authorities cached in memory. When the cache is full, it is cleared, and authorities are
/// read from the store again.
const AUTHORITIES_MAX: usize = 1024;

/// Vault of secrets and certificate authorities.
pub struct Vault {
    store: Store,
    path: PathBuf,
    /// The key, once it has been read or created. Only one task at a time reads or creates it: a concurrent
    /// task could remove the other's temporary file, or find no key but a secret that the other has sealed.
    key: OnceCell<LessSafeKey>,
    /// Cache of authorities, by project. The lock is held while an authority is created, so that each
    /// authority is created only once.
    authorities: Mutex<HashMap<String, Arc<Authority>>>,
}

/// Error of the vault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Secrets exist, but the key that encrypts them is missing.
    #[error("cannot open the secrets: their key {KEY_FILE} is missing from the data directory")]
    KeyMissing,
    /// The key file exists, but it does not match the key that encrypted this secret.
    #[error("{0} was sealed with a different key than the one in {KEY_FILE}")]
    KeyForeign(String),
    /// The key file cannot be used.
    #[error("cannot {act} {KEY_FILE}")]
    KeyFile {
        /// Failed operation.
        act: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The system's random number generator is unavailable.
    #[error("cannot seal a secret: the system has no random bytes")]
    Random,
    /// An authority could not be created.
    #[error(transparent)]
    Authority(#[from] node::secrets::AuthorityError),
}

impl Vault {
    /// Creates a vault for a store. The key file is in the data directory.
    pub fn new(store: Store, data: &Path) -> Self {
        Self { store, path: data.join(KEY_FILE), key: OnceCell::new(), authorities: Mutex::default() }
    }

    /// Saves a value under a name.
    ///
    /// # Errors
    /// Returns an error if the project has too many secrets, the key is missing, or the store does not
    /// respond.
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
                self.store.put_authority(project, &certificate, &sealed, clock::wall_ms()).await?;
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

    /// Decrypts the data stored at `place`, which names a project and an item. Returns `None` if the data was
    /// encrypted for a different place or with a different key.
    async fn unseal(&self, place: &str, sealed: Vec<u8>) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let key = self.key().await?;
        let mut sealed = Zeroizing::new(sealed);
        let Some((nonce, rest)) = sealed.split_first_chunk_mut::<NONCE_LEN>() else { return Ok(None) };
        let nonce = Nonce::assume_unique_for_key(*nonce);
        Ok(key.open_in_place(nonce, Aad::from(place), rest).ok().map(|bytes| Zeroizing::new(bytes.to_vec())))
    }

    /// Returns the encryption key. Creates a new one if the key file is missing and the store contains no
    /// secrets.
    async fn key(&self) -> Result<&LessSafeKey, Error> {
        self.key.get_or_try_init(|| self.load_key()).await
    }

    async fn load_key(&self) -> Result<LessSafeKey, Error> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => {
                // A server that crashed while it created the key may have left a second name of the file.
                if let Err(error) = discard(&temporary(&self.path)) {
                    tracing::warn!(%error, "cannot remove the temporary file of {KEY_FILE}");
                }
                bytes
            }
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
        Ok(LessSafeKey::new(key))
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

/// Logs an error of the vault, and converts it into an API error for the caller.
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

/// Returns the text that identifies a secret by its project and name. The encrypted data is bound to this
/// text. Neither the project nor the name can contain the separator.
fn secret_of(project: &str, name: &str) -> String {
    format!("secret\0{project}\0{name}")
}

/// Creates the key file and returns the key. When this function returns, the file is complete, on disk, and
/// readable only by its owner.
fn make(path: &Path) -> Result<Vec<u8>, Error> {
    let mut key = vec![0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| Error::Random)?;
    let fresh = temporary(path);
    let write = || {
        discard(&fresh)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&key)?;
        file.sync_all()?;
        // Use a link instead of a rename, so that an existing key is never overwritten.
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

/// Returns the name of the key file while it is incomplete. The name can be fixed: only one server uses a data
/// directory, and its only vault creates the key in one task at a time.
fn temporary(path: &Path) -> PathBuf {
    path.with_extension("key.new")
}

/// Removes a file. Succeeds if it does not exist.
fn discard(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;

//! The store: projects, keys, encrypted secrets, sessions, and the history of every sandbox, in one SQLite
//! file.
//!
//! Each method is one operation and one transaction. Writers acquire the write lock first (`BEGIN
//! IMMEDIATE`), so the data behind a decision cannot change before the decision is written. For example, a
//! quota cannot be exceeded between counting and inserting. Readers use separate connections, which writers
//! never block, because SQLite uses a write-ahead log. No project can use more than half of these connections
//! (see `read`).
//!
//! ```text
//! starting ──▶ running ──▶ stopping ──▶ ended, lost     states only move forward; the last two are final
//! ```
//!
//! **If the store is unavailable**, every method fails within twice [`WAIT`]. A long queue that is still
//! moving does not count as unavailable. Sandboxes on the node keep running, and the node's journal keeps
//! their changes until the store can save them.
//!
//! **Durability.** If the server is killed, no acknowledged write is lost. A power failure may lose the last
//! state changes of sandboxes, which do not survive it anyway, but it never loses a key or a project.
//!
//! **Damage** is never mistaken for an empty store. A store is created completely under a temporary name and
//! then renamed. Therefore a file without Bellglass's tables, even an empty file, is reported as
//! [`Error::Damaged`], and so is a write-ahead log without its store. A write-ahead log that SQLite would
//! silently ignore is reported as [`Error::Log`]. Keys, projects and secrets are never stored only in that
//! log (see `wal`).
//!
//! **On a full disk**, a key can still be revoked (see `reserve`). **If the clock is set back**, expired keys
//! stay expired (see `time`).
//!
//! **Versions.** Migrations are embedded in the executable, numbered from 1, and never undone. A release adds
//! at most one migration. A store that is one step newer than this release can still be opened, so that a
//! release can be rolled back. A store that is even newer is refused ([`Error::Newer`]). Therefore a
//! migration may only add objects that the previous release ignores: tables, indices, and columns with a
//! default. A stored body may only gain fields and values that the previous release can read.

mod account;
mod history;
mod read;
mod request;
mod reserve;
mod schema;
mod secret;
mod session;
#[cfg(test)]
mod tests;
mod time;
mod wal;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

use read::Readers;
pub use request::{Request, Requested};
use reserve::Reserve;
pub use session::SessionRecord;
use time::Latest;
use writer::{Lasting, Turns, Writer, begin};

/// Timeout for a stalled write queue, and also for a lock that another process holds. A writer may wait for
/// both, one after the other. If the store is unavailable, a create request must be refused within a second
/// (attack L-04).
pub const WAIT: Duration = Duration::from_millis(500);
/// Timeout for opening the file when a server starts. It is long, because no caller is waiting yet, and the
/// server cannot run without the store.
const OPENING: Duration = Duration::from_secs(10);
/// Size of a connection's page cache: a negative number is SQLite's notation for a size in KiB. The cache
/// holds the upper pages of every index. The kernel caches the rest, so the server's memory does not grow
/// with the history of sandboxes.
const CACHE: &str = "-256";

/// The store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// The only connection that writes. Writers queue for it in order instead of polling SQLite's lock.
    writer: SqlitePool,
    readers: Readers,
    turns: Arc<Turns>,
    /// Time against which the expiry of keys is checked.
    latest: Arc<Latest>,
    /// Disk space for revocations on a full disk.
    reserve: Arc<Reserve>,
}

/// Error of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store is unavailable: locked, disk full, directory missing. A retry is safe.
    #[error("the store cannot {act}")]
    Unavailable {
        /// Failed operation.
        act: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// The content of the store is invalid. Data that cannot be found may nevertheless have existed.
    #[error(
        "the store is damaged: {0}; restore the store from a copy, or move the store away to start with an empty store"
    )]
    Damaged(String),
    /// The store's write-ahead log has content that SQLite would ignore.
    #[error(
        "the store is damaged: its write-ahead log {path} has content but no valid header; restore a copy of the store and of its \
         log, or move the log away: the latest states of sandboxes are then lost, but keys, projects and secrets are in the \
         store itself"
    )]
    Log {
        /// Path of the log.
        path: String,
    },
    /// A key is revoked in memory, but the revocation could not be saved to disk.
    #[error(
        "key {key} is revoked, but the revocation could not be saved to disk: the key would work again if the server stopped now"
    )]
    NotLasting {
        /// ID of the key.
        key: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The store was written by a later release.
    #[error(
        "the store has schema {found}, but this release supports schemas up to {known}; use a later release"
    )]
    Newer {
        /// The schema of the file.
        found: i64,
        /// The newest schema that this release supports.
        known: i64,
    },
    /// The idempotency key or the ID was already used for a different request.
    #[error("the same key was used for another request")]
    Conflict,
    /// A live sandbox of the project already has this name.
    #[error("a live sandbox already has the name {0}")]
    NameTaken(String),
    /// The project would exceed its quota.
    #[error("the request exceeds the project's quota: {what} is {most}")]
    Quota {
        /// Field of the quota that would be exceeded.
        what: &'static str,
        /// Value of that field.
        most: u64,
    },
    /// The project does not exist.
    #[error("there is no project {0:?}")]
    NoProject(String),
    /// The cursor did not come with a page of results.
    #[error("the cursor is invalid")]
    Cursor,
}

impl Store {
    /// Opens the store, or creates it if it does not exist. Only one process may open the store at a time,
    /// which the node's lock on the data directory ensures.
    ///
    /// # Errors
    /// Returns an error if the store is damaged, too new, or locked, or if it cannot be created.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        schema::create_if_missing(path).await?;
        wal::check(path)?;
        let options = options(path);
        let writer = pool().connect_with(options.clone()).await.map_err(failed("be opened"))?;
        let turns = Arc::new(Turns::new());
        let (latest, reserve) = (Arc::default(), Arc::new(Reserve::open(path)));
        let mut connection = writer.acquire().await.map_err(failed("be opened"))?;
        schema::check(&mut connection).await?;
        // Set the journal mode only after the checks, because this statement writes to the file. A copy made
        // with SQLite's own tools may be in a different mode.
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut *connection)
            .await
            .map_err(failed("be opened"))?;
        schema::migrate(&mut connection).await?;
        drop(connection);
        let readers = Readers::open(&options.read_only(true)).await.map_err(failed("be opened"))?;
        let store = Self { writer, readers, turns, latest, reserve };
        store.read_time().await?;
        // If this fails, pending revocations are still enforced from memory.
        let _ = store.write_revocations().await;
        Ok(store)
    }

    /// Does maintenance that failed before or is due: saves pending revocations and the time, and empties the
    /// write-ahead log. Must be called periodically.
    pub async fn upkeep(&self) {
        let done = async {
            self.write_revocations().await?;
            self.write_time_if_due().await?;
            self.checkpoint_if_due().await
        };
        if let Err(error) = done.await {
            tracing::debug!(
                error = node::error::chain(&error),
                "maintenance of the store failed; will retry"
            );
        }
    }

    /// Checks that the store can be written, by saving the current time.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn ping(&self) -> Result<(), Error> {
        const ACT: &str = "be written";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        if api::defence::is_off("L-11") {
            return begin(&mut connection, ACT).await?.rollback().await.map_err(failed(ACT));
        }
        self.write_time(&mut connection, ACT).await
    }

    /// Waits for running operations and closes the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Returns the options of a pool with one connection.
fn pool() -> SqlitePoolOptions {
    // Keep the connection open. A connection to a file does not become stale, and closing the last connection
    // would delete the write-ahead log.
    SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(OPENING)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // On a full disk, SQLite itself rolls the transaction back. The driver's own rollback then
                // fails, so the driver considers the transaction open and would refuse every later
                // transaction. The ping waits for the driver's rollback.
                connection.ping().await?;
                Ok(!connection.is_in_transaction())
            })
        })
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .foreign_keys(true)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(WAIT)
        .pragma("cache_size", CACHE)
}

/// Returns a function that converts a driver error into a store error: damage or unavailability.
fn failed(act: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    /// Error codes `SQLITE_CORRUPT` and `SQLITE_NOTADB`, which are the low byte of their extended codes.
    const DAMAGE: [i32; 2] = [11, 26];
    move |source| {
        let code = source.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
        let decode = matches!(source, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_));
        if decode || code.is_some_and(|code| DAMAGE.contains(&(code & 0xff))) {
            Error::Damaged(source.to_string())
        } else {
            Error::Unavailable { act, source }
        }
    }
}

/// Parses the body of a row.
fn parse<T: serde::de::DeserializeOwned>(id: &str, body: &str) -> Result<T, Error> {
    serde_json::from_str(body).map_err(|error| Error::Damaged(format!("row {id}: {error}")))
}

fn body<T: serde::Serialize>(id: &str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Damaged(format!("row {id}: {error}")))
}

/// Converts a number to SQLite's signed integer type. A number that is too large becomes the maximum, which
/// has the same effect.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns `<path><suffix>`, the form in which SQLite names its additional files.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

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

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::trace::STEP;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{Instrument as _, Span, info_span};

use read::Readers;
pub use request::{Request, Requested};
use reserve::Reserve;
pub use session::SessionRecord;
use time::Latest;

/// Timeout for a stalled write queue, and also for a lock that another process holds. A writer may wait for
/// both, one after the other. If the store is unavailable, a create request must be refused within a second
/// (attack L-04).
pub const WAIT: Duration = Duration::from_millis(500);
/// Number of polls without progress after which a writer considers the queue stalled. If a hypervisor or a
/// debugger suspends the server itself, at most one poll sees no progress. The suspension is therefore not
/// mistaken for a stalled queue.
const LOOKS: u32 = 5;
/// Timeout for opening the file when a server starts. It is long, because no caller is waiting yet, and the
/// server cannot run without the store.
const OPENING: Duration = Duration::from_secs(10);
/// Timeout for waiting in a write queue that is moving. It is half of a client's timeout.
const TURN_WITHIN: Duration = Duration::from_secs(30);
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

/// The queue of writers, in order of arrival.
#[derive(Debug)]
struct Turns {
    queue: Arc<Semaphore>,
    /// Number of transactions that have acquired the write lock. While this number grows, the queue is
    /// moving.
    begun: AtomicU64,
    /// True if the connection may be in the mode `synchronous=FULL`, which waits for the disk at each commit.
    synced: AtomicBool,
    /// True if the write-ahead log contains changes that a failed checkpoint should have moved to the store's
    /// file.
    unfolded: AtomicBool,
}

/// The writing connection, held by the writer at the head of the queue.
struct Writer {
    connection: PoolConnection<Sqlite>,
    turns: Arc<Turns>,
    _turn: OwnedSemaphorePermit,
    /// Span that begins when the writer enters the queue, and ends when this value is dropped, after the
    /// transaction.
    _step: Span,
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

/// Durability of a write when its method returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasting {
    /// Survives a killed server, but not a power failure: `synchronous=NORMAL`, which does not wait for the
    /// disk.
    Process,
    /// Survives a power failure too. This is required because a revoked key must never become valid again,
    /// and a key that was handed out must work. With `synchronous=FULL`, SQLite syncs the write-ahead log
    /// before a commit returns. Unlike a checkpoint, this does not wait for readers.
    Machine,
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
        let turns = Arc::new(Turns {
            queue: Arc::new(Semaphore::new(1)),
            begun: AtomicU64::new(0),
            synced: AtomicBool::new(false),
            unfolded: AtomicBool::new(false),
        });
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

    /// Waits for the connection that writes, and sets the durability of its commits.
    async fn connection(&self, lasting: Lasting, act: &'static str) -> Result<Writer, Error> {
        let step = info_span!(target: STEP, "store", what = act);
        let turn = step.in_scope(|| info_span!(target: STEP, "turn"));
        let _turn = self.turns.next().instrument(turn).await.map_err(failed(act))?;
        let acquired = tokio::time::timeout(WAIT, self.writer.acquire()).await;
        let mut connection = acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(failed(act))?;
        // A connection starts in mode `NORMAL`. A writer may have been dropped before it could reset `FULL`,
        // so the next writer that does not need `FULL` resets the mode. A writer that needs `FULL` always
        // sets it.
        let pragma = match lasting {
            Lasting::Process => {
                self.turns.synced.load(Ordering::Acquire).then_some("PRAGMA synchronous = NORMAL")
            }
            Lasting::Machine => Some("PRAGMA synchronous = FULL"),
        };
        if let Some(pragma) = pragma {
            self.turns.synced.store(true, Ordering::Release);
            sqlx::query(pragma).execute(&mut *connection).await.map_err(failed(act))?;
            self.turns.synced.store(lasting == Lasting::Machine, Ordering::Release);
        }
        Ok(Writer { connection, turns: Arc::clone(&self.turns), _turn, _step: step })
    }
}

impl Turns {
    /// Waits for this writer's turn: at most `TURN_WITHIN` while the queue moves, but only `WAIT` while it is
    /// stalled.
    async fn next(&self) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let deadline = Instant::now() + TURN_WITHIN;
        let mut turn = pin!(Arc::clone(&self.queue).acquire_owned());
        let mut begun = self.begun.load(Ordering::Acquire);
        let mut nobody = 0;
        while nobody < LOOKS && Instant::now() < deadline {
            if let Ok(turn) = tokio::time::timeout(WAIT / LOOKS, &mut turn).await {
                return turn.map_err(|_| sqlx::Error::PoolClosed);
            }
            let now = self.begun.load(Ordering::Acquire);
            nobody = if now == begun { nobody + 1 } else { 0 };
            begun = now;
        }
        Err(sqlx::Error::PoolTimedOut)
    }
}

impl Deref for Writer {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

/// Begins a transaction that holds the write lock from the start. A transaction that is dropped without a
/// commit is rolled back.
async fn begin<'c>(writer: &'c mut Writer, act: &'static str) -> Result<Transaction<'c, Sqlite>, Error> {
    let transaction = writer.connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed(act))?;
    writer.turns.begun.fetch_add(1, Ordering::AcqRel);
    Ok(transaction)
}

impl Writer {
    /// Counts a statement that ran outside of a transaction as progress of the queue.
    fn had_its_turn(&self) {
        self.turns.begun.fetch_add(1, Ordering::AcqRel);
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

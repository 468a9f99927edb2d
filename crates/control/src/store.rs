//! What the platform remembers: projects, keys, sealed secrets, and every sandbox that was asked for, in one SQLite file.
//!
//! Each method is one intention and one transaction. Writers take the write lock first (`BEGIN IMMEDIATE`), so whatever
//! a decision was made on still holds when it is written down: a quota cannot be overrun between counting and inserting.
//! Readers have connections of their own, which no writer blocks (write-ahead log), and of which no project has more than half (`read`).
//!
//! ```text
//! starting ──▶ running ──▶ stopping ──▶ ended, lost     forwards only; nothing comes after the last two
//! ```
//!
//! **When the store does not answer**, every method says so within [`WAIT`] twice over; a long queue that moves is not silence.
//! What runs on the node goes on, and the node's journal keeps what happened until it can be written here.
//!
//! **What survives.** A killed server loses nothing that was answered. A power cut may lose the last changes of sandboxes, which
//! it ends anyway; it loses no key and no project.
//!
//! **What is damaged** is never taken for empty: a store is made whole under another name and then renamed, so a file without
//! our tables, also an empty one, is [`Error::Damaged`], and so is a write-ahead log without its file. A log that SQLite would
//! ignore is [`Error::Log`]; keys, projects and secrets are never only in the log (`wal`).
//!
//! **On a full disk** a key can still be revoked (`reserve`). **When the clock goes back** what has expired stays so (`time`).
//!
//! **Versions.** Migrations are embedded, numbered from 1, one at most per release, and only go forward. A store that is one step
//! newer is opened all the same, so that a release can be taken back; one that is newer still is refused
//! ([`Error::Newer`]). So a migration may only add what the release before ignores: tables, indices, columns with a default;
//! and a stored body may only gain fields and values that the release before reads.

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
use time::Latest;

/// How long a caller waits for its turn while nobody gets one, and then once more for a lock that another process holds. A create
/// must be refused within a second of a store's silence (L-04).
pub const WAIT: Duration = Duration::from_millis(500);
/// In how many looks a caller finds that nobody gets a turn. A server that was itself stopped, by a hypervisor or a debugger, has
/// missed one look and not all: its own sleep is nobody's silence.
const LOOKS: u32 = 5;
/// How long a disk may take to open the file when a server starts. Nobody waits for an answer then, and there is no server without it.
const OPENING: Duration = Duration::from_secs(10);
/// How long a caller waits for its turn as long as those before it get theirs: half of what a client waits for an answer.
const TURN_WITHIN: Duration = Duration::from_secs(30);
/// What a connection keeps of the file, in KiB as SQLite writes it: the upper pages of every index. The kernel has the rest, and
/// a server does not grow with its history.
const CACHE: &str = "-256";

/// The store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// The one connection that writes: writers queue here in order instead of polling for SQLite's lock.
    writer: SqlitePool,
    readers: Readers,
    turns: Arc<Turns>,
    /// By what keys expire.
    latest: Arc<Latest>,
    /// For revocations on a full disk.
    reserve: Arc<Reserve>,
}

/// Whose turn it is to write, in the order of asking.
#[derive(Debug)]
struct Turns {
    queue: Arc<Semaphore>,
    /// Transactions that got the write lock: while they do, whoever waits will have its turn.
    begun: AtomicU64,
    /// Whether the connection may wait for the disk at each commit.
    synced: AtomicBool,
    /// Whether the log holds what should be in the file by now.
    unfolded: AtomicBool,
}

/// The one connection that writes, in the hand of whoever has the turn.
struct Writer {
    connection: PoolConnection<Sqlite>,
    turns: Arc<Turns>,
    _turn: OwnedSemaphorePermit,
    /// From asking for the turn until this is given up, which is when the transaction has ended.
    _step: Span,
}

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not answer: locked, no room on the disk, no such directory. Asking again is safe.
    #[error("the store cannot {act}")]
    Unavailable {
        /// What was to be done.
        act: &'static str,
        /// What went wrong.
        #[source]
        source: sqlx::Error,
    },
    /// It cannot be understood. Nothing may be concluded from what it lacks.
    #[error(
        "the store is damaged: {0}; restore the store from a copy, or move the store away to start with an empty store"
    )]
    Damaged(String),
    /// Its write-ahead log has content that SQLite would ignore.
    #[error(
        "the store is damaged: its write-ahead log {path} has content but no valid header; restore a copy of the store and of its \
         log, or move the log away: the latest states of sandboxes are then lost, but keys, projects and secrets are in the \
         store itself"
    )]
    Log {
        /// Where.
        path: String,
    },
    /// A key is refused, and that is only in memory.
    #[error(
        "key {key} is revoked, but the revocation could not be saved to disk: the key would work again if the server stopped now"
    )]
    NotLasting {
        /// The key.
        key: String,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// It was written by a later release.
    #[error(
        "the store has schema {found}, but this release supports schemas up to {known}; use a later release"
    )]
    Newer {
        /// The schema of the file.
        found: i64,
        /// The newest schema this release knows.
        known: i64,
    },
    /// The idempotency key, or the id, was used for another request.
    #[error("the same key was used for another request")]
    Conflict,
    /// A live sandbox of the project has this name.
    #[error("a live sandbox already has the name {0}")]
    NameTaken(String),
    /// The project would have more than its quota.
    #[error("the request exceeds the project's quota: {what} is {most}")]
    Quota {
        /// The field of the quota.
        what: &'static str,
        /// Its value.
        most: u64,
    },
    /// There is no such project.
    #[error("there is no project {0:?}")]
    NoProject(String),
    /// The cursor is not one that a page gave.
    #[error("the cursor is invalid")]
    Cursor,
}

/// Whether a write is on the disk when it is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasting {
    /// After a killed server, not after a power cut: `synchronous=NORMAL`, no wait for the disk.
    Process,
    /// After a power cut too. A key that was revoked must not come back, one that was shown must work. With `FULL`, SQLite syncs
    /// the write-ahead log before it says yes; unlike a checkpoint, that waits for no reader.
    Machine,
}

impl Store {
    /// Opens the store, or makes it where there is none. One process at a time may do so: the node's lock on the data directory
    /// sees to that.
    ///
    /// # Errors
    /// It is damaged, too new, locked, or cannot be made.
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
        // Only now, because it writes. A copy that was made with SQLite's own tools may have another mode.
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut *connection)
            .await
            .map_err(failed("be opened"))?;
        schema::migrate(&mut connection).await?;
        drop(connection);
        let readers = Readers::open(&options.read_only(true)).await.map_err(failed("be opened"))?;
        let store = Self { writer, readers, turns, latest, reserve };
        store.read_time().await?;
        // What cannot be written yet is refused from memory.
        let _ = store.write_revocations().await;
        Ok(store)
    }

    /// Does what could not be done before, or is due: writes revocations and the time, empties the log. To be called now and then.
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

    /// Whether the store can be written now: the time is.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn ping(&self) -> Result<(), Error> {
        const ACT: &str = "be written";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        if api::defence::is_off("L-11") {
            return begin(&mut connection, ACT).await?.rollback().await.map_err(failed(ACT));
        }
        self.write_time(&mut connection, ACT).await
    }

    /// Waits for what is under way and closes the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// The one connection that writes.
    async fn connection(&self, lasting: Lasting, act: &'static str) -> Result<Writer, Error> {
        let step = info_span!(target: STEP, "store", what = act);
        let turn = step.in_scope(|| info_span!(target: STEP, "turn"));
        let _turn = self.turns.next().instrument(turn).await.map_err(failed(act))?;
        let acquired = tokio::time::timeout(WAIT, self.writer.acquire()).await;
        let mut connection = acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(failed(act))?;
        // A connection begins with the first. Whoever had it before may have been dropped before it could set this back, so the next one
        // does; and nobody relies on the second being set.
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
    /// Waits for a turn: long behind many that get theirs, and not long behind one that does not.
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

/// Begins a transaction that already has the write lock. Dropped without a commit, it leaves nothing.
async fn begin<'c>(writer: &'c mut Writer, act: &'static str) -> Result<Transaction<'c, Sqlite>, Error> {
    let transaction = writer.connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed(act))?;
    writer.turns.begun.fetch_add(1, Ordering::AcqRel);
    Ok(transaction)
}

impl Writer {
    /// A statement of its own was done: whoever waits sees that turns go on.
    fn had_its_turn(&self) {
        self.turns.begun.fetch_add(1, Ordering::AcqRel);
    }
}

/// Of one connection.
fn pool() -> SqlitePoolOptions {
    // Connections to a file do not go stale, and the last one to leave would take the write-ahead log with it.
    SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(OPENING)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // Where the disk is full, SQLite itself rolls a transaction back, and then the driver's own rollback fails: it
                // takes the transaction for open and would refuse every later one. The ping waits for that rollback.
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

/// Tells damage from silence.
fn failed(act: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    /// `SQLITE_CORRUPT` and `SQLITE_NOTADB`, the low byte of their extended codes.
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

/// The body of a row.
fn parse<T: serde::de::DeserializeOwned>(id: &str, body: &str) -> Result<T, Error> {
    serde_json::from_str(body).map_err(|error| Error::Damaged(format!("row {id}: {error}")))
}

fn body<T: serde::Serialize>(id: &str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Damaged(format!("row {id}: {error}")))
}

/// SQLite's integers are signed. What is larger than the largest of them is as good as it.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// `<path><suffix>`, as SQLite names the files beside its own.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

//! What the platform remembers: projects, keys, sealed secrets, and every sandbox that was asked for, in one SQLite file.
//!
//! Each method is one intention and one transaction. Writers take the write lock first (`BEGIN IMMEDIATE`), so whatever
//! a decision was made on still holds when it is written down: a quota cannot be overrun between counting and inserting.
//! Readers have connections of their own, which no writer blocks (write-ahead log).
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
//! our tables, also an empty one, is [`Error::Damaged`], and so is a write-ahead log without its file.
//!
//! **Versions.** Migrations are embedded, numbered from 1, one at most per release, and only go forward. A store that is one step
//! newer is opened all the same, so that a release can be taken back; one that is newer still is refused
//! ([`Error::Newer`]). So a migration may only add what the release before ignores: tables, indices, columns with a default;
//! and a stored body may only gain fields and values that the release before reads.

mod account;
mod history;
mod request;
mod schema;
mod secret;
mod session;
#[cfg(test)]
mod tests;

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

pub use request::{Request, Requested};

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
/// Reads are single index lookups or a page; two cores have no use for more of them at once.
const READERS: u32 = 4;

/// The store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// The one connection that writes: writers queue here in order instead of polling for SQLite's lock.
    writer: SqlitePool,
    readers: SqlitePool,
    turns: Arc<Turns>,
}

/// Whose turn it is to write, in the order of asking.
#[derive(Debug)]
struct Turns {
    queue: Arc<Semaphore>,
    /// Transactions that got the write lock: while they do, whoever waits will have its turn.
    begun: AtomicU64,
    /// Whether the connection may wait for the disk at each commit.
    synced: AtomicBool,
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
    #[error("the store is damaged: {0}; put back a copy of it, or move it away to begin with an empty one")]
    Damaged(String),
    /// It was written by a later release.
    #[error("the store has schema {found}, and this release knows {known}: use a later release")]
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
    #[error("a live sandbox has the name {0}")]
    NameTaken(String),
    /// The project would have more than its quota.
    #[error("the project's quota of {what} is {most}")]
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
    #[error("the cursor is not one that a page gave")]
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
        let options = options(path);
        let writer = pool(1, OPENING).connect_with(options.clone()).await.map_err(failed("be opened"))?;
        let readers = pool(READERS, WAIT).connect_lazy_with(options.read_only(true));
        let turns = Arc::new(Turns {
            queue: Arc::new(Semaphore::new(1)),
            begun: AtomicU64::new(0),
            synced: AtomicBool::new(false),
        });
        let store = Self { writer, readers, turns };
        let mut connection = store.writer.acquire().await.map_err(failed("be opened"))?;
        schema::check(&mut connection).await?;
        // Only now, because it writes. A copy that was made with SQLite's own tools may have another mode.
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut *connection)
            .await
            .map_err(failed("be opened"))?;
        schema::migrate(&mut connection).await?;
        drop(connection);
        store.first_reader().await?;
        Ok(store)
    }

    /// Opens the file for whoever reads, with the patience of a start: later ones have one that is open.
    async fn first_reader(&self) -> Result<(), Error> {
        let deadline = Instant::now() + OPENING;
        loop {
            match self.readers.acquire().await {
                Ok(_) => return Ok(()),
                Err(sqlx::Error::PoolTimedOut) if Instant::now() < deadline => {}
                Err(error) => return Err(failed("be opened")(error)),
            }
        }
    }

    /// Whether the store can be written now.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn ping(&self) -> Result<(), Error> {
        const ACT: &str = "be written";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        begin(&mut connection, ACT).await?.rollback().await.map_err(failed(ACT))
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

fn pool(most: u32, within: Duration) -> SqlitePoolOptions {
    // Connections to a file do not go stale, and the last one to leave would take the write-ahead log with it.
    SqlitePoolOptions::new()
        .max_connections(most)
        .acquire_timeout(within)
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
    serde_json::from_str(body).map_err(|error| Error::Damaged(format!("the row of {id}: {error}")))
}

fn body<T: serde::Serialize>(id: &str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Damaged(format!("the row of {id}: {error}")))
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

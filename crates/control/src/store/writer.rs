//! The connection that writes, and the queue of its writers.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::trace::STEP;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Sqlite, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{Instrument as _, Span, info_span};

use super::{Error, Store, WAIT, failed};

/// Number of polls without progress after which a writer considers the queue stalled. If a hypervisor or a
/// debugger suspends the server itself, at most one poll sees no progress. The suspension is therefore not
/// mistaken for a stalled queue.
const LOOKS: u32 = 5;
/// Timeout for waiting in a write queue that is moving. It is half of a client's timeout.
const TURN_WITHIN: Duration = Duration::from_secs(30);

/// The queue of writers, in order of arrival.
#[derive(Debug)]
pub(super) struct Turns {
    queue: Arc<Semaphore>,
    /// Number of transactions that have acquired the write lock. While this number grows, the queue is
    /// moving.
    begun: AtomicU64,
    /// True if the connection may be in the mode `synchronous=FULL`, which waits for the disk at each commit.
    synced: AtomicBool,
    /// True if the write-ahead log contains changes that a failed checkpoint should have moved to the store's
    /// file.
    pub(super) unfolded: AtomicBool,
}

/// The writing connection, held by the writer at the head of the queue.
pub(super) struct Writer {
    connection: PoolConnection<Sqlite>,
    turns: Arc<Turns>,
    _turn: OwnedSemaphorePermit,
    /// Span that begins when the writer enters the queue, and ends when this value is dropped, after the
    /// transaction.
    _step: Span,
}

/// Durability of a write when its method returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasting {
    /// Survives a killed server, but not a power failure: `synchronous=NORMAL`, which does not wait for the
    /// disk.
    Process,
    /// Survives a power failure too. This is required because a revoked key must never become valid again,
    /// and a key that was handed out must work. With `synchronous=FULL`, SQLite syncs the write-ahead log
    /// before a commit returns. Unlike a checkpoint, this does not wait for readers.
    Machine,
}

impl Store {
    /// Waits for the connection that writes, and sets the durability of its commits.
    pub(super) async fn connection(&self, lasting: Lasting, act: &'static str) -> Result<Writer, Error> {
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
    /// Creates an empty queue.
    pub(super) fn new() -> Self {
        Self {
            queue: Arc::new(Semaphore::new(1)),
            begun: AtomicU64::new(0),
            synced: AtomicBool::new(false),
            unfolded: AtomicBool::new(false),
        }
    }

    /// Waits for this writer's turn: at most `TURN_WITHIN` while the queue moves, but only `WAIT` while it is
    /// stalled.
    async fn next(&self) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        let deadline = Instant::now() + TURN_WITHIN;
        let mut turn = pin!(Arc::clone(&self.queue).acquire_owned());
        let mut begun = self.begun.load(Ordering::Acquire);
        let mut stalled = 0;
        while stalled < LOOKS && Instant::now() < deadline {
            if let Ok(turn) = tokio::time::timeout(WAIT / LOOKS, &mut turn).await {
                return turn.map_err(|_| sqlx::Error::PoolClosed);
            }
            let now = self.begun.load(Ordering::Acquire);
            stalled = if now == begun { stalled + 1 } else { 0 };
            begun = now;
        }
        Err(sqlx::Error::PoolTimedOut)
    }
}

impl Writer {
    /// Counts a statement that ran outside of a transaction as progress of the queue.
    pub(super) fn had_its_turn(&self) {
        self.turns.begun.fetch_add(1, Ordering::AcqRel);
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
pub(super) async fn begin<'c>(
    writer: &'c mut Writer,
    act: &'static str,
) -> Result<Transaction<'c, Sqlite>, Error> {
    let transaction = writer.connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed(act))?;
    writer.turns.begun.fetch_add(1, Ordering::AcqRel);
    Ok(transaction)
}

//! Connections that read, and whose turn it is. A project has at most half of them, so that one that floods the store waits behind
//! itself, and others wait for a few short reads at most.
//!
//! They are our own few and no pool of the driver's: that one takes a connection back in a task of its own, so whoever has left still
//! holds it while the server is busy, and no count of turns would be right.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::{Error, OPENING, Store, WAIT, failed};

/// Reads are single index lookups or a page; two cores have no use for more of them at once.
const READERS: usize = 4;
/// Reads of one project at once.
const PROJECT_READERS: usize = READERS / 2;
/// How long a read waits behind others of its project. Each takes milliseconds: whoever waits longer has thousands under way.
const TURN_WITHIN: Duration = Duration::from_secs(10);

/// Whom a read is for.
#[derive(Clone, Copy)]
pub(super) enum For<'a> {
    /// A project.
    Project(&'a str),
    /// Whoever shows a key that is not known yet.
    Stranger,
    /// The server, or its administrator.
    Server,
}

/// The connections that read. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    connections: Arc<[Arc<tokio::sync::Mutex<SqliteConnection>>]>,
    /// As many as there are connections: whoever has one finds a connection in nobody's hand.
    places: Arc<Semaphore>,
    /// By project; that of strangers has no name. There are as many as an administrator made.
    turns: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// A connection that reads, in the hand of whose turn it is. The fields are given back in this order.
pub(super) struct Reader {
    connection: OwnedMutexGuard<SqliteConnection>,
    _place: OwnedSemaphorePermit,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Readers {
    /// Opens them, with the patience of a start.
    pub(super) async fn open(options: &SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let opened = async {
            let mut connections = Vec::new();
            for _ in 0..READERS {
                connections.push(Arc::new(tokio::sync::Mutex::new(options.connect().await?)));
            }
            Ok(connections)
        };
        let opened = tokio::time::timeout(OPENING, opened).await;
        let connections = opened.unwrap_or(Err(sqlx::Error::PoolTimedOut))?.into();
        Ok(Self { connections, places: Arc::new(Semaphore::new(READERS)), turns: Arc::default() })
    }

    /// A connection, when it is the turn of whom it is for.
    pub(super) async fn next(&self, whom: For<'_>) -> Result<Reader, sqlx::Error> {
        let turn = match whom {
            For::Server => None,
            For::Project(_) | For::Stranger if api::defence::is_off("H-41") => None,
            For::Project(name) => Some(within(TURN_WITHIN, self.turns_of(name)).await?),
            For::Stranger => Some(within(TURN_WITHIN, self.turns_of("")).await?),
        };
        let place = within(WAIT, Arc::clone(&self.places)).await?;
        let mut free = self.connections.iter().filter_map(|one| Arc::clone(one).try_lock_owned().ok());
        let connection = free.next().ok_or(sqlx::Error::PoolTimedOut)?;
        Ok(Reader { connection, _place: place, _turn: turn })
    }

    /// Waits for those that read. Nobody reads afterwards.
    pub(super) async fn close(&self) {
        for connection in self.connections.iter() {
            drop(connection.lock().await);
        }
        self.places.close();
    }

    fn turns_of(&self, name: &str) -> Arc<Semaphore> {
        let mut all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(name) {
            Some(turns) => Arc::clone(turns),
            None => {
                let turns = Arc::new(Semaphore::new(PROJECT_READERS));
                all.insert(name.to_owned(), Arc::clone(&turns));
                turns
            }
        }
    }
}

impl Deref for Reader {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

impl Store {
    /// A connection to read with, when it is the turn of whom it is for.
    pub(super) async fn reader(&self, whom: For<'_>, act: &'static str) -> Result<Reader, Error> {
        self.readers.next(whom).await.map_err(failed(act))
    }
}

async fn within(time: Duration, places: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, sqlx::Error> {
    match tokio::time::timeout(time, places.acquire_owned()).await {
        Ok(place) => place.map_err(|_| sqlx::Error::PoolClosed),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

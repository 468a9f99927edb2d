//! Connections for reading, and their scheduling. A project can use at most half of the connections. If a
//! project floods the store with reads, its own reads queue up, while the reads of other projects wait only
//! for a few short reads.
//!
//! The connections are not in the driver's own pool, because it takes connections back in a separate task. On
//! a busy server, that task runs late, so the connection of a dropped caller is not free yet although its
//! permit is.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::{Error, OPENING, Store, WAIT, failed};

/// Number of connections. A read is a single index lookup or fetches one page, so two cores cannot keep more
/// connections busy.
const READERS: usize = 4;
/// Maximum number of concurrent reads of one project.
const PROJECT_READERS: usize = READERS / 2;
/// Timeout for a read that waits behind other reads of its project. Each read takes milliseconds, so only a
/// project with thousands of queued reads reaches this timeout.
const TURN_WITHIN: Duration = Duration::from_secs(10);

/// Party on whose behalf the store is read.
#[derive(Clone, Copy)]
pub(super) enum For<'a> {
    /// A project.
    Project(&'a str),
    /// A caller whose key is not cached yet.
    Stranger,
    /// The server or its administrator.
    Server,
}

/// The connections for reading. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    connections: Arc<[Arc<tokio::sync::Mutex<SqliteConnection>>]>,
    /// One permit per connection: the holder of a permit always finds a free connection.
    places: Arc<Semaphore>,
    /// Permits by project. Callers whose keys are not cached share the empty name. The map needs no limit,
    /// because only administrators create projects.
    turns: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// Connection for reading that is in use. Its fields are dropped in the order of their declaration, so the
/// connection is free before its permits are.
pub(super) struct ReadConnection {
    connection: OwnedMutexGuard<SqliteConnection>,
    _place: OwnedSemaphorePermit,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Readers {
    /// Opens the connections, with the timeout for a server start.
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

    /// Waits for a free connection and returns it. Any party except the server first waits for a permit.
    pub(super) async fn next(&self, whom: For<'_>) -> Result<ReadConnection, sqlx::Error> {
        let turn = match whom {
            For::Server => None,
            For::Project(_) | For::Stranger if api::defence::is_off("H-41") => None,
            For::Project(name) => Some(within(TURN_WITHIN, self.turns_of(name)).await?),
            For::Stranger => Some(within(TURN_WITHIN, self.turns_of("")).await?),
        };
        let place = within(WAIT, Arc::clone(&self.places)).await?;
        let mut free = self.connections.iter().filter_map(|one| Arc::clone(one).try_lock_owned().ok());
        let connection = free.next().ok_or(sqlx::Error::PoolTimedOut)?;
        Ok(ReadConnection { connection, _place: place, _turn: turn })
    }

    /// Waits until running reads have ended, and prevents new ones.
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

impl Deref for ReadConnection {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for ReadConnection {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

impl Store {
    /// Waits for a free connection and returns it. Any party except the server first waits for a permit.
    pub(super) async fn reader(&self, whom: For<'_>, act: &'static str) -> Result<ReadConnection, Error> {
        self.readers.next(whom).await.map_err(failed(act))
    }
}

async fn within(time: Duration, places: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, sqlx::Error> {
    match tokio::time::timeout(time, places.acquire_owned()).await {
        Ok(place) => place.map_err(|_| sqlx::Error::PoolClosed),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

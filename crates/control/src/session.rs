//! Sessions. A session is a sequence of tool calls by one agent. The calls share files and a sandbox, which
//! is created for the first call.
//!
//! ```text
//! call ─▶ validation (tools) ─▶ queue (FIFO) ─▶ sandbox, created or found ─▶ datasets ─▶ run ─▶ files stored ─▶ response
//! ```
//!
//! A call continues if its client disconnects, unless the client requested that it be cancelled in that case.
//! The record of a session is in the store, and its files are on the node. The queue of calls is only in
//! memory, so it is empty after the server restarts.
//!
//! | module | contents |
//! |---|---|
//! | [`flight`] | a call in progress, shared by all callers that wait for it |
//! | `call` | a call, from its request to its flight |
//! | `queue` | the queue of calls |
//! | `run` | a run: one tool call, from its turn in the queue to its response |
//! | `tool` | the steps of each tool |
//! | `sandbox` | the sandbox of a session: created, reused, replaced, released |
//! | `exec` | one exec of a run: its output for listeners, for the response and for storage |
//! | `history` | the stored runs and their output |
//! | `dataset` | the datasets of a session |
//! | `files` | files that a session stores |

mod call;
mod dataset;
mod exec;
mod files;
pub mod flight;
mod history;
mod queue;
mod run;
pub(crate) mod sandbox;
mod tool;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::limits::{Limits, WantedLimits};
use api::session::{CreateSession, Session, SessionEvent, SessionState, ToolSet};
use api::{Error, ErrorCode, ExecId, SessionId};
use node::{Folder, clock};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;

use crate::account::Account;
use crate::audit::Act;
use crate::fault::Answer;
use crate::platform::Platform;
use crate::store::SessionRecord;
pub use call::ToolRequest;
pub use dataset::dataset_key;
pub use files::whole;
use flight::Flight;
use queue::Queue;

/// Maximum number of events that are buffered for a slow client.
const EVENTS: usize = 256;
/// Timeout for the session's current run when the session ends. The run's last event should be published
/// before the event about the end of the session.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(10);

/// Sessions in memory. A session is loaded when a request names it, and dropped later when it is not in use.
#[derive(Default)]
pub struct Sessions {
    live: Mutex<HashMap<SessionId, Arc<Live>>>,
}

/// A session that is loaded in memory.
pub struct Live {
    id: SessionId,
    project: String,
    record: tokio::sync::Mutex<SessionRecord>,
    queue: Arc<Queue>,
    events: broadcast::Sender<SessionEvent>,
    flights: Mutex<HashMap<ExecId, Arc<Flight>>>,
    folder: Folder,
}

impl Sessions {
    /// Creates a session, without starting a sandbox.
    ///
    /// # Errors
    /// Returns an error if the request is invalid or the project is at its limit.
    pub async fn create(
        &self,
        platform: &Platform,
        account: &Account,
        request: &CreateSession,
        idempotency: Option<&str>,
    ) -> Answer<Session> {
        request.check()?;
        let policy = request.policy.clone().unwrap_or_default();
        if policy.open && !account.quota.open {
            return Err(node::plan::not_open(&account.key.project).into());
        }
        platform.node.vouch(&account.key.project, &policy).await?;
        let limits = WantedLimits {
            // Use the default that the tool descriptions state, regardless of the template (requirement
            // A8.02).
            memory_bytes: request.limits.memory_bytes.or(Some(Limits::default().memory_bytes)),
            // The lifetime of a sandbox must not limit how long a session can be used (requirement A1.05), so
            // use the maximum.
            ttl_ms: request.limits.ttl_ms.or(Some(Limits::MAX.ttl_ms)),
            tmp_bytes: request.limits.tmp_bytes.or(match request.set {
                // Datasets and results must remain for the lifetime of the session (requirement A2.07), so
                // store `/tmp` on disk.
                ToolSet::Analysis => Some(0),
                ToolSet::Python | ToolSet::Interpreter => None,
            }),
            ..request.limits
        };
        let session = Session {
            id: SessionId::from_random(node::machine::random()?),
            project: account.key.project.clone(),
            set: request.set,
            template: request.template.clone().unwrap_or_else(|| request.set.name().to_owned()),
            persistence: request.persistence.unwrap_or(request.set.persistence()),
            tier: request.tier,
            limits,
            timeout_seconds: request.timeout_seconds,
            idle_ms: request.idle_ms,
            policy,
            state: SessionState::Open,
            sandbox: None,
            datasets: Vec::new(),
            created_at_ms: clock::wall_ms(),
            ended_at_ms: None,
        };
        let hash: [u8; 32] = Sha256::digest(serde_json::to_vec(request).unwrap_or_default()).into();
        let record =
            SessionRecord { session, spent: 0, prepared: false, placed: Vec::new(), runs: VecDeque::new() };
        let known = platform.store.create_session(&record, idempotency.map(|key| (key, hash))).await?;
        if known.is_none() {
            let id = record.session.id.as_str();
            platform.note(account, Act::SessionCreate, |entry| entry.detail(id));
        }
        Ok(known.unwrap_or(record).session)
    }

    /// Returns the project's session with this ID. A session of another project is reported as missing.
    ///
    /// # Errors
    /// Returns `not_found` if the session does not exist, and a different error if the store does not
    /// respond.
    pub async fn find(&self, platform: &Platform, account: &Account, named: &str) -> Answer<Arc<Live>> {
        let project = &account.key.project;
        let id = named.parse::<SessionId>().map_err(|_| missing(named))?;
        let known = locked(&self.live).get(&id).map(Arc::clone);
        if let Some(live) = known {
            return if live.project == *project { Ok(live) } else { Err(missing(named).into()) };
        }
        let record = platform.store.session(project, &id).await?.ok_or_else(|| missing(named))?;
        let folder = platform.node.folder(project, &id);
        let mut live = locked(&self.live);
        let found = live.entry(id).or_insert_with_key(|id| Arc::new(Live::new(id.clone(), record, folder)));
        Ok(Arc::clone(found))
    }

    /// Deletes sessions that have not changed since `before_ms`, with all their data. Also drops unused
    /// sessions from memory.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn tidy(&self, platform: &Platform, before_ms: u64) -> Result<(), crate::store::Error> {
        locked(&self.live).retain(|_, live| Arc::strong_count(live) > 1);
        for session in platform.store.old_sessions(before_ms).await? {
            if locked(&self.live).contains_key(&session.id) {
                continue;
            }
            let lives = session.sandbox.as_ref().and_then(|id| platform.node.find(id));
            if lives.is_some_and(|sandbox| !sandbox.state.is_terminal()) {
                continue;
            }
            if let Err(error) = platform.node.folder(&session.project, &session.id).remove(&[]).await {
                tracing::warn!(
                    session = %session.id,
                    error = node::error::chain(&error),
                    "cannot remove the files of an old session; will retry"
                );
                continue;
            }
            platform.store.forget_session(&session.id).await?;
        }
        Ok(())
    }
}

impl Live {
    fn new(id: SessionId, record: SessionRecord, folder: Folder) -> Self {
        Self {
            id,
            project: record.session.project.clone(),
            record: tokio::sync::Mutex::new(record),
            queue: Arc::default(),
            events: broadcast::Sender::new(EVENTS),
            flights: Mutex::default(),
            folder,
        }
    }

    /// Returns the session.
    pub async fn shown(&self) -> Session {
        self.record.lock().await.session.clone()
    }

    /// Subscribes to the events of the session.
    pub fn events(&self) -> broadcast::Receiver<SessionEvent> {
        self.events.subscribe()
    }

    /// Ends the session: stops its sandbox and rejects further calls. If the sandbox cannot be stopped, the
    /// failure is logged, and the sandbox's own limits end it later (requirement A1.04). This operation can
    /// be repeated.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn end(&self, platform: &Platform, account: &Account) -> Answer<Session> {
        let mut record = self.record.lock().await;
        if record.session.state == SessionState::Open {
            record.session.state = SessionState::Ended;
            record.session.ended_at_ms = Some(clock::wall_ms());
            self.save(platform, &record).await?;
            platform.note(account, Act::SessionEnd, |entry| entry.detail(self.id.as_str()));
        }
        self.release(platform, account, &mut record).await;
        self.save(platform, &record).await?;
        let session = record.session.clone();
        drop(record);
        // No run of the session needs the datasets any more.
        if let Err(error) = self.folder.remove(&["datasets"]).await {
            tracing::warn!(
                session = %self.id,
                error = node::error::chain(&error),
                "cannot remove the datasets of an ended session; will retry later"
            );
        }
        // Wait until the current run, whose sandbox was stopped, has published its last event.
        let _ = tokio::time::timeout(LAST_WORDS_WITHIN, self.queue.turn()).await;
        self.say(SessionEvent::SessionEnded);
        Ok(session)
    }

    /// Waits for the current run, then stops the session's sandbox, so that the session uses no resources of
    /// the machine (requirement A1.06). This operation can be repeated.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn clean_up(&self, platform: &Platform, account: &Account) -> Answer<Session> {
        let _waiting = self.queue.wait()?;
        let _turn = self.queue.turn().await;
        let mut record = self.record.lock().await;
        self.release(platform, account, &mut record).await;
        self.save(platform, &record).await?;
        Ok(record.session.clone())
    }

    /// Saves the record.
    ///
    /// # Errors
    /// Returns an error if the session was deleted in the meantime or the store does not respond.
    async fn save(&self, platform: &Platform, record: &SessionRecord) -> Answer<()> {
        match platform.store.put_session(record, clock::wall_ms()).await? {
            true => Ok(()),
            false => Err(missing(self.id.as_str()).into()),
        }
    }

    fn say(&self, event: SessionEvent) {
        // Ignore an error, which means that there are no listeners.
        let _ = self.events.send(event);
    }
}

/// Checks that a session has not ended.
fn check_open(session: &Session) -> Result<(), Error> {
    match session.state {
        SessionState::Open => Ok(()),
        SessionState::Ended => Err(Error {
            code: ErrorCode::Conflict,
            ..Error::invalid(format!("session {} has ended", session.id), "Create a new session.")
        }),
    }
}

fn missing(named: &str) -> Error {
    let shown: String = named.chars().take(api::id::ID_BYTES_MAX).collect();
    Error {
        fix: "List the sessions and use one of those.".into(),
        ..Error::not_found(format!("there is no session {shown:?}"))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Sessions: an agent's conversation with one sandbox, which is made when the first tool is called.
//!
//! ```text
//! call ─▶ checked (tools) ─▶ its turn, first come first served ─▶ sandbox, made or found ─▶ datasets ─▶ run ─▶ files kept ─▶ answer
//! ```
//!
//! What a call begins goes on without whoever made it, unless they asked for its end. The record of a session is in the store; what it
//! keeps is the node's; who waits for what is only here, and a server that starts anew has nobody waiting.
//!
//! | module | holds |
//! |---|---|
//! | [`flight`] | a call that is under way, shared by all who wait for it |
//! | `run` | a run: one tool call, from its turn to its answer |
//! | `tool` | what each tool does, step by step |
//! | `sandbox` | the sandbox of a session: made, found, lost, given up |
//! | `exec` | one exec of a run: its output to whoever follows, to the answer and to what is kept |
//! | `files` | files that a session keeps |

mod exec;
pub(crate) mod files;
pub mod flight;
mod run;
pub(crate) mod sandbox;
mod tool;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::limits::{Limits, WantedLimits};
use api::session::{
    CreateSession, DATASETS_BYTES_MAX, DATASETS_MAX, Session, SessionDataset, SessionEvent, SessionState,
    ToolSet, WAITING_MAX, dataset_path,
};
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, SessionId, limits};
use node::{Folder, clock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;

use crate::account::Account;
use crate::audit::{Act, hex};
use crate::fault::Answer;
use crate::platform::Platform;
use flight::Flight;

/// Events that a slow reader may be behind.
const EVENTS: usize = 256;
/// How long the end of a session waits for a run to tell its own.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(10);
/// Runs that a session remembers.
const RUNS_MAX: usize = 200;

/// A session as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// What everybody sees of it.
    pub session: Session,
    /// Sandboxes that it has had and given up: the next one is asked for under a name of its own.
    #[serde(default)]
    spent: u64,
    /// Whether its sandbox has what one begins with: until then nothing that it lacks was removed by anybody.
    #[serde(default)]
    prepared: bool,
    /// Paths of datasets that its sandbox has.
    #[serde(default)]
    placed: Vec<String>,
    /// Its runs, the oldest first.
    #[serde(default)]
    runs: VecDeque<ExecId>,
}

/// The sessions that somebody has asked for since this server started.
#[derive(Default)]
pub struct Sessions {
    live: Mutex<HashMap<SessionId, Arc<Live>>>,
}

/// A session in use.
pub struct Live {
    id: SessionId,
    project: String,
    record: tokio::sync::Mutex<Record>,
    /// Whose turn it is. It is fair: whoever asks first is first.
    turn: Arc<tokio::sync::Mutex<Turn>>,
    waiting: AtomicUsize,
    events: broadcast::Sender<SessionEvent>,
    flights: Mutex<HashMap<ExecId, Arc<Flight>>>,
    folder: Folder,
}

/// What only whoever has the turn needs to know.
#[derive(Default)]
struct Turn {
    /// The sandbox that was used last.
    of: Option<api::SandboxId>,
    /// Which version of each of its output files is kept already.
    kept: HashMap<String, String>,
    /// The end of the sandbox of the run before.
    leaving: Option<tokio::task::JoinHandle<()>>,
}

/// A place among those who wait.
struct Waiting(Arc<Live>);

impl Sessions {
    /// Makes a session. Nothing is started for it.
    ///
    /// # Errors
    /// The request is wrong, or the project has as many as it may.
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
            // As every description says, whatever a template has (requirement A8.02).
            memory_bytes: request.limits.memory_bytes.or(Some(Limits::default().memory_bytes)),
            // The lifetime of a sandbox is no business of its calls (requirement A1.05): it lasts as long as any may.
            ttl_ms: request.limits.ttl_ms.or(Some(Limits::MAX.ttl_ms)),
            tmp_bytes: request.limits.tmp_bytes.or(match request.set {
                // Datasets and results are there for as long as the session (requirement A2.07).
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
        let record = Record { session, spent: 0, prepared: false, placed: Vec::new(), runs: VecDeque::new() };
        let known = platform.store.create_session(&record, idempotency.map(|key| (key, hash))).await?;
        if known.is_none() {
            let id = record.session.id.as_str();
            platform.note(account, Act::SessionCreate, |entry| entry.detail(id));
        }
        Ok(known.unwrap_or(record).session)
    }

    /// A session of this project. One of another is not there.
    ///
    /// # Errors
    /// `not_found`, or the store does not answer.
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

    /// Forgets sessions that nobody has used for long, with all that they keep; and those that nobody uses now, as far as they are
    /// only here.
    ///
    /// # Errors
    /// The store does not answer.
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
    fn new(id: SessionId, record: Record, folder: Folder) -> Self {
        Self {
            id,
            project: record.session.project.clone(),
            record: tokio::sync::Mutex::new(record),
            turn: Arc::default(),
            waiting: AtomicUsize::new(0),
            events: broadcast::Sender::new(EVENTS),
            flights: Mutex::default(),
            folder,
        }
    }

    /// How it is.
    pub async fn shown(&self) -> Session {
        self.record.lock().await.session.clone()
    }

    /// What happens in it from now on.
    pub fn events(&self) -> broadcast::Receiver<SessionEvent> {
        self.events.subscribe()
    }

    /// Ends it: its sandbox is stopped, and it takes no more calls. A failure to stop is written to the log; the sandbox's own limits end
    /// it then (requirement A1.04). Can be repeated.
    ///
    /// # Errors
    /// The store does not answer.
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
        // No run of it needs them any more.
        if let Err(error) = self.folder.remove(&["datasets"]).await {
            tracing::warn!(
                session = %self.id,
                error = node::error::chain(&error),
                "cannot remove the datasets of an ended session; will retry later"
            );
        }
        // The run that lost its sandbox tells its end first.
        let _ = tokio::time::timeout(LAST_WORDS_WITHIN, self.turn.lock()).await;
        self.say(SessionEvent::SessionEnded);
        Ok(session)
    }

    /// Frees everything it holds on the machine: waits for the run that goes on, and stops the sandbox (requirement A1.06). Can be repeated.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn clean_up(self: &Arc<Self>, platform: &Platform, account: &Account) -> Answer<Session> {
        let _waiting = self.wait()?;
        let _turn = self.turn.lock().await;
        let mut record = self.record.lock().await;
        self.release(platform, account, &mut record).await;
        self.save(platform, &record).await?;
        Ok(record.session.clone())
    }

    /// Has a dataset be copied into every sandbox from now on: its bytes are there already.
    ///
    /// # Errors
    /// Another name has become the same file, there are too many, or the store does not answer (requirement A5.02).
    pub async fn add_dataset(
        &self,
        platform: &Platform,
        name: &str,
        size_bytes: u64,
    ) -> Answer<SessionDataset> {
        let mut record = self.record.lock().await;
        let dataset = self.check_dataset(&record, name, size_bytes)?;
        record.session.datasets.retain(|other| other.name != name);
        record.session.datasets.push(dataset.clone());
        // What a sandbox has of it is the one before.
        record.placed.retain(|path| *path != dataset.path);
        self.save(platform, &record).await?;
        Ok(dataset)
    }

    /// Whether the bytes of a dataset of this name are in use.
    pub async fn has_dataset(&self, name: &str) -> bool {
        let record = self.record.lock().await;
        check_open(&record.session).is_ok() && record.session.datasets.iter().any(|one| one.name == name)
    }

    /// Refuses a dataset that could not be added, before its bytes are taken.
    ///
    /// # Errors
    /// As [`Live::add_dataset`].
    pub async fn accepts_dataset(&self, name: &str) -> Answer<()> {
        let record = self.record.lock().await;
        Ok(self.check_dataset(&record, name, 0).map(drop)?)
    }

    fn check_dataset(&self, record: &Record, name: &str, size_bytes: u64) -> Result<SessionDataset, Error> {
        check_open(&record.session)?;
        let path = dataset_path(name)?;
        let others = || record.session.datasets.iter().filter(|other| other.name != name);
        if let Some(other) = others().find(|other| other.path == path) {
            return Err(Error {
                code: ErrorCode::Conflict,
                ..Error::invalid(
                    format!("the datasets {:?} and {name:?} would have the same path {path}", other.name),
                    "Give one of the datasets another name.",
                )
            });
        }
        if others().count() >= DATASETS_MAX {
            return Err(limits::exceeded(
                "the number of datasets",
                others().count() as u64 + 1,
                DATASETS_MAX as u64,
            ));
        }
        let whole = others().map(|other| other.size_bytes).sum::<u64>().saturating_add(size_bytes);
        if whole > DATASETS_BYTES_MAX {
            return Err(limits::exceeded(
                "the total size of the session's datasets in bytes",
                whole,
                DATASETS_BYTES_MAX,
            ));
        }
        Ok(SessionDataset { name: name.to_owned(), path, size_bytes })
    }

    /// A place among those who wait for their turn.
    fn wait(self: &Arc<Self>) -> Result<Waiting, Error> {
        let waiting = Waiting(Arc::clone(self));
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            return Err(Error {
                code: ErrorCode::RateLimited,
                message: format!("the session already has {WAITING_MAX} queued calls, the maximum"),
                layer: Layer::Policy,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Wait until some of the queued calls have finished.".into(),
            });
        }
        Ok(waiting)
    }

    /// Writes it down as it is now.
    ///
    /// # Errors
    /// It was forgotten meanwhile, or the store does not answer.
    async fn save(&self, platform: &Platform, record: &Record) -> Answer<()> {
        match platform.store.put_session(record, clock::wall_ms()).await? {
            true => Ok(()),
            false => Err(missing(self.id.as_str()).into()),
        }
    }

    fn say(&self, event: SessionEvent) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the bytes of a dataset are kept under.
pub fn dataset_key(name: &str) -> String {
    hex(&Sha256::digest(name))
}

/// Refuses a session that was ended.
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

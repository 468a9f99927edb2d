//! The audit log: an append-only file of JSON lines, each of which contains the hash of the previous line.
//!
//! ```text
//! {"seq":7,"at_ms":…,"key":"k1","project":"p","act":"exec","sandbox":"s…","exec":"e…","detail":"argv sha256:…","prev":"…"}
//! ```
//!
//! `prev` is the SHA-256 of the previous line without its newline. In the first line, it consists of zeros.
//! Therefore [`verify`] detects changed, removed and inserted lines, and missing files. To detect truncation,
//! it compares the log with the head file beside it (see `files`). An attacker who can change both files can
//! hide a truncation. To detect a truncation even then, store a copy of [`Verified::head`] on a different
//! machine.
//!
//! The log records IDs, actions, sizes and paths. It does not record secrets, environment variables, output
//! or command arguments. Text that a caller chose is truncated to [`DETAIL_BYTES_MAX`] and escaped to
//! printable ASCII.
//!
//! **Recording never blocks.** [`Audit::record`] puts an entry into a bounded queue. If the queue is full,
//! the entry is counted as missed instead, and the count is later recorded in a separate entry. One thread
//! writes the queued entries in groups and syncs them to disk within [`SYNC_EVERY`]. If the server is killed,
//! entries that are still in the queue are lost. After a restart, the server removes an incomplete last line
//! and records the removal in an entry.
//!
//! **The log is rotated.** A full file is renamed, and the chain continues in a new file. When the files
//! together exceed [`Bounds::bytes_max`], the oldest file is removed. An entry then records where the
//! remaining log begins: the number of its first entry, and the hash of the line before that entry.

mod chain;
mod files;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use api::exec::ExecSpec;
use api::{ExecId, SandboxId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

pub use chain::{Verified, hex, verify};
pub use files::Bounds;
use writer::{Word, Writer};

/// Maximum length of an entry's detail. This is enough for a hash and the name of its algorithm, or for a
/// short sentence.
pub const DETAIL_BYTES_MAX: usize = 256;
/// Maximum length of a recorded key ID or project name. Valid IDs and names are shorter; longer text can only
/// be untrusted input.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of entries in the queue. Even the busiest node needs several seconds to produce this many,
/// and they use at most a few megabytes.
const QUEUE: usize = 8192;
/// Interval between syncs to disk. A power failure may lose the entries of one interval.
pub const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Interval at which [`Audit::flush`] retries while the queue is full.
const FLUSH_AGAIN: Duration = Duration::from_millis(5);

/// The audit log. Cheap to clone; the file is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Audit {
    queue: SyncSender<Word>,
    missed: Arc<AtomicU64>,
}

/// Action that an entry records. The log contains no other actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The server started.
    ServerStart,
    /// The server began to shut down.
    ServerStop,
    /// A request had no valid key.
    AuthenticateFailed,
    /// A key's role did not permit the request.
    Forbidden,
    /// A key was created.
    KeyCreate,
    /// A key was replaced by a new one; the detail names both.
    KeyRotate,
    /// A key was revoked.
    KeyRevoke,
    /// A project was created, or its quota changed.
    ProjectPut,
    /// The build of a template was started; the detail is its name.
    TemplateBuild,
    /// A sandbox was created and is running; the detail states whether it was pre-warmed.
    SandboxCreate,
    /// A request to create a sandbox failed; the detail is the error code.
    SandboxRefused,
    /// A stop of a sandbox was requested.
    SandboxStop,
    /// A sandbox ended; the detail is the reason.
    SandboxEnd,
    /// The security posture of a new sandbox did not match its isolation tier.
    PostureMismatch,
    /// A request was refused because no runtime provides the requested isolation tier.
    TierRefused,
    /// A sandbox's idle time or its time to live was changed.
    Lease,
    /// A pause of a sandbox was requested.
    Pause,
    /// A sandbox was resumed.
    Resume,
    /// An exec was started; the detail is the hash of its argv, or the language, length and hash of its code.
    Exec,
    /// A signal was sent to an exec.
    ExecSignal,
    /// An exec was cancelled.
    ExecCancel,
    /// A context was created; the detail is its ID.
    ContextCreate,
    /// A restart of a context was requested.
    ContextRestart,
    /// An interrupt of the running cell of a context was requested.
    ContextInterrupt,
    /// A context was removed.
    ContextRemove,
    /// A port was made public, or private again; the detail states which.
    Port,
    /// A tunnel to a port was opened; the detail is the port.
    Tunnel,
    /// A terminal was opened.
    TerminalOpen,
    /// The policy of a sandbox was changed; the detail is the new policy as text.
    Policy,
    /// Egress from a sandbox was allowed; the detail is the target and the rule.
    Egress,
    /// Egress from a sandbox was refused; the detail is the target and the cause.
    EgressRefused,
    /// A file was written, in whole or in part; the detail is its path.
    FileWrite,
    /// A directory was created.
    FileMake,
    /// A file was moved.
    FileMove,
    /// A file was copied.
    FileCopy,
    /// A file was removed.
    FileRemove,
    /// Text in a file was replaced.
    FileEdit,
    /// An archive was unpacked.
    FileUnpack,
    /// A dataset was stored; the detail is its name.
    DatasetPut,
    /// A dataset was removed.
    DatasetRemove,
    /// A session was created; the detail is its ID.
    SessionCreate,
    /// A session was ended; the detail is its ID.
    SessionEnd,
    /// The stored data of a session was removed; the detail is its ID.
    SessionClear,
    /// A secret was set; the detail is its name.
    SecretSet,
    /// A secret was removed; the detail is its name.
    SecretRemove,
    /// The node started or stopped draining.
    Drain,
    /// A request was refused because it would have exceeded the project's quota.
    QuotaRefused,
    /// Entries were lost because they arrived faster than they could be written, or because a write failed;
    /// the detail holds their count.
    Missed,
    /// An incomplete last line, left behind by a killed server, was removed.
    Torn,
    /// The oldest file of this log was removed; the detail is the position at which the remaining log begins.
    AuditPrune,
    /// Entries were missing at the end of the log when it was opened; the detail is their count.
    AuditCut,
    /// The chain of this log is broken; the detail is the position of the break.
    AuditBroken,
}

/// Entry of the log: an action, and the key, project, sandbox and exec that it concerns. Fields that do not
/// apply are absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    at_ms: u64,
    act: Act,
    key: Option<String>,
    project: Option<String>,
    sandbox: Option<SandboxId>,
    exec: Option<ExecId>,
    detail: Option<String>,
}

/// Error that occurs when the log is opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error("cannot {act} the audit log {path}")]
    File {
        /// Failed operation.
        act: &'static str,
        /// Path of the log.
        path: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the log open for writing.
    #[error("another process is writing the audit log {path}; stop that process first")]
    InUse {
        /// Path of the log.
        path: String,
    },
    /// The existing file is not a valid log.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// Damage found in a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the audit log is damaged: {file}, line {line}: {what}; keep a copy of all files of the log, then move these files away to start a new log"
)]
pub struct Damaged {
    /// Name of the file.
    pub file: String,
    /// Line number in the file, counted from 1, or 0 if the damage does not concern a particular line.
    pub line: u64,
    /// Description of the damage.
    pub what: String,
}

impl Audit {
    /// Opens the log, or creates it if it does not exist, and starts the writer thread. `now_ms` is the time
    /// to record in entries about damage at the end of the log.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, another process is writing to it, or its last
    /// line is not a valid entry.
    pub fn open(path: &Path, now_ms: u64, bounds: Bounds) -> Result<Self, Error> {
        let missed = Arc::<AtomicU64>::default();
        let writer = Writer::open(path, now_ms, Arc::clone(&missed), bounds)?;
        let (queue, words) = mpsc::sync_channel(QUEUE);
        thread::Builder::new().name("audit".into()).spawn(move || writer.run(&words)).map_err(|source| {
            Error::File { act: "start the writer of", path: path.display().to_string(), source }
        })?;
        Ok(Self { queue, missed })
    }

    /// Queues an entry for the writer thread. Never waits.
    pub fn record(&self, entry: Entry) {
        match self.queue.try_send(Word::Entry(Box::new(entry))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until all entries recorded so far are on disk. The server calls this function when it shuts
    /// down.
    pub async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        let mut word = Word::Flush(done);
        loop {
            match self.queue.try_send(word) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) => word = back,
                Err(TrySendError::Disconnected(_)) => return,
            }
            tokio::time::sleep(FLUSH_AGAIN).await;
        }
        // If the writer thread ends, it drops the sender without a message. There is then nothing left to
        // wait for.
        let _ = wait.await;
    }
}

impl Entry {
    /// Creates an entry about an action. `at_ms` is the time of the action in milliseconds since 1970.
    pub fn new(at_ms: u64, act: Act) -> Self {
        Self { at_ms, act, key: None, project: None, sandbox: None, exec: None, detail: None }
    }

    /// Sets the key by its ID. The key's secret is never recorded.
    #[must_use]
    pub fn key(mut self, id: &str) -> Self {
        self.key = Some(printable(id, NAME_BYTES_MAX));
        self
    }

    /// Sets the project.
    #[must_use]
    pub fn project(mut self, name: &str) -> Self {
        self.project = Some(printable(name, NAME_BYTES_MAX));
        self
    }

    /// Sets the sandbox.
    #[must_use]
    pub fn sandbox(mut self, id: &SandboxId) -> Self {
        self.sandbox = Some(id.clone());
        self
    }

    /// Sets the exec.
    #[must_use]
    pub fn exec(mut self, id: &ExecId) -> Self {
        self.exec = Some(id.clone());
        self
    }

    /// Sets the detail, after truncating and escaping it.
    #[must_use]
    pub fn detail(mut self, text: &str) -> Self {
        self.detail = Some(printable(text, DETAIL_BYTES_MAX));
        self
    }

    /// Sets the detail to a description of the exec: the hash of its command, or the language, length and
    /// hash of its code.
    #[must_use]
    pub fn command(self, spec: &ExecSpec) -> Self {
        let Some(code) = &spec.code else { return self.argv(&spec.argv) };
        let (language, bytes) = (code.language.unwrap_or_default().name(), code.source.len());
        let hash: [u8; 32] = Sha256::digest(&code.source).into();
        self.detail(&format!("{language} <code, {bytes} bytes> sha256:{}", chain::hex(&hash)))
    }

    /// Sets the detail to the hash of a command. With the hash, a reader can recognize a known command, but
    /// cannot reconstruct an unknown one.
    #[must_use]
    pub fn argv<W: AsRef<[u8]>>(self, argv: &[W]) -> Self {
        let mut hash = Sha256::new();
        for word in argv {
            // Each word is preceded by its length, so that `["a b"]` and `["a", "b"]` differ.
            hash.update((word.as_ref().len() as u64).to_be_bytes());
            hash.update(word.as_ref());
        }
        let hash: [u8; 32] = hash.finalize().into();
        self.detail(&format!("argv sha256:{}", chain::hex(&hash)))
    }
}

/// Converts text to printable ASCII of at most this length, so that it cannot control a terminal that
/// displays the log.
fn printable(text: &str, bytes_max: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let before = shown.len();
        if c.is_ascii_graphic() || c == ' ' {
            shown.push(c)
        } else {
            shown.extend(c.escape_default())
        }
        if shown.len() > bytes_max {
            shown.truncate(before);
            break;
        }
    }
    shown
}

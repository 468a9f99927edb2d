//! Who did what: a file of JSON lines that only grows, each line carrying the hash of the one before it.
//!
//! ```text
//! {"seq":7,"at_ms":…,"key":"k1","project":"p","act":"exec","sandbox":"s…","exec":"e…","detail":"argv sha256:…","prev":"…"}
//! ```
//!
//! `prev` is the SHA-256 of the line before, without its newline, and zeros in the first line. So a line that is changed, taken
//! out or put in shows ([`verify`]), and so does a file that is missing. What was cut off at the end shows by the head beside the
//! log (`files`); against whoever can change both, [`Verified::head`] is kept elsewhere.
//!
//! Ids, acts, sizes and paths are written down; secrets, variables, output and the words of a command are not. Text that a
//! caller chose is cut to [`DETAIL_BYTES_MAX`] and escaped to printable ASCII.
//!
//! **Nobody waits for it.** [`Audit::record`] puts an entry into a bounded queue or, when that is full, counts it as missed; the
//! count becomes an entry of its own. One thread writes, all that is waiting at once, and has it on the disk within
//! [`SYNC_EVERY`]. A killed server loses what was still in the queue. A line that it left half-written is cut off by the next one,
//! which says so in an entry.
//!
//! **It is rotated.** A file that is full is renamed, and the chain goes on in the next one. When all take more than
//! [`Bounds::bytes_max`], the oldest is removed, which is an entry with the place and the hash at which the rest begins.

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

pub(crate) use chain::hex;
pub use chain::{Verified, verify};
pub use files::Bounds;
use writer::{Word, Writer};

/// What a detail may be long: a hash with its name, or a short sentence.
pub const DETAIL_BYTES_MAX: usize = 256;
/// A key's id or a project's name is shorter; what is longer came from a stranger.
const NAME_BYTES_MAX: usize = 64;
/// Entries waiting to be written: several seconds of the busiest node, at most some megabytes.
const QUEUE: usize = 8192;
/// What a power cut may lose. The disk is not asked more often than this.
pub const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long [`Audit::flush`] waits before it tries a full queue again.
const FLUSH_AGAIN: Duration = Duration::from_millis(5);

/// The audit log. Cheap to clone; the file is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Audit {
    queue: SyncSender<Word>,
    missed: Arc<AtomicU64>,
}

/// What was done. The set is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The server began to serve.
    ServerStart,
    /// The server was told to end.
    ServerStop,
    /// Somebody came without a valid key.
    AuthenticateFailed,
    /// A key's role did not allow what it asked.
    Forbidden,
    /// A key was made.
    KeyCreate,
    /// A new key took the place of another; the detail names both.
    KeyRotate,
    /// A key was revoked.
    KeyRevoke,
    /// A project was made, or its quota changed.
    ProjectPut,
    /// A template was begun to be built; the detail is its name.
    TemplateBuild,
    /// A sandbox was made and runs; the detail says whether one was ready.
    SandboxCreate,
    /// A sandbox was asked for and there is none; the detail is the code of the error.
    SandboxRefused,
    /// A sandbox was told to stop.
    SandboxStop,
    /// A sandbox ended; the detail says why.
    SandboxEnd,
    /// A sandbox was not what its tier promises.
    PostureMismatch,
    /// No runtime is as strong as was asked for.
    TierRefused,
    /// A sandbox's idle time or its time to live was changed.
    Lease,
    /// A sandbox was told to stand still.
    Pause,
    /// A sandbox was told to go on.
    Resume,
    /// An exec was started; the detail is the hash of its argv, or of its code.
    Exec,
    /// An exec was sent a signal.
    ExecSignal,
    /// An exec was cancelled.
    ExecCancel,
    /// A context was asked for; the detail is its id.
    ContextCreate,
    /// A context was told to begin anew.
    ContextRestart,
    /// The cell that runs in a context was told to end.
    ContextInterrupt,
    /// A context was ended.
    ContextRemove,
    /// A port was opened to everybody or closed again; the detail says which.
    Port,
    /// A connection to a port was made through the API; the detail is the port.
    Tunnel,
    /// A terminal was opened.
    TerminalOpen,
    /// A sandbox was given another policy; the detail is its words.
    Policy,
    /// Something was let out of a sandbox; the detail says what, and by which rule.
    Egress,
    /// Something was not let out of a sandbox; the detail says what, and why.
    EgressRefused,
    /// A file was written, in whole or in part; the detail is its path.
    FileWrite,
    /// A directory was made.
    FileMake,
    /// A file was moved.
    FileMove,
    /// A file was copied.
    FileCopy,
    /// A file was removed.
    FileRemove,
    /// A text in a file was replaced.
    FileEdit,
    /// An archive was unpacked.
    FileUnpack,
    /// A dataset was put there; the detail is its name.
    DatasetPut,
    /// A dataset was removed.
    DatasetRemove,
    /// A session was made; the detail is its id.
    SessionCreate,
    /// A session was ended; the detail is its id.
    SessionEnd,
    /// What a session keeps was removed; the detail is its id.
    SessionClear,
    /// A secret was set; the detail is its name.
    SecretSet,
    /// A secret was removed; the detail is its name.
    SecretRemove,
    /// The node was told to take no more sandboxes, or to take them again.
    Drain,
    /// A project was refused what is above its quota or its rate.
    QuotaRefused,
    /// Entries were lost because they came too fast or could not be written; the detail says how many.
    Missed,
    /// A line that a killed server left half-written was cut off.
    Torn,
    /// The oldest file of this log was removed; the detail says where the rest begins.
    AuditPrune,
    /// Entries are missing at the end that were there; the detail says how many.
    AuditCut,
    /// The chain of this log does not hold; the detail says where.
    AuditBroken,
}

/// Something that was done, and by whom. What does not apply is absent.
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

/// Why the log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error("cannot {act} the audit log {path}")]
    File {
        /// What was to be done.
        act: &'static str,
        /// Where.
        path: String,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// Another process writes it.
    #[error("another process is writing the audit log {path}; stop that process first")]
    InUse {
        /// Where.
        path: String,
    },
    /// It is not the log that was written.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// What is wrong with a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the audit log is damaged: {file}, line {line}: {what}; keep a copy of all files of the log, then move these files away to start a new log"
)]
pub struct Damaged {
    /// The name of the file.
    pub file: String,
    /// The line of it, counted from 1; zero where only its end was read.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

impl Audit {
    /// Opens the log, or makes it where there is none, and starts the thread that writes it. `now_ms` is for the entry about a
    /// half-written line, if there is one.
    ///
    /// # Errors
    /// The file cannot be written, another process writes it, or its last line is not one of ours.
    pub fn open(path: &Path, now_ms: u64, bounds: Bounds) -> Result<Self, Error> {
        let missed = Arc::<AtomicU64>::default();
        let writer = Writer::open(path, now_ms, Arc::clone(&missed), bounds)?;
        let (queue, words) = mpsc::sync_channel(QUEUE);
        thread::Builder::new().name("audit".into()).spawn(move || writer.run(&words)).map_err(|source| {
            Error::File { act: "start the writer of", path: path.display().to_string(), source }
        })?;
        Ok(Self { queue, missed })
    }

    /// Writes an entry down, soon. Never waits.
    pub fn record(&self, entry: Entry) {
        match self.queue.try_send(Word::Entry(Box::new(entry))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until everything recorded before is on the disk. For the end of a server.
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
        // The writer drops the sender only when it ends, and then nothing is left to wait for.
        let _ = wait.await;
    }
}

impl Entry {
    /// Something that was done, at a time in milliseconds since 1970.
    pub fn new(at_ms: u64, act: Act) -> Self {
        Self { at_ms, act, key: None, project: None, sandbox: None, exec: None, detail: None }
    }

    /// By the key with this id; never its secret.
    #[must_use]
    pub fn key(mut self, id: &str) -> Self {
        self.key = Some(printable(id, NAME_BYTES_MAX));
        self
    }

    /// For this project.
    #[must_use]
    pub fn project(mut self, name: &str) -> Self {
        self.project = Some(printable(name, NAME_BYTES_MAX));
        self
    }

    /// To this sandbox.
    #[must_use]
    pub fn sandbox(mut self, id: &SandboxId) -> Self {
        self.sandbox = Some(id.clone());
        self
    }

    /// To this exec.
    #[must_use]
    pub fn exec(mut self, id: &ExecId) -> Self {
        self.exec = Some(id.clone());
        self
    }

    /// A few words more; cut and escaped.
    #[must_use]
    pub fn detail(mut self, text: &str) -> Self {
        self.detail = Some(printable(text, DETAIL_BYTES_MAX));
        self
    }

    /// What is run: a command as a hash of its words, code as what it is written in, its length and its hash.
    #[must_use]
    pub fn command(self, spec: &ExecSpec) -> Self {
        let Some(code) = &spec.code else { return self.argv(&spec.argv) };
        let (language, bytes) = (code.language.unwrap_or_default().name(), code.source.len());
        let hash: [u8; 32] = Sha256::digest(&code.source).into();
        self.detail(&format!("{language} <code, {bytes} bytes> sha256:{}", chain::hex(&hash)))
    }

    /// The command, as a hash: enough to recognise it, not enough to read it.
    #[must_use]
    pub fn argv<W: AsRef<[u8]>>(self, argv: &[W]) -> Self {
        let mut hash = Sha256::new();
        for word in argv {
            // With its length in front, so that `["a b"]` and `["a", "b"]` differ.
            hash.update((word.as_ref().len() as u64).to_be_bytes());
            hash.update(word.as_ref());
        }
        let hash: [u8; 32] = hash.finalize().into();
        self.detail(&format!("argv sha256:{}", chain::hex(&hash)))
    }
}

/// Printable ASCII, at most so long. A terminal that shows the log obeys nothing that is in it.
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

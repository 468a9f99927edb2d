//! One exec of a simulated guest, from its start to its outcome, with the output that its readers receive.
//!
//! There is only one stream, because no program writes to standard error. The exec retains the first bytes of
//! its output. In `block` and `kill` mode, it retains as many bytes as the request specifies, because this
//! limit affects the exec's behavior. In `keep` mode, it retains at most [`KEPT_BYTES_MAX`] bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::exec::{ExecEnd, ExecInfo, ExecSpec, Outcome, OutputMode, Stream};
use api::frame::Header;
use api::terminal::TerminalSize;
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use streamed::Feed;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::program::Program;

/// Maximum number of output bytes retained in `keep` mode. It is low enough that ten thousand sandboxes, each
/// with a verbose exec, fit into a laptop's memory.
const KEPT_BYTES_MAX: u64 = 64 * 1024;
/// Maximum payload of one frame.
const CHUNK_BYTES: usize = 16 * 1024;
/// Maximum time between two frames to a reader. A real guest has the same maximum.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Interval between two lines of `count`. It is short enough to watch the progress, and long enough that an
/// hour of output stays small.
const COUNT_EVERY: Duration = Duration::from_millis(100);

/// One exec.
pub(super) struct SimExec {
    pub id: ExecId,
    /// Hash of the request that started the exec. A different request with the same ID is a conflict.
    pub fingerprint: u64,
    argv: String,
    started: Instant,
    deadline_ms: Option<u64>,
    grace_ms: u64,
    mode: OutputMode,
    kept_bytes: u64,
    progress: Mutex<ExecProgress>,
    /// Notified when there are new bytes, free space or a reason to end, and when the exec ends.
    changed: Notify,
}

#[derive(Default)]
struct ExecProgress {
    /// The retained bytes, starting at offset `taken`.
    kept: Vec<u8>,
    /// Offset below which a reader has acknowledged all bytes (in `block` mode).
    taken: u64,
    /// Number of bytes written so far.
    written: u64,
    /// Number of bytes received on standard input, while it is open.
    stdin: Option<u64>,
    /// Size of the exec's terminal, if it has one.
    terminal: Option<TerminalSize>,
    /// The first reason to end the exec.
    reason: Option<Outcome>,
    end: Option<ExecEnd>,
}

/// The next item for a reader.
enum Next {
    Frame(Vec<u8>),
    End(Vec<u8>),
    Nothing,
}

impl SimExec {
    /// Creates an exec that starts now.
    pub fn new(id: ExecId, spec: &ExecSpec, fingerprint: u64) -> Self {
        let asked = spec.output_bytes.unwrap_or(limits::OUTPUT_BYTES);
        let mut argv = spec.argv.join(" ");
        argv.truncate(argv.floor_char_boundary(limits::ARGV_SHOWN_BYTES));
        Self {
            id,
            fingerprint,
            argv,
            started: Instant::now(),
            deadline_ms: spec.deadline_ms,
            grace_ms: spec.grace_ms.unwrap_or(limits::GRACE_MS),
            mode: spec.output,
            kept_bytes: match spec.output {
                OutputMode::Keep => asked.min(KEPT_BYTES_MAX),
                OutputMode::Block | OutputMode::Kill => asked,
            },
            progress: Mutex::new(ExecProgress {
                stdin: (spec.stdin || spec.terminal.is_some()).then_some(0),
                terminal: spec.terminal,
                ..ExecProgress::default()
            }),
            changed: Notify::new(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, ExecProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_ended(&self) -> bool {
        self.progress().end.is_some()
    }

    /// Returns the exec's current state.
    pub fn info(&self) -> ExecInfo {
        let progress = self.progress();
        let end = progress.end.as_ref();
        let ran = end.map_or_else(|| self.started.elapsed(), |end| Duration::from_micros(end.duration_us));
        ExecInfo {
            id: self.id.clone(),
            argv: self.argv.clone(),
            outcome: end.map(|end| end.outcome.clone()),
            processes: u32::from(end.is_none()),
            stdout_bytes: progress.written,
            stderr_bytes: 0,
            results_bytes: 0,
            context: None,
            stdin_bytes: progress.stdin.unwrap_or(0),
            duration_ms: whole_ms(ran),
            deadline_ms: self.deadline_ms,
            grace_ms: self.grace_ms,
            ended_ms_ago: end.map(|_| whole_ms(self.started.elapsed().saturating_sub(ran))),
            terminal: progress.terminal,
        }
    }

    /// Requests that the exec end. Only the first reason counts, and requests after the end have no effect.
    pub fn ask_to_end(&self, reason: Outcome) {
        self.progress().reason.get_or_insert(reason);
        self.changed.notify_waiters();
    }

    /// Acknowledges the output below this offset. The acknowledged bytes are freed only in `block` mode.
    pub fn consume(&self, offset: u64) {
        if self.mode != OutputMode::Block {
            return;
        }
        let mut progress = self.progress();
        let offset = offset.clamp(progress.taken, progress.written);
        let count = usize::try_from(offset - progress.taken).unwrap_or(usize::MAX).min(progress.kept.len());
        progress.kept.drain(..count);
        progress.taken = offset;
        drop(progress);
        self.changed.notify_waiters();
    }

    /// Accepts bytes for standard input, at an offset or at the end. Returns the total number of bytes
    /// accepted so far.
    pub fn feed(&self, offset: Option<u64>, count: u64, is_last: bool) -> Result<u64, Error> {
        let mut progress = self.progress();
        let received = progress.stdin.filter(|_| progress.end.is_none());
        let Some(received) = received.filter(|received| offset.is_none_or(|offset| offset <= *received))
        else {
            return Err(Error {
                code: ErrorCode::Conflict,
                message: "standard input is closed, or has not reached the requested offset".into(),
                layer: Layer::UserCode,
                ran: Ran::Yes,
                retry: Retry::Useless,
                fix: "Read the exec's output to see the state of the process.".into(),
            });
        };
        let received = received.max(offset.unwrap_or(received) + count);
        progress.stdin = Some(received).filter(|_| !is_last);
        Ok(received)
    }

    /// Resizes the exec's terminal. Fails if the exec has no terminal.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        size.check()?;
        let mut progress = self.progress();
        let running = progress.end.is_none();
        match &mut progress.terminal {
            Some(now) if running => *now = size,
            Some(_) | None => {
                let fix = "Start the exec with `terminal`. An exec that has ended has no terminal.";
                let error = Error::invalid("the exec has no terminal", fix);
                return Err(Error { code: ErrorCode::Conflict, ..error });
            }
        }
        Ok(())
    }

    /// Runs the exec from start to end.
    pub async fn live(&self, program: Program) {
        let deadline = async {
            match self.deadline_ms.filter(|_| program != Program::Stuck) {
                Some(ms) => tokio::time::sleep_until(self.started + Duration::from_millis(ms)).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            reason = self.until(|progress| progress.reason.clone()) => reason,
            outcome = self.perform(&program) => outcome,
            () = deadline => Outcome::Timeout,
        };
        let mut progress = self.progress();
        progress.end = Some(ExecEnd {
            outcome,
            stdout_bytes: progress.written,
            stdout_dropped: progress.written - progress.taken - progress.kept.len() as u64,
            stderr_bytes: 0,
            stderr_dropped: 0,
            results_bytes: 0,
            state_lost: false,
            duration_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            left_running: 0,
            memory: None,
        });
        drop(progress);
        self.changed.notify_waiters();
    }

    /// Sends frames, starting at an offset, until the end has been sent or the reader has disconnected.
    pub async fn send(self: Arc<Self>, mut at: u64, sender: Feed) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next = self.next(&mut at);
            let frame = match next {
                Next::Frame(frame) => frame,
                Next::End(frame) => {
                    let _ = sender.send(frame.into()).await;
                    return;
                }
                Next::Nothing if tokio::time::timeout(HEARTBEAT, changed).await.is_ok() => continue,
                Next::Nothing => Header::Heartbeat.encode().to_vec(),
            };
            if sender.send(frame.into()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until `look` returns a value.
    async fn until<T>(&self, look: impl Fn(&mut ExecProgress) -> Option<T>) -> T {
        loop {
            // Register before the check, so that no notification in between is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(seen) = look(&mut self.progress()) {
                return seen;
            }
            changed.await;
        }
    }

    async fn perform(&self, program: &Program) -> Outcome {
        match program {
            Program::Print(text) => self.write(text.as_bytes()).await,
            Program::Sleep(duration) => tokio::time::sleep(*duration).await,
            Program::Stuck => std::future::pending().await,
            Program::Count => {
                for number in 1_u64.. {
                    self.write(format!("{number}\n").as_bytes()).await;
                    tokio::time::sleep(COUNT_EVERY).await;
                }
            }
        }
        // The program may have exceeded the output limit, which sets a reason to end.
        self.progress().reason.clone().unwrap_or(Outcome::Exited { code: 0 })
    }

    /// Writes to standard output, subject to the output mode.
    async fn write(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.until(|progress| self.room(progress)).await;
            let mut progress = self.progress();
            let (fits, rest) = bytes.split_at(room.min(bytes.len()));
            progress.kept.extend_from_slice(fits);
            progress.written += fits.len() as u64;
            bytes = rest;
            match self.mode {
                OutputMode::Keep => {
                    progress.written += bytes.len() as u64;
                    bytes = &[];
                }
                OutputMode::Block => {}
                OutputMode::Kill if bytes.is_empty() => {}
                OutputMode::Kill => {
                    progress.reason.get_or_insert(Outcome::OutputLimit);
                    bytes = &[];
                }
            }
            drop(progress);
            self.changed.notify_waiters();
        }
    }

    /// Returns the free space for output. `None` means that the writer must wait, which happens only in
    /// `block` mode.
    fn room(&self, progress: &ExecProgress) -> Option<usize> {
        let room = self.kept_bytes.saturating_sub(progress.kept.len() as u64);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if room == 0 && self.mode == OutputMode::Block { None } else { Some(room) }
    }

    /// Returns the next item for a reader at this offset, and advances the offset.
    fn next(&self, at: &mut u64) -> Next {
        let stream = Stream::Stdout;
        let progress = self.progress();
        let kept_to = progress.taken + progress.kept.len() as u64;
        let gap = if *at < progress.taken {
            Some(progress.taken)
        } else if *at < kept_to {
            let from = usize::try_from(*at - progress.taken).unwrap_or(usize::MAX);
            let bytes = progress.kept.get(from..).unwrap_or_default();
            let bytes = bytes.get(..CHUNK_BYTES).unwrap_or(bytes);
            let length = u32::try_from(bytes.len()).unwrap_or(0);
            let header = Header::Data { stream, offset: *at, length };
            *at += bytes.len() as u64;
            return Next::Frame([&header.encode()[..], bytes].concat());
        } else {
            Some(progress.written).filter(|written| *at < *written)
        };
        if let Some(to) = gap {
            *at = to;
            return Next::Frame(Header::Gap { stream, to }.encode().to_vec());
        }
        let Some(end) = &progress.end else { return Next::Nothing };
        let json = serde_json::to_vec(end).unwrap_or_default();
        let length = u32::try_from(json.len()).unwrap_or(0);
        Next::End([&Header::End { length }.encode()[..], &json].concat())
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

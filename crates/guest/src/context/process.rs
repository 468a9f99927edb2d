//! The process of a context, from its start to its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use api::Error;
use api::code::{ContextSpec, Language};
use api::exec::{ExecSpec, Outcome};
use api::limits;
use rustix::process::Pid;
use tokio::sync::Notify;

use crate::groups::HeldGroup;
use crate::interpreter::{Birth, Running, cannot_begin, did_not_begin, fork};
use crate::launch::{Launched, Purpose, verdict};
use crate::parent::{ForkKind, Parent};
use crate::processes::ProcessOwner;
use crate::records::Records;
use crate::said::{ACK, CodeMessage, StartRefusal, understand};
use crate::shell;
use crate::sweep::{self, Whom};

/// Timeout for the start of an interpreter. A fork is ready within milliseconds, but a separately started
/// interpreter must import all modules itself.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Maximum size of the notice that an interpreter was started separately.
const EARLY_BYTES_MAX: usize = 64 * 1024;

/// The result that a process may send before its first cell: see [`ContextProcess::start`].
type Early = RefCell<Option<Box<str>>>;

/// Process of a context.
pub(super) struct ContextProcess {
    group: HeldGroup,
    pid: Cell<Option<Pid>>,
    running: RefCell<Option<Rc<Running>>>,
    kills_before: u64,
    outcome: RefCell<Option<Outcome>>,
    ended: Notify,
}

impl ProcessOwner for ContextProcess {
    /// Records how the process ended.
    fn reaped(&self, outcome: Outcome) {
        self.outcome.replace(Some(outcome));
        self.ended.notify_waiters();
    }
}

impl ContextProcess {
    /// Starts the process of a context, as a fork of `parent` or as a shell. If the process sends a result
    /// before it is ready, keeps this result in `early` for the first cell.
    pub async fn start(spec: &ContextSpec, parent: &Parent, early: &Early) -> Result<Rc<Self>, Error> {
        let processes = parent.processes();
        let process = Rc::new(Self {
            group: processes.group(),
            pid: Cell::new(None),
            running: RefCell::default(),
            kills_before: processes.memory().count(),
            outcome: RefCell::default(),
            ended: Notify::new(),
        });
        match process.begin(spec, parent, early).await {
            Ok(running) => {
                process.running.replace(Some(Rc::new(running)));
                Ok(process)
            }
            Err(error) => {
                sweep::kill(Whom::Group(process.group())).await;
                Err(error)
            }
        }
    }

    async fn begin(
        self: &Rc<Self>,
        spec: &ContextSpec,
        parent: &Parent,
        early: &Early,
    ) -> Result<Running, Error> {
        let language = spec.language;
        let (cwd, env) = (spec.cwd.clone(), spec.env.clone());
        let spec = ExecSpec { cwd, env, ..ExecSpec::default() };
        if language == Language::Python {
            let birth = Birth { uid: limits::UID, group: self.group(), spec: &spec, kind: ForkKind::Context };
            let (running, pid) = fork(parent, &birth, Rc::clone(self) as _).await?;
            self.pid.set(Some(pid));
            ready(&running.channel, early).await?;
            return Ok(running);
        }
        let spec = ExecSpec { argv: shell::argv(), ..spec };
        let (channel, theirs) = Records::pair().map_err(|error| did_not_begin(&error.to_string()))?;
        let who = Purpose::Run.identity(&spec, self.group());
        let Launched { pid, verdict: said, ends } = parent.processes().launch(&spec, who, &[theirs])?;
        parent.processes().adopt(pid, Rc::clone(self) as _);
        verdict(&spec, self.group(), said).await?;
        self.pid.set(Some(pid));
        Ok(Running { streams: ends.streams, channel: Rc::new(channel) })
    }

    /// Returns the group of the process.
    pub fn group(&self) -> u32 {
        self.group.number()
    }

    /// Returns the process ID, once the process has started.
    pub fn pid(&self) -> Option<Pid> {
        self.pid.get()
    }

    /// Returns the streams and the channel of the process, once it has started.
    pub fn running(&self) -> Option<Rc<Running>> {
        self.running.borrow().clone()
    }

    /// Returns the number of OOM kills before the process started.
    pub fn kills_before(&self) -> u64 {
        self.kills_before
    }

    /// Returns true if the process has ended.
    pub fn has_ended(&self) -> bool {
        self.outcome.borrow().is_some()
    }

    /// Waits until the process has ended. Returns how it ended.
    pub async fn until_ended(&self) -> Outcome {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(outcome) = self.outcome.borrow().clone() {
                return outcome;
            }
            ended.await;
        }
    }
}

/// Waits until a forked process reports that it is ready.
async fn ready(channel: &Records, early: &Early) -> Result<(), Error> {
    let begun = async {
        while let Some(record) = channel.read().await {
            match understand(&record.bytes) {
                Some(CodeMessage::Begun(_)) => return Ok(()),
                Some(CodeMessage::Refused(StartRefusal { message })) => {
                    return Err(cannot_begin(&message));
                }
                Some(CodeMessage::Result(result)) => {
                    let result = result.get();
                    early.replace((result.len() <= EARLY_BYTES_MAX).then(|| result.into()));
                    let _ = channel.send_bytes(ACK, &[]).await;
                }
                Some(CodeMessage::Done(_) | CodeMessage::Variables(_) | CodeMessage::Settled(_)) | None => {}
            }
        }
        Err(did_not_begin("its process exited"))
    };
    let late = || Err(did_not_begin("timed out"));
    tokio::time::timeout(READY_WITHIN, begun).await.unwrap_or_else(|_| late())
}

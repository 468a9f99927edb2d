//! The `start` command of a template, and the `ready` command that decides when its sandbox counts as
//! started.

use std::collections::BTreeMap;
use std::time::Duration;

use api::exec::{ExecSpec, Outcome};
use api::policy::Policy;
use api::{ErrorCode, ExecId, Layer, Ran, Retry};
use guest_client::sandbox::Sandbox;
use host::error::Error;
use template::{Template, apply};
use tokio::time::Instant;
use tracing::Span;

use crate::datasets::Placed;

/// Maximum time until the `ready` command must have succeeded.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Delay between two runs of the `ready` command.
const READY_EVERY: Duration = Duration::from_millis(100);
/// Maximum length in characters of the command output in an error.
const TAIL_CHARS: usize = 1000;

/// The `start` and `ready` commands of a template.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    start: Option<Vec<String>>,
    ready: Option<Vec<String>>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
}

/// Work to do in a new sandbox before it counts as running.
pub(crate) struct Preparation {
    /// Datasets to copy into the sandbox.
    pub datasets: Vec<Placed>,
    /// Commands of the sandbox's template.
    pub readiness: Readiness,
    /// Span of the request that is waiting for the sandbox.
    pub request: Span,
}

impl Readiness {
    /// Returns the commands of a template.
    pub fn of(template: &Template) -> Self {
        let Template { start, ready, env, cwd, .. } = template.clone();
        Self { start, ready, env, cwd }
    }

    /// Returns true if the template has neither command.
    pub fn is_empty(&self) -> bool {
        self.start.is_none() && self.ready.is_none()
    }

    /// Runs the `start` command, and repeats the `ready` command until it succeeds.
    ///
    /// # Errors
    /// A command could not be started, `start` ended before `ready` succeeded, or `ready` timed out. The
    /// sandbox keeps running.
    pub async fn bring_about(&self, sandbox: &Sandbox, policy: &Policy) -> Result<(), Error> {
        let spec = |argv: &[String], deadline: Option<Duration>| {
            let deadline_ms = deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            let spec = ExecSpec { argv: argv.to_vec(), deadline_ms, ..ExecSpec::default() };
            let spec = crate::secrets::pointed(policy, sandbox.id(), spec);
            crate::egress::pointed(policy, apply(&self.env, self.cwd.as_ref(), spec))
        };
        let started = started();
        if let Some(start) = &self.start {
            sandbox.start_exec(&started, &spec(start, None)).await?;
        }
        let Some(ready) = &self.ready else { return Ok(()) };
        let until = Instant::now() + READY_WITHIN;
        for number in 0_u64.. {
            let left = until.saturating_duration_since(Instant::now()).max(READY_EVERY);
            let tried = sandbox.exec(look(number), &spec(ready, Some(left))).await?.collect().await?;
            if tried.end.outcome == (Outcome::Exited { code: 0 }) {
                return Ok(());
            }
            let begun = sandbox.execs().await?.into_iter().find(|exec| exec.id == started);
            if let Some(outcome) = begun.and_then(|exec| exec.outcome) {
                let why = format!("the template's `start` command {}", guest_client::exec::ended(&outcome));
                let said = sandbox.exec_reader(started).collect().await?.stderr;
                return Err(not_ready(why, &[said, tried.stderr].concat()));
            }
            if Instant::now() >= until {
                let why = format!("the template's `ready` command did not succeed within {READY_WITHIN:?}");
                return Err(not_ready(why, &tried.stderr));
            }
            tokio::time::sleep(READY_EVERY).await;
        }
        Ok(())
    }
}

/// Returns the ID of the exec that runs a template's `start` command. This exec does not keep its sandbox
/// from becoming idle.
pub(crate) fn started() -> ExecId {
    ExecId::from_random([3; 16])
}

/// Returns the ID of one run of the `ready` command.
fn look(number: u64) -> ExecId {
    let mut bytes = [2; 16];
    for (to, from) in bytes.iter_mut().zip(number.to_be_bytes()) {
        *to = from;
    }
    ExecId::from_random(bytes)
}

fn not_ready(why: String, said: &[u8]) -> Error {
    let said: String = String::from_utf8_lossy(said).trim().chars().take(TAIL_CHARS).collect();
    let said = if said.is_empty() { said } else { format!(": {said}") };
    Error::Request(api::Error {
        code: ErrorCode::SpawnFailed,
        message: format!("{why}{said}"),
        layer: Layer::UserCode,
        ran: Ran::Yes,
        retry: Retry::Unknown,
        fix: "To find the cause, run the `start` and `ready` commands by hand in a sandbox of a template without these commands.".into(),
    })
}

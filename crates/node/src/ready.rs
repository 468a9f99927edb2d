//! What a template has running in every sandbox from its beginning, and when such a sandbox counts as started.

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

/// A server inside has so long to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often that is asked.
const READY_EVERY: Duration = Duration::from_millis(100);
/// What is shown of what the last try said.
const TAIL_CHARS: usize = 1000;

/// What runs from the beginning, and what has to succeed.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    start: Option<Vec<String>>,
    ready: Option<Vec<String>>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
}

/// What a sandbox is to have before it runs.
pub(crate) struct Preparation {
    /// Files that are in it.
    pub datasets: Vec<Placed>,
    /// What has to be so for it to count as started.
    pub readiness: Readiness,
    /// The request that waits for it.
    pub request: Span,
}

impl Readiness {
    /// What a template says of it.
    pub fn of(template: &Template) -> Self {
        let Template { start, ready, env, cwd, .. } = template.clone();
        Self { start, ready, env, cwd }
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.start.is_none() && self.ready.is_none()
    }

    /// Starts what is to run, and waits until it is ready.
    ///
    /// # Errors
    /// It could not be started, ended before it was ready, or was not ready in time. The sandbox still runs.
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

/// The id of the exec that a template has running from the beginning. That it runs keeps no sandbox from being idle.
pub(crate) fn started() -> ExecId {
    ExecId::from_random([3; 16])
}

/// The id of one look at whether it is ready.
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

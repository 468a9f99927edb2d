//! A tool call, from its request to its flight: it is validated, matched with earlier identical requests, and
//! started.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use api::session::{Persistence, Run, RunState, Session};
use api::{Error, ErrorCode, ExecId, Layer, Ran as DidRun, Retry};
use sha2::{Digest, Sha256};

use super::flight::{Flight, ToolReply, another_call};
use super::history::StoredRun;
use super::run::Runner;
use super::tool::{checked, shaped};
use super::{Live, check_open, locked};
use crate::account::Account;
use crate::fault::Answer;
use crate::platform::Platform;

/// A request to call a tool.
pub struct ToolRequest<'a> {
    /// Name of the tool to call.
    pub tool: &'a str,
    /// Body of the request.
    pub body: serde_json::Value,
    /// ID of the run.
    pub id: ExecId,
    /// True if the request has an idempotency key.
    pub keyed: bool,
}

/// Guard for the task of a call. If the task ends without a result, the guard reports an error to the waiting
/// callers.
struct Aloft {
    live: Arc<Live>,
    id: ExecId,
    flight: Arc<Flight>,
}

impl Live {
    /// Starts a tool call, or returns the call that an earlier identical request started.
    ///
    /// # Errors
    /// Returns an error if the tool does not exist, the idempotency key was used for a different call, or the
    /// call failed and its tool set has no format for errors.
    pub async fn call(
        self: &Arc<Self>,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        request: ToolRequest<'_>,
    ) -> Answer<Arc<Flight>> {
        let session = self.shown().await;
        let begun = self.begin(platform, account, &session, request).await;
        match begun {
            Ok(flight) => Ok(flight),
            // An unknown tool and a conflicting key are errors of the request, not responses of a tool.
            Err(error) if [ErrorCode::NotFound, ErrorCode::Conflict].contains(&error.code) => {
                Err(error.into())
            }
            Err(error) => Ok(Flight::landed(Ok(shaped(&session, error)?))),
        }
    }

    async fn begin(
        self: &Arc<Self>,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        session: &Session,
        request: ToolRequest<'_>,
    ) -> Result<Arc<Flight>, Error> {
        check_open(session)?;
        let ToolRequest { tool, body, id, keyed } = request;
        let hash = crate::audit::hex(&Sha256::digest(format!("{tool} {body}")));
        let call = tools::Call::read(tool, body)?;
        let work = match checked(session, tool, &call)? {
            Ok(work) => work,
            Err(told) => return Ok(Flight::landed(Ok(told))),
        };
        if let Some(known) = self.known(session, &id, keyed, &hash).await? {
            return Ok(known);
        }
        let waiting = self.queue.wait()?;
        let flight = match locked(&self.flights).entry(id.clone()) {
            Entry::Occupied(known) => {
                known.get().check(&hash)?;
                return Ok(Arc::clone(known.get()));
            }
            Entry::Vacant(place) => Arc::clone(place.insert(Arc::new(Flight::of(&hash)))),
        };
        let aloft = Aloft { live: Arc::clone(self), id: id.clone(), flight: Arc::clone(&flight) };
        let run = Run {
            id,
            tool: tool.to_owned(),
            reasoning_trace: call.reasoning_trace,
            state: RunState::Running,
            sandbox: None,
            outcome: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_gap: None,
            stderr_gap: None,
            started_at_ms: 0,
            duration_ms: 0,
            result: None,
        };
        let runner = Runner {
            platform: Arc::clone(platform),
            account: Arc::clone(account),
            live: Arc::clone(self),
            session: session.clone(),
            run,
            call: hash,
            kept: Default::default(),
            cancelled: flight.cancelled(),
            keyed,
        };
        let position = self.queue.position().await;
        tokio::spawn(async move {
            let landing = runner.fly(work, position, waiting).await;
            aloft.flight.land(landing);
        });
        Ok(flight)
    }

    /// Returns the call that an earlier identical request started, whether it is still in progress or has
    /// ended.
    async fn known(
        &self,
        session: &Session,
        id: &ExecId,
        keyed: bool,
        hash: &str,
    ) -> Result<Option<Arc<Flight>>, Error> {
        if let Some(flight) = locked(&self.flights).get(id).map(Arc::clone) {
            flight.check(hash)?;
            return Ok(Some(flight));
        }
        if !keyed {
            return Ok(None);
        }
        let written =
            self.written(id).await.map_err(|error| crate::fault::Fault::from(error).error().clone())?;
        let Some(StoredRun { run, call, failed, .. }) = written else { return Ok(None) };
        if call != hash {
            return Err(another_call());
        }
        if let (RunState::Ended, Some(mut result)) = (run.state, run.result) {
            self.put_pictures_back(&mut result).await;
            let told = ToolReply { text: result.to_string(), failed, artifacts: Vec::new() };
            return Ok(Some(Flight::landed(Ok(told))));
        }
        // The server was killed during the run. If the session still has the same sandbox, the new call finds
        // the exec there by its ID. In a different sandbox, it would run the code a second time.
        let same = session.persistence == Persistence::Session && run.sandbox == session.sandbox;
        if same || run.sandbox.is_none() {
            return Ok(None);
        }
        Err(Error {
            code: ErrorCode::SandboxLost,
            message: format!("run {id} was in progress when the server stopped, and its sandbox is gone"),
            layer: Layer::Platform,
            ran: DidRun::Unknown,
            retry: Retry::Unknown,
            fix: "Check what the run changed, then call again with another idempotency key.".into(),
        })
    }
}

impl Drop for Aloft {
    fn drop(&mut self) {
        self.flight.land_unless_landed(Err(Error {
            code: ErrorCode::Platform,
            message: "the call ended without a result".into(),
            layer: Layer::Platform,
            ran: DidRun::Unknown,
            retry: Retry::Unknown,
            fix: "Check the runs of the session, then call again.".into(),
        }));
        locked(&self.live.flights).remove(&self.id);
    }
}

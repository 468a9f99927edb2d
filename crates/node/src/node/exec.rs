//! Starts execs when their turn comes, together with the tasks that collect their artifacts.

use std::sync::Arc;

use api::ExecId;
use api::exec::{ExecInfo, ExecSpec};
use api::trace::STEP;
use api::{ErrorCode, Layer, Ran, Retry};
use guest_client::Exec;
use host::error::Error;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::artifacts::{Attendant, CollectionRequest, Launch, Marks, Of};
use crate::turns::{LAUNCH_WITHIN, TurnPermit};
use crate::{Call, Node};

impl Node {
    /// Starts a command like [`Call::start_exec`], and keeps the artifacts that its spec requests.
    ///
    /// # Errors
    /// See [`Call::start_exec`]. In addition, fails if this server stores no artifacts, or if the artifact
    /// request cannot be recorded.
    pub async fn start_exec(&self, call: &Call, id: &ExecId, spec: ExecSpec) -> Result<ExecInfo, Error> {
        let _turn = self.turn_to_launch(call, id, &spec).await?;
        self.start_with_artifacts(call, id, spec).await
    }

    /// Starts an exec together with the task that collects its artifacts.
    async fn start_with_artifacts(
        &self,
        call: &Call,
        id: &ExecId,
        mut spec: ExecSpec,
    ) -> Result<ExecInfo, Error> {
        let Some(keep) = spec.artifacts.take() else { return call.start_exec(id, spec).await };
        keep.check().map_err(Error::Request)?;
        let keeper = &self.shared.keeper;
        if keeper.shelf.retention().is_zero() {
            return Err(Error::Request(keeps_none()));
        }
        let handle = Arc::clone(call.handle());
        let of = Of { project: handle.shown().project, sandbox: handle.id().clone(), exec: id.clone() };
        if keeper.shelf.kept(&of).await?.is_some() {
            return call.start_exec(id, spec).await;
        }
        let (progress, is_new) = keeper.progress(&of, Launch::NotYet)?;
        let mut launch = progress.launch.subscribe();
        if is_new {
            let attendant = Attendant { keeper: Arc::clone(&self.shared.keeper), handle, of, progress };
            let wanted = CollectionRequest {
                of: attendant.of.clone(),
                keep,
                before: Marks::default(),
                unseen: false,
                started: false,
            };
            tokio::spawn(attendant.begin(wanted, spec.clone(), tracing::Span::current()));
        }
        let launched = match launch.wait_for(|launch| !matches!(launch, Launch::NotYet)).await {
            Ok(launch) => launch.clone(),
            // Cannot happen: the task sends a result before it drops the sender.
            Err(_) => Launch::Elsewhere,
        };
        match launched {
            Launch::Started(info) => Ok(*info),
            Launch::Refused(error) => Err(Error::Request(error)),
            Launch::NotYet | Launch::Elsewhere => call.start_exec(id, spec).await,
        }
    }

    /// Starts an exec like [`Node::start_exec`], and returns a reader for its output.
    ///
    /// # Errors
    /// See [`Node::start_exec`].
    pub async fn start_exec_and_read(
        &self,
        call: &Call,
        id: &ExecId,
        spec: ExecSpec,
    ) -> Result<(ExecInfo, Exec), Error> {
        let _turn = self.turn_to_launch(call, id, &spec).await?;
        match spec.artifacts {
            None => call.start_exec_and_read(id, spec).await,
            Some(_) => Ok((self.start_with_artifacts(call, id, spec).await?, call.exec_reader(id.clone()))),
        }
    }

    /// Waits for a turn to launch a command. Code takes no turn: its launch may wait for an interpreter,
    /// which would block other launches.
    ///
    /// # Errors
    /// The queue is too long, and the command has not been launched before. The error code is `capacity`.
    pub(crate) async fn turn_to_launch(
        &self,
        call: &Call,
        id: &ExecId,
        spec: &ExecSpec,
    ) -> Result<Option<TurnPermit>, Error> {
        let launches = &self.shared.launches;
        if spec.code.is_some() {
            return Ok(None);
        }
        if let Some(turn) = launches.try_turn() {
            return Ok(Some(turn));
        }
        let project = call.handle().shown().project;
        if let Err(waiting) = launches.may_wait(&project, Instant::now()) {
            // A refusal means that the command did not run, so a command that did run must not be refused.
            // Taking zero bytes of output has no effect, but fails for an unknown ID, without listing all
            // execs.
            match call.exec_reader(id.clone()).take(0, 0).await {
                Ok(()) => return Ok(None),
                Err(error) if error.to_api().code == ErrorCode::NotFound => {}
                Err(error) => return Err(error),
            }
            let why = format!("{waiting} commands are queued");
            return Err(runtime::Error::Capacity { what: "another command to start", why }.into());
        }
        let turn = launches.turn(&project).instrument(info_span!(target: STEP, "turn"));
        let turn = tokio::time::timeout(LAUNCH_WITHIN, turn).await;
        turn.map(Some)
            .map_err(|_| Error::Deadline { what: "waiting to start the command", after: LAUNCH_WITHIN })
    }
}

fn keeps_none() -> api::Error {
    api::Error {
        code: ErrorCode::Unsupported,
        message: "this server does not store artifacts: artifact_retention_ms is 0".into(),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Omit `artifacts` and read the files while the sandbox runs.".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::egress::{Gate, Upstreams, packages};

    #[tokio::test]
    async fn a_command_is_refused_while_a_queue_stands_and_one_that_ran_never_is() {
        let data = tempfile::tempdir().unwrap();
        std::fs::set_permissions(data.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let machine = host::Machine::open(data.path()).unwrap();
        let template = template::Template { layers: vec!["a".repeat(64)], ..template::Template::of("base") };
        std::fs::create_dir_all(template.layer_directories(data.path()).first().unwrap()).unwrap();
        template::Store::new(data.path()).save(&template).unwrap();
        let bounds = host::admission::Bounds { disk_reserve_bytes: 0, pool_ready: 0, ..Default::default() };
        let gate = Gate::new(&packages(data.path()), Upstreams::default(), 0);
        let sim: Arc<dyn runtime::Runtime> = Arc::new(runtime::sim::Sim::new());
        let node = Node::open(&machine, vec![sim], bounds, gate).await.unwrap();
        let limits = api::limits::Limits {
            disk_bytes: api::limits::Limits::MIN.disk_bytes,
            ..api::limits::Limits::default()
        };
        let request = api::sandbox::CreateSandbox { limits: limits.into(), ..Default::default() };
        let order = crate::Order {
            project: "p".into(),
            request,
            may_open: false,
            may_root: false,
            auto_resume: crate::AutoResume::default(),
        };
        let id = "a".parse().unwrap();
        node.create(&id, &order, None).await.unwrap();
        let call = node.call(&id).await.unwrap();
        let spec = ExecSpec { argv: vec!["echo".into(), "hello".into()], ..ExecSpec::default() };
        let (ran, fresh): (ExecId, ExecId) = ("e1".parse().unwrap(), "e2".parse().unwrap());
        node.start_exec(&call, &ran, spec.clone()).await.unwrap();
        let held = node.shared.launches.overload();
        let refused = node.start_exec(&call, &fresh, spec.clone()).await.unwrap_err().to_api();
        assert_eq!((refused.code, refused.ran), (ErrorCode::Capacity, api::Ran::No), "{}", refused.message);
        assert_eq!(node.start_exec(&call, &ran, spec.clone()).await.unwrap().id, ran);
        drop(held);
        assert_eq!(node.start_exec(&call, &fresh, spec).await.unwrap().id, fresh);
    }
}

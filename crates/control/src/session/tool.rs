//! What each tool does, step by step. What it says is in [`tools`].

use std::collections::hash_map::Entry;
use std::sync::Arc;

use api::code::Code;
use api::exec::{ExecSpec, OutputMode};
use api::files::{FileAsk, FilePath};
use api::policy::Preset;
use api::session::{Persistence, Run, RunState, Session, SessionArtifact, SessionEvent, ToolSet};
use api::{Error, ErrorCode, ExecId, Layer, Ran as DidRun, Retry, limits};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use node::clock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use tools::{Ran, analysis, interpreter, python};

use super::exec::{Done, KeptOutput, Order};
use super::files::{Versions, read, stays_inside, versions, whole, write};
use super::flight::{Flight, Landing, Told, asked_to_end};
use super::sandbox::Used;
use super::{Live, RUNS_MAX, Turn, Waiting, check_open, locked};
use crate::account::Account;
use crate::audit::Act;
use crate::fault::Answer;
use crate::platform::Platform;

/// A call that was checked.
enum Work {
    Analysis(analysis::Asked),
    Python(python::Asked),
    Interpreter(String),
}

/// A run as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Written {
    run: Run,
    failed: bool,
    kept: [KeptOutput; 2],
}

/// Who does the work of one run.
struct Runner {
    platform: Arc<Platform>,
    account: Arc<Account>,
    live: Arc<Live>,
    session: Session,
    run: Run,
    kept: [KeptOutput; 2],
    cancelled: watch::Receiver<bool>,
    /// Whether the same call may come again: then what is begun is written down first.
    keyed: bool,
}

impl Live {
    /// Begins a call of a tool, or finds the one that the same request began before.
    ///
    /// # Errors
    /// The call is wrong, where its tool set has no shape for that; the session was ended; or too many wait.
    pub async fn call(
        self: &Arc<Self>,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        (tool, body): (&str, serde_json::Value),
        (id, keyed): (ExecId, bool),
    ) -> Answer<Arc<Flight>> {
        let session = self.shown().await;
        check_open(&session)?;
        let call = tools::Call::read(tool, body);
        let (work, reasoning_trace) =
            match call.and_then(|call| Ok((checked(&session, tool, &call)?, call.reasoning_trace))) {
                Ok(checked) => checked,
                // A tool that is not there is nobody's answer.
                Err(error) if error.code == ErrorCode::NotFound => return Err(error.into()),
                Err(error) => {
                    return shaped(&session, error).map(|told| Flight::landed(Ok(told))).map_err(Into::into);
                }
            };
        if let Work::Analysis(analysis::Asked::Refused(refused)) = &work {
            return Ok(Flight::landed(Ok(told(&refused, true))));
        }
        if let Some(known) = self.known(&session, &id, keyed).await? {
            return Ok(known);
        }
        let waiting = self.wait()?;
        let flight = match locked(&self.flights).entry(id.clone()) {
            Entry::Occupied(known) => return Ok(Arc::clone(known.get())),
            Entry::Vacant(place) => Arc::clone(place.insert(Arc::default())),
        };
        let run = Run {
            id,
            tool: tool.to_owned(),
            reasoning_trace,
            state: RunState::Running,
            sandbox: None,
            outcome: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            started_at_ms: 0,
            duration_ms: 0,
            result: None,
        };
        let runner = Runner {
            platform: Arc::clone(platform),
            account: Arc::clone(account),
            live: Arc::clone(self),
            session,
            run,
            kept: Default::default(),
            cancelled: flight.cancelled(),
            keyed,
        };
        let landing = Arc::clone(&flight);
        tokio::spawn(async move {
            let (live, id) = (Arc::clone(&runner.live), runner.run.id.clone());
            landing.land(runner.fly(work, waiting).await);
            locked(&live.flights).remove(&id);
        });
        Ok(flight)
    }

    /// The runs that are remembered, the oldest first.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn runs(&self) -> Result<Vec<Run>, node::Error> {
        let ids = self.record.lock().await.runs.clone();
        let mut runs = Vec::with_capacity(ids.len());
        for id in ids {
            runs.extend(self.run(&id).await?);
        }
        Ok(runs)
    }

    /// One of them.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn run(&self, id: &ExecId) -> Result<Option<Run>, node::Error> {
        Ok(self.written(id).await?.map(|written| written.run))
    }

    /// What a run has written to one of its streams, from an offset on (A3.02).
    ///
    /// # Errors
    /// What the file system said.
    pub async fn run_output(&self, id: &ExecId, stderr: bool) -> Result<Option<Vec<u8>>, node::Error> {
        let Some(Written { kept: [stdout, errors], .. }) = self.written(id).await? else { return Ok(None) };
        let (kept, name) = if stderr { (errors, "stderr") } else { (stdout, "stdout") };
        Ok(match kept {
            KeptOutput::Nothing => None,
            KeptOutput::Small(text) => STANDARD.decode(text).ok(),
            KeptOutput::Large => match self.folder.read(&["runs", id.as_str(), name]).await? {
                Some(outgoing) => Some(whole(outgoing).await?),
                None => None,
            },
        })
    }

    async fn written(&self, id: &ExecId) -> Result<Option<Written>, node::Error> {
        self.folder.json(&["runs", id.as_str(), "record"]).await
    }

    /// The call that the same request began before: one under way, or one that has ended.
    async fn known(&self, session: &Session, id: &ExecId, keyed: bool) -> Answer<Option<Arc<Flight>>> {
        if let Some(flight) = locked(&self.flights).get(id).map(Arc::clone) {
            return Ok(Some(flight));
        }
        if !keyed {
            return Ok(None);
        }
        let Some(Written { run, failed, .. }) = self.written(id).await? else { return Ok(None) };
        if let (RunState::Ended, Some(result)) = (run.state, run.result) {
            let text = result.to_string();
            return Ok(Some(Flight::landed(Ok(Told {
                text,
                failed,
                pictures: Vec::new(),
                artifacts: Vec::new(),
            }))));
        }
        // A server was killed under it. In the same sandbox the same exec is found again; elsewhere it would run twice.
        if session.persistence == Persistence::Session && run.sandbox == session.sandbox {
            return Ok(None);
        }
        Err(Error {
            code: ErrorCode::SandboxLost,
            message: format!("run {id} was under way when the server ended, and its sandbox is gone"),
            layer: Layer::Platform,
            ran: DidRun::Unknown,
            retry: Retry::Unknown,
            fix: "Look at what it has changed, and call again under another idempotency key.".into(),
        }
        .into())
    }
}

impl Runner {
    /// Waits for its turn, does the work, and writes down how it went.
    async fn fly(mut self, work: Work, waiting: Waiting) -> Landing {
        let live = Arc::clone(&self.live);
        let mut turn = tokio::select! {
            turn = live.turn.lock() => turn,
            () = asked_to_end(&mut self.cancelled) => return shaped(&self.session, called_off()),
        };
        drop(waiting);
        let begun = Instant::now();
        self.run.started_at_ms = clock::wall_ms();
        live.say(SessionEvent::RunStarted { run: Box::new(self.run.clone()) });
        let landing = match self.work(work, &mut turn).await {
            Ok(told) => Ok(told),
            Err(fault) => shaped(&self.session, fault.error().clone()),
        };
        self.run.state = RunState::Ended;
        self.run.duration_ms = clock::millis(begun.elapsed());
        self.run.result = landing.as_ref().ok().and_then(|told| serde_json::from_str(&told.text).ok());
        let failed = landing.as_ref().map_or(true, |told| told.failed);
        if let Err(fault) = self.write_down(failed).await {
            tracing::warn!(session = %live.id, error = fault.error().message, "a run is not written down");
        }
        live.say(SessionEvent::RunEnded { run: Box::new(self.run.clone()) });
        landing
    }

    /// Writes the run down, and forgets the oldest.
    async fn write_down(&self, failed: bool) -> Answer<()> {
        let written = Written { run: self.run.clone(), failed, kept: self.kept.clone() };
        let folder = &self.live.folder;
        folder.put_json(&["runs", self.run.id.as_str(), "record"], &written).await?;
        let mut record = self.live.record.lock().await;
        if record.runs.contains(&self.run.id) {
            return Ok(());
        }
        record.runs.push_back(self.run.id.clone());
        if record.runs.len() > RUNS_MAX
            && let Some(oldest) = record.runs.pop_front()
        {
            folder.remove(&["runs", oldest.as_str()]).await?;
        }
        self.live.save(&self.platform, &record).await?;
        Ok(())
    }

    async fn work(&mut self, work: Work, turn: &mut Turn) -> Answer<Told> {
        match work {
            Work::Python(python::Asked::Cleanup) => self.cleanup().await,
            Work::Analysis(asked) => {
                let used = self.sandbox().await?;
                match asked {
                    analysis::Asked::Exec(exec) => self.sandbox_exec(turn, &used, exec).await,
                    analysis::Asked::Write { file_path, content } => {
                        self.sandbox_write_file(&used, &file_path, content).await
                    }
                    analysis::Asked::Edit { file_path, old_string, new_string } => {
                        self.sandbox_edit_file(&used, &file_path, old_string, new_string).await
                    }
                    analysis::Asked::Refused(refused) => Ok(told(&refused, true)),
                }
            }
            Work::Python(python::Asked::Execute { script, requirements }) => {
                let used = self.sandbox().await?;
                let done = self.execute_python(&used, script, requirements).await;
                self.leave(&used).await?;
                done
            }
            Work::Interpreter(code) => {
                let used = self.sandbox().await?;
                let done = self.execute_python_code(&used, code).await;
                self.leave(&used).await?;
                done
            }
        }
    }

    /// The sandbox of the session, with the files of the session where it is a fresh one for this run.
    async fn sandbox(&mut self) -> Answer<Used> {
        let used = self.live.sandbox(&self.platform, &self.account).await?;
        self.run.sandbox = Some(used.id.clone());
        if used.fresh && self.session.persistence == Persistence::Run {
            self.live.folder.give(&self.live.folder.manifest().await?, &used.call).await?;
        }
        if self.keyed {
            self.write_down(true).await?;
        }
        Ok(used)
    }

    /// Gives up a sandbox that was for this run alone. Nobody waits for its end.
    async fn leave(&self, used: &Used) -> Answer<()> {
        if self.session.persistence == Persistence::Session {
            return Ok(());
        }
        let mut record = self.live.record.lock().await;
        self.live.spend(&mut record);
        self.live.save(&self.platform, &record).await?;
        let (platform, account, id) =
            (Arc::clone(&self.platform), Arc::clone(&self.account), used.id.clone());
        tokio::spawn(async move {
            if let Err(fault) = platform.stop(&account, id.as_str()).await {
                tracing::warn!(sandbox = %id, error = fault.error().message, "not stopped");
            }
        });
        Ok(())
    }

    /// Runs something, and has the run say how it went.
    async fn exec(&mut self, used: &Used, id: &ExecId, spec: ExecSpec, timeout_seconds: f64) -> Answer<Ran> {
        self.platform.note(&self.account, Act::Exec, |entry| entry.sandbox(&used.id).exec(id).command(&spec));
        let memory_bytes = self.session.memory_bytes();
        let order =
            Order { live: &self.live, call: &used.call, run: &self.run.id, timeout_seconds, memory_bytes };
        let Done { ran, kept } = order.exec(id, spec, &mut self.cancelled).await?;
        self.kept = kept;
        self.run.outcome = Some(ran.outcome.clone());
        (self.run.stdout_bytes, self.run.stderr_bytes) = (ran.stdout.total(), ran.stderr.total());
        Ok(ran)
    }

    async fn sandbox_exec(&mut self, turn: &mut Turn, used: &Used, exec: analysis::Exec) -> Answer<Told> {
        #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
        let timeout = exec.timeout.unwrap_or(self.session.timeout_seconds as f64);
        let spec = ExecSpec { argv: exec.command, ..limited(timeout) };
        let ran = self.exec(used, &self.run.id.clone(), spec, timeout).await?;
        let (session, run) = (&self.session, &self.run.id);
        let kept = self.live.keep_outputs(turn, session, run, (&used.id, &used.call)).await;
        let (names, artifacts) = kept.unwrap_or_else(|error| {
            // The answer of the command is worth more than its files.
            tracing::warn!(session = %session.id, error = node::error::chain(&error), "outputs are not kept");
            Default::default()
        });
        let executed = analysis::Executed::new(&ran, &names);
        Ok(Told { artifacts, ..told(&executed, ran.said().exit_code != 0) })
    }

    async fn sandbox_write_file(&mut self, used: &Used, path: &str, content: String) -> Answer<Told> {
        if !stays_inside(&used.call, path).await? {
            return Ok(told(&analysis::Refused::path(path), true));
        }
        let bytes = content.len() as u64;
        match write(&used.call, path, content).await {
            Ok(()) => Ok(told(&analysis::Written::new(path, bytes), false)),
            Err(node::Error::Guest(error)) => Ok(told(&analysis::Refused::said(path, &error), true)),
            Err(error) => Err(error.into()),
        }
    }

    async fn sandbox_edit_file(&mut self, used: &Used, path: &str, old: String, new: String) -> Answer<Told> {
        let refused = |refused: analysis::Refused| Ok(told(&refused, true));
        if !stays_inside(&used.call, path).await? {
            return refused(analysis::Refused::path(path));
        }
        let text = match read(&used.call, path).await {
            Ok(Some(bytes)) => String::from_utf8(bytes),
            Ok(None) => {
                let most = api::files::EDIT_BYTES_MAX;
                return refused(analysis::Refused::said(
                    path,
                    &limits::exceeded("the file, in bytes,", most + 1, most),
                ));
            }
            Err(node::Error::Guest(error)) if error.code == ErrorCode::NotFound => {
                return refused(analysis::Refused::no_file(path));
            }
            Err(node::Error::Guest(error)) => return refused(analysis::Refused::said(path, &error)),
            Err(error) => return Err(error.into()),
        };
        let Ok(text) = text else { return refused(analysis::Refused::not_text(path)) };
        match text.matches(&old).count() {
            1 => {}
            count => return refused(analysis::Refused::occurrences(path, count)),
        }
        let ask = FileAsk::Edit { path: FilePath::new(path)?, old, new, all: false };
        match used.call.files().ask(&ask).await {
            Ok(_) => Ok(told(&analysis::Edited::new(path), false)),
            Err(node::Error::Guest(error) | node::Error::Request(error)) => {
                refused(analysis::Refused::said(path, &error))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn execute_python(
        &mut self,
        used: &Used,
        script: String,
        requirements: Vec<String>,
    ) -> Answer<Told> {
        if !requirements.is_empty() {
            let installed = self.install(used, requirements).await?;
            if installed.said().exit_code != 0 {
                return Ok(told(&python::Executed::not_installed(&installed), true));
            }
        }
        write(&used.call, python::SCRIPT, script).await?;
        let timeout = self.timeout();
        let before = match self.session.persistence {
            Persistence::Session => Versions::default(),
            Persistence::Run => versions(&used.call).await?,
        };
        let spec = ExecSpec { argv: vec!["python".into(), python::SCRIPT.into()], ..limited(timeout) };
        let ran = self.exec(used, &self.run.id.clone(), spec, timeout).await?;
        if self.session.persistence == Persistence::Run {
            self.live.keep_workspace((&self.session, &self.run.id), &used.call, &before, None).await?;
        }
        let executed = python::Executed::new(&ran);
        Ok(told(&executed, !executed.is_well()))
    }

    /// Installs packages, while the package index and nothing else can be reached (A4.04).
    async fn install(&mut self, used: &Used, requirements: Vec<String>) -> Answer<Ran> {
        let policy = &self.session.policy;
        let mut opened = policy.clone();
        opened.presets.insert(Preset::PythonPackages);
        let closed = policy.clone();
        if opened != closed {
            self.platform.node.set_policy(&used.id, opened)?;
        }
        let code = Code { source: "pass".into(), requirements, ..Code::default() };
        let spec = ExecSpec { code: Some(code), ..limited(self.timeout()) };
        let ran = self.exec(used, &beside(&self.run.id, "install"), spec, self.timeout()).await;
        // Whatever came of it. Of a sandbox that has ended there is nothing to close.
        let _ = self.platform.node.set_policy(&used.id, closed);
        ran
    }

    async fn execute_python_code(&mut self, used: &Used, code: String) -> Answer<Told> {
        let script = format!("{}/{}", interpreter::WORKSPACE, interpreter::SCRIPT);
        if used.fresh {
            let hook = format!("{}/sitecustomize.py", interpreter::HOOK_DIRECTORY);
            write(&used.call, &hook, interpreter::HOOK).await?;
        }
        write(&used.call, &script, code).await?;
        let mut before = versions(&used.call).await?;
        // What is ours is new each time.
        before.remove(interpreter::SCRIPT);
        let timeout = self.timeout();
        let env = [("PYTHONPATH", interpreter::HOOK_DIRECTORY), ("MPLBACKEND", "Agg")];
        let spec = ExecSpec {
            argv: vec!["python".into(), script],
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..limited(timeout)
        };
        let runtime = self.platform.node.runtime_of(&used.id).unwrap_or_default();
        let ran = self.exec(used, &self.run.id.clone(), spec, timeout).await?;
        let stdout = self.stdout().await;
        let (session, run) = (&self.session, &self.run.id);
        let kept = self.live.keep_workspace((session, run), &used.call, &before, stdout).await;
        let (files, artifacts) = kept.unwrap_or_else(|error| {
            tracing::warn!(session = %session.id, error = node::error::chain(&error), "files are not kept");
            Default::default()
        });
        let pictures = files.iter().filter_map(|file| file.picture());
        let pictures = pictures.map(|(mime, base64)| (mime.to_owned(), base64.to_owned())).collect();
        let executed = interpreter::Executed::new(&session.id, &runtime, &ran, files);
        Ok(Told { pictures, artifacts, ..told(&executed, !executed.is_well()) })
    }

    /// All that was kept of standard output.
    async fn stdout(&self) -> Option<Bytes> {
        let [stdout, _] = &self.kept;
        match stdout {
            KeptOutput::Nothing => None,
            KeptOutput::Small(text) => STANDARD.decode(text).ok().map(Bytes::from),
            KeptOutput::Large => {
                let outgoing =
                    self.live.folder.read(&["runs", self.run.id.as_str(), "stdout"]).await.ok()??;
                whole(outgoing).await.ok().map(Bytes::from)
            }
        }
    }

    /// Frees all that the session holds on the machine (A7.08).
    async fn cleanup(&mut self) -> Answer<Told> {
        let mut record = self.live.record.lock().await;
        self.live.release(&self.platform, &self.account, &mut record).await;
        self.live.save(&self.platform, &record).await?;
        Ok(told(&python::CleanedUp { success: true }, false))
    }

    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    fn timeout(&self) -> f64 {
        self.session.timeout_seconds as f64
    }
}

/// Checks a call, before anything is made for it.
fn checked(session: &Session, tool: &str, call: &tools::Call) -> Result<Work, Error> {
    Ok(match session.set {
        ToolSet::Analysis => Work::Analysis(analysis::asked(tool, call)?),
        ToolSet::Python => Work::Python(python::asked(tool, call)?),
        ToolSet::Interpreter => Work::Interpreter(interpreter::asked(tool, call)?),
    })
}

/// A failure in the shape of its tool set, if it has one (A7.03, A8.07).
fn shaped(session: &Session, error: Error) -> Landing {
    match session.set {
        ToolSet::Analysis => Err(error),
        ToolSet::Python => Ok(told(&python::Executed::failed(&error), true)),
        ToolSet::Interpreter => Ok(told(&interpreter::Executed::failed(&session.id, &error), true)),
    }
}

fn told(answer: &impl Serialize, failed: bool) -> Told {
    // Types of ours: they can be written.
    let text = serde_json::to_string(answer).unwrap_or_default();
    Told { text, failed, pictures: Vec::new(), artifacts: Vec::<SessionArtifact>::new() }
}

/// What all execs of tools have in common (A2.08, A2.10, A3.05).
fn limited(timeout_seconds: f64) -> ExecSpec {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred seconds")]
    let deadline_ms = (timeout_seconds * 1000.0).round() as u64;
    ExecSpec { deadline_ms: Some(deadline_ms), output: OutputMode::Keep, ..ExecSpec::default() }
}

/// The id of something that belongs to a run: always the same for the same run.
fn beside(run: &ExecId, what: &str) -> ExecId {
    let hash = Sha256::digest(format!("{run} {what}"));
    ExecId::from_random(hash.first_chunk::<16>().copied().unwrap_or_default())
}

fn called_off() -> Error {
    Error {
        code: ErrorCode::Conflict,
        message: "the call was cancelled before its turn came".into(),
        layer: Layer::UserCode,
        ran: DidRun::No,
        retry: Retry::Safe,
        fix: "Call again.".into(),
    }
}

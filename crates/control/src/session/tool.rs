//! The steps that each tool performs. The crate [`tools`] defines the texts and formats of responses.

use api::code::Code;
use api::exec::{ExecSpec, OutputMode};
use api::files::{FileAsk, FilePath};
use api::policy::Preset;
use api::session::{Persistence, Session, SessionArtifact, ToolSet};
use api::{Error, ErrorCode, limits};
use bytes::Bytes;
use serde::Serialize;
use tokio::time::timeout;
use tools::{EndedExec, analysis, interpreter, python};

use super::files::{Versions, read, stays_inside, versions, write};
use super::flight::{Landing, ToolReply};
use super::queue::TurnState;
use super::run::{FILES_WITHIN, Runner, beside};
use super::sandbox::Used;
use crate::fault::Answer;

/// A validated call.
pub(super) enum ValidatedCall {
    /// Cleanup, which needs no sandbox.
    Cleanup,
    Inside(SandboxWork),
}

/// Work to perform in a sandbox.
pub(super) enum SandboxWork {
    Analysis(analysis::AnalysisCall),
    Python { script: String, requirements: Vec<String> },
    Interpreter(String),
}

impl Runner {
    /// Performs the call in the sandbox of the session.
    pub(super) async fn work(&mut self, work: ValidatedCall, turn: &mut TurnState) -> Answer<ToolReply> {
        let inside = match work {
            ValidatedCall::Cleanup => return self.cleanup().await,
            ValidatedCall::Inside(inside) => inside,
        };
        let used = self.sandbox(turn).await?;
        if let Err(fault) = self.prepare(&used).await {
            // Do not reuse a sandbox that is only partly prepared.
            self.leave(turn, &used).await;
            return Err(fault);
        }
        let done = match inside {
            SandboxWork::Analysis(analysis::AnalysisCall::Exec(exec)) => {
                self.sandbox_exec(turn, &used, exec).await
            }
            SandboxWork::Analysis(analysis::AnalysisCall::Write { file, content }) => {
                self.sandbox_write_file(&used, &file, content).await
            }
            SandboxWork::Analysis(analysis::AnalysisCall::Edit { file, old_string, new_string }) => {
                self.sandbox_edit_file(&used, &file, old_string, new_string).await
            }
            SandboxWork::Python { script, requirements } => {
                self.execute_python(turn, &used, script, requirements).await
            }
            SandboxWork::Interpreter(code) => self.execute_python_code(&used, code).await,
        };
        if self.session.persistence == Persistence::Run {
            self.leave(turn, &used).await;
        }
        done
    }

    /// Prepares a new sandbox before code runs in it.
    async fn prepare(&self, used: &Used) -> Answer<()> {
        if !used.fresh {
            return Ok(());
        }
        if self.keeps_workspace() {
            self.give(used).await?;
        }
        if self.session.set == ToolSet::Interpreter {
            let hook = format!("{}/sitecustomize.py", interpreter::HOOK_DIRECTORY);
            write(&used.call, &hook, interpreter::HOOK).await?;
        }
        self.live.prepared(&self.platform).await
    }

    async fn sandbox_exec(
        &mut self,
        turn: &mut TurnState,
        used: &Used,
        exec: analysis::ExecCall,
    ) -> Answer<ToolReply> {
        #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
        let seconds = exec.timeout.unwrap_or(self.session.timeout_seconds as f64);
        let spec = ExecSpec { argv: exec.command, ..limited(seconds) };
        let ran = self.exec(used, &self.run.id.clone(), true, spec, seconds).await?;
        let (session, run) = (&self.session, &self.run.id);
        let keeping = self.live.keep_outputs(turn, session, run, &used.call);
        // The response of the command is more important than its files, so errors while storing them are only
        // logged.
        let (names, artifacts) = kept(session, timeout(FILES_WITHIN, keeping).await);
        let executed = analysis::ExecAnswer::new(&ran, &names);
        Ok(ToolReply { artifacts, ..told(&executed, ran.said().exit_code != 0) })
    }

    async fn sandbox_write_file(
        &mut self,
        used: &Used,
        file: &analysis::File,
        content: String,
    ) -> Answer<ToolReply> {
        let done = match stays_inside(&used.call, &file.place).await {
            Ok(true) => {
                let bytes = content.len() as u64;
                write(&used.call, &file.place, content).await.map(|()| Ok(bytes))
            }
            Ok(false) => Ok(Err(analysis::FileToolRefusal::path(&file.given))),
            Err(error) => Err(error),
        };
        match done {
            Ok(Ok(bytes)) => Ok(told(&analysis::WriteAnswer::new(&file.given, bytes), false)),
            Ok(Err(refused)) => Ok(told(&refused, true)),
            Err(node::Error::Guest(error) | node::Error::Request(error)) => {
                Ok(told(&analysis::FileToolRefusal::said(&file.given, &error), true))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn sandbox_edit_file(
        &mut self,
        used: &Used,
        file: &analysis::File,
        old: String,
        new: String,
    ) -> Answer<ToolReply> {
        match self.edit(used, file, old, new).await {
            Ok(None) => Ok(told(&analysis::EditAnswer::new(&file.given), false)),
            Ok(Some(refused)) => Ok(told(&refused, true)),
            Err(node::Error::Guest(error)) if error.code == ErrorCode::NotFound => {
                Ok(told(&analysis::FileToolRefusal::no_file(&file.given), true))
            }
            Err(node::Error::Guest(error) | node::Error::Request(error)) => {
                Ok(told(&analysis::FileToolRefusal::said(&file.given, &error), true))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Edits a file. If the edit is refused, returns the reason.
    async fn edit(
        &self,
        used: &Used,
        file: &analysis::File,
        old: String,
        new: String,
    ) -> Result<Option<analysis::FileToolRefusal>, node::Error> {
        if !stays_inside(&used.call, &file.place).await? {
            return Ok(Some(analysis::FileToolRefusal::path(&file.given)));
        }
        let Some(bytes) = read(&used.call, &file.place).await? else {
            let most = api::files::EDIT_BYTES_MAX;
            return Err(node::Error::Request(limits::exceeded(
                "the size of the file in bytes",
                most + 1,
                most,
            )));
        };
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(Some(analysis::FileToolRefusal::not_text(&file.given)));
        };
        match text.matches(&old).count() {
            1 => {}
            count => return Ok(Some(analysis::FileToolRefusal::occurrences(&file.given, count))),
        }
        let path = FilePath::new(file.place.as_bytes()).map_err(node::Error::Request)?;
        used.call.files().ask(&FileAsk::Edit { path, old, new, all: false }).await.map(|_| None)
    }

    async fn execute_python(
        &mut self,
        turn: &mut TurnState,
        used: &Used,
        script: String,
        requirements: Vec<String>,
    ) -> Answer<ToolReply> {
        if !requirements.is_empty() {
            let installed = self.install(turn, used, requirements).await?;
            if installed.said().exit_code != 0 {
                return Ok(told(&python::PythonAnswer::not_installed(&installed), true));
            }
        }
        write(&used.call, python::SCRIPT, script).await?;
        let before = match self.keeps_workspace() {
            true => versions(&used.call).await?,
            false => Versions::default(),
        };
        let seconds = self.seconds();
        let spec = ExecSpec { argv: vec!["python".into(), python::SCRIPT.into()], ..limited(seconds) };
        let ran = self.exec(used, &self.run.id.clone(), true, spec, seconds).await?;
        if self.keeps_workspace() {
            let (session, run) = (&self.session, &self.run.id);
            let keeping = self.live.keep_workspace(session, run, &used.call, &before, None);
            kept(session, timeout(FILES_WITHIN, keeping).await);
        }
        let executed = python::PythonAnswer::new(&ran);
        Ok(told(&executed, !executed.is_well()))
    }

    /// Installs packages. During the installation, the sandbox can reach the package index in addition to the
    /// hosts that the session's policy allows (requirement A4.04).
    async fn install(
        &mut self,
        turn: &mut TurnState,
        used: &Used,
        requirements: Vec<String>,
    ) -> Answer<EndedExec> {
        let closed = self.session.policy.clone();
        let mut opened = closed.clone();
        opened.presets.insert(Preset::PythonPackages);
        self.platform.node.set_policy(&used.id, opened).await?;
        let code = Code { source: "pass".into(), requirements, ..Code::default() };
        let spec = ExecSpec { code: Some(code), ..limited(self.seconds()) };
        let ran = self.exec(used, &beside(&self.run.id, "install"), false, spec, self.seconds()).await;
        if let Err(error) = self.platform.node.set_policy(&used.id, closed).await {
            // No code may run while the package index stays reachable, so release the sandbox. If the
            // installation failed as well, return the error of the installation.
            self.leave(turn, used).await;
            ran?;
            return Err(error.into());
        }
        ran
    }

    async fn execute_python_code(&mut self, used: &Used, code: String) -> Answer<ToolReply> {
        let script = format!("{}/{}", interpreter::WORKSPACE, interpreter::SCRIPT);
        write(&used.call, &script, code).await?;
        let mut before = versions(&used.call).await?;
        // The server itself has just written the script, so treat the script as new in each run.
        before.remove(interpreter::SCRIPT);
        let seconds = self.seconds();
        let env = [("PYTHONPATH", interpreter::HOOK_DIRECTORY), ("MPLBACKEND", "Agg")];
        let spec = ExecSpec {
            argv: vec!["python".into(), script],
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..limited(seconds)
        };
        let runtime = self.platform.node.runtime_of(&used.id).unwrap_or_default();
        let ran = self.exec(used, &self.run.id.clone(), true, spec, seconds).await?;
        let [kept_stdout, _] = &self.kept;
        let stdout = self.live.kept_output(&self.run.id, "stdout", kept_stdout).await?.map(Bytes::from);
        let (session, run) = (&self.session, &self.run.id);
        let keeping = self.live.keep_workspace(session, run, &used.call, &before, stdout);
        let (files, artifacts) = kept(session, timeout(FILES_WITHIN, keeping).await);
        let executed = interpreter::InterpreterAnswer::new(&session.id, &runtime, &ran, files);
        Ok(ToolReply { artifacts, ..told(&executed, !executed.is_well()) })
    }

    /// Stops the session's sandbox (requirement A7.08), and removes the files stored for the next sandbox.
    async fn cleanup(&mut self) -> Answer<ToolReply> {
        let mut record = self.live.record.lock().await;
        let success = self.live.release(&self.platform, &self.account, &mut record).await;
        self.live.save(&self.platform, &record).await?;
        if self.keeps_workspace() {
            self.live.folder.clear().await?;
        }
        Ok(told(&python::CleanedUp { success }, !success))
    }

    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    fn seconds(&self) -> f64 {
        self.session.timeout_seconds as f64
    }
}

/// Validates a call, before anything is created for it.
///
/// # Errors
/// Returns an error if the call is invalid and the tool has no format of its own for this error. If the tool
/// has one, returns the error as a response in that format.
pub(super) fn checked(
    session: &Session,
    tool: &str,
    call: &tools::Call,
) -> Result<Result<ValidatedCall, ToolReply>, Error> {
    let inside = match session.set {
        ToolSet::Analysis => match analysis::asked(tool, call)? {
            Ok(asked) => SandboxWork::Analysis(asked),
            Err(refused) => return Ok(Err(told(&refused, true))),
        },
        ToolSet::Python => match python::asked(tool, call)? {
            python::PythonCall::Cleanup => return Ok(Ok(ValidatedCall::Cleanup)),
            python::PythonCall::Execute { script, requirements } => {
                SandboxWork::Python { script, requirements }
            }
        },
        ToolSet::Interpreter => SandboxWork::Interpreter(interpreter::asked(tool, call)?),
    };
    Ok(Ok(ValidatedCall::Inside(inside)))
}

/// Converts an error into the format of its tool set, if it has one (requirements A7.03, A8.07).
pub(super) fn shaped(session: &Session, error: Error) -> Landing {
    match session.set {
        ToolSet::Analysis => Err(error),
        ToolSet::Python => Ok(told(&python::PythonAnswer::failed(&error), true)),
        ToolSet::Interpreter => Ok(told(&interpreter::InterpreterAnswer::failed(&session.id, &error), true)),
    }
}

fn told(answer: &impl Serialize, failed: bool) -> ToolReply {
    // Serializing these types cannot fail.
    let text = serde_json::to_string(answer).unwrap_or_default();
    ToolReply { text, failed, artifacts: Vec::<SessionArtifact>::new() }
}

/// Returns the options that all execs started by tools share (requirements A2.08, A2.10, A3.05).
fn limited(timeout_seconds: f64) -> ExecSpec {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred seconds")]
    let deadline_ms = (timeout_seconds * 1000.0).round() as u64;
    ExecSpec { deadline_ms: Some(deadline_ms), output: OutputMode::Keep, ..ExecSpec::default() }
}

/// Returns the stored files. After an error or a timeout, logs the failure and returns no files, so that the
/// response is not affected.
fn kept<T: Default>(
    session: &Session,
    kept: Result<Result<T, node::Error>, tokio::time::error::Elapsed>,
) -> T {
    let late = || node::Error::Deadline { what: "storing files", after: FILES_WITHIN };
    kept.unwrap_or_else(|_| Err(late())).unwrap_or_else(|error| {
        tracing::warn!(
            session = %session.id,
            error = node::error::chain(&error),
            "cannot store the files of a run"
        );
        T::default()
    })
}

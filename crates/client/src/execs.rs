//! Requests for execs, except for reading their output.

use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec, SignalRequest};
use api::output::OutputLine;
use api::server::{Page, Signaled};
use api::{ExecId, SandboxId};
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::exec::Exec;
use crate::lines::{LineError, Lines};
use crate::link::{ApiRequest, FailedAttempt};
use crate::patience::Trouble;
use crate::stdin::Stdin;

/// Minimum timeout for requests that start code. The server waits up to 90 s for an interpreter to import the
/// packages of its template.
pub(crate) const CODE_WITHIN: Duration = Duration::from_secs(100);

impl Client {
    /// Starts a command or code and returns a reader for its output. A retry does not start it twice.
    ///
    /// # Errors
    /// Returns an error if the command could not be started or if the sandbox is gone.
    pub async fn exec(&self, sandbox: &SandboxId, spec: &ExecSpec) -> Result<Exec, Error> {
        self.exec_at(format!("/v1/sandboxes/{sandbox}/execs"), sandbox, spec).await
    }

    /// Starts an exec like [`Client::exec`], but makes the server cancel the exec if the connection breaks
    /// before it ends. A reader that reconnects then receives the outcome `cancelled`.
    ///
    /// # Errors
    /// Fails like [`Client::exec`].
    pub async fn exec_while_connected(&self, sandbox: &SandboxId, spec: &ExecSpec) -> Result<Exec, Error> {
        let path = format!("/v1/sandboxes/{sandbox}/execs?cancel_on_disconnect=true");
        self.exec_at(path, sandbox, spec).await
    }

    /// Starts a command without reading its output. A retry does not start it twice.
    ///
    /// # Errors
    /// Fails like [`Client::exec`].
    pub async fn start(&self, sandbox: &SandboxId, spec: &ExecSpec) -> Result<ExecInfo, Error> {
        spec.check().map_err(Error::Refused)?;
        let path = format!("/v1/sandboxes/{sandbox}/execs");
        self.link.call(&self.starting(path, spec)?).await
    }

    /// Lists the execs of a sandbox, including ended ones.
    ///
    /// # Errors
    /// Returns an error if the sandbox is gone.
    pub async fn execs(&self, sandbox: &SandboxId) -> Result<Vec<ExecInfo>, Error> {
        let page: Page<ExecInfo> =
            self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/execs"))).await?;
        Ok(page.items)
    }

    /// Returns the state of an exec.
    ///
    /// # Errors
    /// Returns an error if the exec does not exist or if its sandbox is gone.
    pub async fn exec_info(&self, sandbox: &SandboxId, exec: &ExecId) -> Result<ExecInfo, Error> {
        self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/execs/{exec}"))).await
    }

    /// Returns a reader for an exec that was started earlier. It reads from the first byte to the end. Does
    /// not connect yet.
    pub fn reader(&self, sandbox: &SandboxId, exec: &ExecId) -> Exec {
        Exec::attach(self.clone(), sandbox.clone(), exec.clone())
    }

    /// Returns a reader for the output that an exec has written so far. The reader does not wait for more
    /// output.
    pub fn reader_of_now(&self, sandbox: &SandboxId, exec: &ExecId) -> Exec {
        self.reader(sandbox, exec).until_now()
    }

    /// Returns a writer to the standard input of an exec that was started with `stdin`, starting at offset 0.
    pub fn stdin(&self, sandbox: &SandboxId, exec: &ExecId) -> Stdin {
        Stdin::new(self.clone(), sandbox.clone(), exec.clone())
    }

    /// Cancels an exec. Its outcome is then `cancelled`, unless the exec had already ended.
    ///
    /// # Errors
    /// Returns an error if the exec does not exist or if its sandbox is gone.
    pub async fn cancel(&self, sandbox: &SandboxId, exec: &ExecId) -> Result<(), Error> {
        self.link
            .done(&ApiRequest::new(Method::DELETE, format!("/v1/sandboxes/{sandbox}/execs/{exec}")))
            .await
    }

    /// Sends a signal to all processes of an exec and returns the number of processes. The request is not
    /// retried, because a signal cannot safely be sent twice: if the connection breaks, the error says that
    /// the signal may have been delivered.
    ///
    /// # Errors
    /// Returns an error if the signal number is invalid or if the exec does not exist.
    pub async fn signal(&self, sandbox: &SandboxId, exec: &ExecId, signal: i32) -> Result<u32, Error> {
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/signal");
        let ask = ApiRequest::new(Method::POST, path).json(&SignalRequest { signal })?;
        let said: Signaled = self.link.call(&ask).await?;
        Ok(said.processes)
    }

    /// Returns the request that starts an exec. Requests that run code get a longer timeout, because the code
    /// may have to wait for its interpreter.
    fn starting(&self, path: String, spec: &ExecSpec) -> Result<ApiRequest, Error> {
        let ask = ApiRequest::new(Method::POST, path).json(spec)?.once()?;
        let within = self.link.options.answer_within;
        Ok(if spec.code.is_some() { ask.within(within.max(CODE_WITHIN)) } else { ask })
    }

    async fn exec_at(&self, path: String, sandbox: &SandboxId, spec: &ExecSpec) -> Result<Exec, Error> {
        spec.check().map_err(Error::Refused)?;
        let ask = self.starting(path, spec)?.accept(api::output::NDJSON);
        let mut attempts = self.link.attempts();
        loop {
            match self.try_exec(&ask).await {
                Ok((info, lines)) => {
                    return Ok(Exec::started(self.clone(), sandbox.clone(), info, lines).for_spec(spec));
                }
                Err(failure) => self.link.pause(&mut attempts, failure).await?,
            }
        }
    }

    /// Sends the start request once and reads the response up to the `started` event.
    async fn try_exec(&self, ask: &ApiRequest) -> Result<(ExecInfo, Lines<OutputLine>), FailedAttempt> {
        let mut lines = Lines::new(self.link.open(ask).await?);
        let fatal = |error| FailedAttempt { error, trouble: None, pause: None };
        loop {
            match lines.next(self.link.options.silence_max).await {
                Ok(OutputLine::Started { exec }) => return Ok((exec, lines)),
                Ok(OutputLine::Heartbeat) => {}
                Ok(OutputLine::Error { error }) => return Err(last_words(error)),
                Ok(
                    OutputLine::Data { .. }
                    | OutputLine::Gap { .. }
                    | OutputLine::Result { .. }
                    | OutputLine::End { .. },
                ) => {
                    return Err(fatal(
                        self.link.protocol("received output before the `started` event".into()),
                    ));
                }
                Err(LineError::Cut(why)) => return Err(self.link.cut(why)),
                Err(LineError::Nonsense(what)) => return Err(fatal(self.link.protocol(what))),
            }
        }
    }
}

/// Converts the error that ended a stream. The error counts as temporary if the server marked it as safe to
/// retry.
pub(crate) fn last_words(error: api::Error) -> FailedAttempt {
    let trouble = (error.retry == api::Retry::Safe).then_some(Trouble::Connection);
    FailedAttempt { error: Error::Refused(error), trouble, pause: None }
}

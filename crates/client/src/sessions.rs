//! Requests for sessions and tools.

use std::time::Duration;

use api::server::Page;
use api::session::{
    CreateSession, RUN_HEADER, Run, Session, SessionArtifact, SessionDataset, SessionEvent,
    TIMEOUT_SECONDS_MAX, ToolSet, WAITING_MAX,
};
use api::{ExecId, SessionId, limits};
use bytes::Bytes;
use reqwest::Method;
use serde_json::Value;

use crate::client::{Client, escape};
use crate::error::Error;
use crate::events::Events;
use crate::link::ApiRequest;

/// Timeout for a tool call. A call waits for all calls queued before it, each of which may take the maximum
/// time.
const CALL_WITHIN: Duration = Duration::from_secs(TIMEOUT_SECONDS_MAX * (WAITING_MAX as u64 + 2));
/// Maximum size of a downloaded file. Downloads are held in memory.
const FILE_BYTES_MAX: usize = 1 << 30;

/// A tool's response.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// ID of the run.
    pub run: ExecId,
    /// The tool's result.
    pub result: Value,
}

/// Options of a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calling {
    /// True if the run is cancelled when the connection breaks. Such a call is not retried.
    pub ends_with_caller: bool,
}

impl Client {
    /// Creates a session. A retry does not create a second session.
    ///
    /// # Errors
    /// Returns an error if the request is invalid.
    pub async fn create_session(&self, request: &CreateSession) -> Result<Session, Error> {
        request.check().map_err(Error::Refused)?;
        self.link.call(&ApiRequest::new(Method::POST, "/v1/sessions").json(request)?.once()?).await
    }

    /// Lists the project's sessions, the newest first.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.pages("/v1/sessions").await
    }

    /// Returns the state of a session.
    ///
    /// # Errors
    /// Returns an error if the session does not exist.
    pub async fn session(&self, session: &SessionId) -> Result<Session, Error> {
        self.link.call(&ApiRequest::get(format!("/v1/sessions/{session}"))).await
    }

    /// Ends a session and stops its sandbox. This is idempotent.
    ///
    /// # Errors
    /// Returns an error if the session does not exist.
    pub async fn end_session(&self, session: &SessionId) -> Result<Session, Error> {
        self.link.call(&ApiRequest::new(Method::DELETE, format!("/v1/sessions/{session}"))).await
    }

    /// Waits for the session's current run, then frees the resources that the session holds on the machine.
    /// This is idempotent.
    ///
    /// # Errors
    /// Returns an error if the session does not exist.
    pub async fn clean_up(&self, session: &SessionId) -> Result<Session, Error> {
        let ask = ApiRequest::new(Method::DELETE, format!("/v1/sessions/{session}/sandbox"));
        self.link.call(&ask.within(CALL_WITHIN)).await
    }

    /// Adds a dataset to a session. Every sandbox of the session receives this file before anything runs in
    /// the sandbox.
    ///
    /// # Errors
    /// Returns an error if the file is too large or if a different dataset has the same file name.
    pub async fn add_dataset(
        &self,
        session: &SessionId,
        name: &str,
        bytes: Bytes,
    ) -> Result<SessionDataset, Error> {
        let path = format!("/v1/sessions/{session}/datasets/{}", escape(name));
        self.link.call(&ApiRequest::new(Method::PUT, path).raw(bytes)).await
    }

    /// Calls a tool and waits for its result. A retry does not run the tool twice.
    ///
    /// # Errors
    /// Returns an error if the tool does not exist, its arguments are invalid, or it could not be run.
    pub async fn call_tool(
        &self,
        session: &SessionId,
        tool: &str,
        arguments: &Value,
        calling: Calling,
    ) -> Result<Called, Error> {
        let path = format!("/v1/sessions/{session}/tools/{}", escape(tool));
        let ask = match calling.ends_with_caller {
            true => ApiRequest::new(Method::POST, format!("{path}?cancel_on_disconnect=true")),
            false => ApiRequest::new(Method::POST, path).once()?,
        };
        let ask = ask.json(arguments)?.within(CALL_WITHIN);
        let mut attempts = self.link.attempts();
        loop {
            let failure = match self.link.open(&ask).await {
                Ok(response) => {
                    let run = response
                        .headers()
                        .get(RUN_HEADER)
                        .and_then(|value| value.to_str().ok()?.parse().ok());
                    match self.link.body(&ask, response, limits::BODY_BYTES_MAX * 8).await {
                        Ok(body) => {
                            let none = || self.link.protocol("malformed response to a tool call".into());
                            let result = serde_json::from_slice(&body).map_err(|_| none())?;
                            return Ok(Called { run: run.ok_or_else(none)?, result });
                        }
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            self.link.pause(&mut attempts, failure).await?;
        }
    }

    /// Lists the recorded runs of a session, the oldest first.
    ///
    /// # Errors
    /// Returns an error if the session does not exist.
    pub async fn runs(&self, session: &SessionId) -> Result<Vec<Run>, Error> {
        self.pages(&format!("/v1/sessions/{session}/runs")).await
    }

    /// Returns the output that a run wrote to `stream` (`stdout` or `stderr`), starting at an offset.
    ///
    /// # Errors
    /// Returns an error if no output is stored for the run.
    pub async fn run_output(
        &self,
        session: &SessionId,
        run: &ExecId,
        stream: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Vec<u8>, Error> {
        let length = length.map(|length| format!("&length={length}")).unwrap_or_default();
        let path =
            format!("/v1/sessions/{session}/runs/{run}/output?stream={stream}&offset={offset}{length}");
        self.bytes(&path).await
    }

    /// Lists the artifacts of a session.
    ///
    /// # Errors
    /// Returns an error if the session does not exist.
    pub async fn session_artifacts(&self, session: &SessionId) -> Result<Vec<SessionArtifact>, Error> {
        let page: Page<SessionArtifact> =
            self.link.call(&ApiRequest::get(format!("/v1/sessions/{session}/artifacts"))).await?;
        Ok(page.items)
    }

    /// Returns the bytes of a session's artifact.
    ///
    /// # Errors
    /// Returns an error if the session has no such artifact.
    pub async fn session_artifact(&self, session: &SessionId, name: &str) -> Result<Vec<u8>, Error> {
        self.bytes(&format!("/v1/sessions/{session}/artifacts/{}", escape(name))).await
    }

    /// Removes all artifacts of a session.
    ///
    /// # Errors
    /// Returns an error if the session does not exist.
    pub async fn clear_session(&self, session: &SessionId) -> Result<(), Error> {
        self.link.done(&ApiRequest::new(Method::DELETE, format!("/v1/sessions/{session}/artifacts"))).await
    }

    /// Subscribes to future events of a session. The first call of [`Events::next`] connects.
    pub fn session_events(&self, session: &SessionId) -> Events<SessionEvent> {
        Events::of(self, format!("/v1/sessions/{session}/events"))
    }

    /// Returns the tools of a tool set in the given format: `bellglass`, `openai`, `anthropic` or `mcp`.
    ///
    /// # Errors
    /// Returns an error if the format does not exist.
    pub async fn tools(&self, set: ToolSet, format: &str) -> Result<Vec<Value>, Error> {
        let (set, format) = (set.name(), escape(format));
        self.link.call(&ApiRequest::get(format!("/v1/tools?set={set}&format={format}"))).await
    }

    /// Returns a tool set's instructions for the model.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn tools_prompt(&self, set: ToolSet) -> Result<String, Error> {
        let bytes = self.bytes(&format!("/v1/tools/prompt?set={}", set.name())).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn bytes(&self, path: &str) -> Result<Vec<u8>, Error> {
        let ask = ApiRequest::get(path);
        let mut attempts = self.link.attempts();
        loop {
            let failure = match self.link.open(&ask).await {
                Ok(response) => match self.link.body(&ask, response, FILE_BYTES_MAX).await {
                    Ok(body) => return Ok(body.to_vec()),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            self.link.pause(&mut attempts, failure).await?;
        }
    }
}

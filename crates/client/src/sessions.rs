//! What a client does with sessions and tools.

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
use crate::link::Ask;

/// A call waits for all that were made before it, and each may take as long as any may.
const CALL_WITHIN: Duration = Duration::from_secs(TIMEOUT_SECONDS_MAX * (WAITING_MAX as u64 + 2));
/// A file is held in memory.
const FILE_BYTES_MAX: usize = 1 << 30;

/// What a tool answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// The run that it was.
    pub run: ExecId,
    /// The answer.
    pub result: Value,
}

/// How a tool is called, where the usual will not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calling {
    /// Whether the run ends with the connection. Then it is not repeated either.
    pub ends_with_caller: bool,
}

impl Client {
    /// Makes a session. However often it has to be asked, one is made.
    ///
    /// # Errors
    /// The request is wrong.
    pub async fn create_session(&self, request: &CreateSession) -> Result<Session, Error> {
        request.check().map_err(Error::Refused)?;
        self.link.call(&Ask::new(Method::POST, "/v1/sessions").json(request)?.once()?).await
    }

    /// The project's sessions, the newest first.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.pages("/v1/sessions").await
    }

    /// How a session is.
    ///
    /// # Errors
    /// It is not known.
    pub async fn session(&self, session: &SessionId) -> Result<Session, Error> {
        self.link.call(&Ask::get(format!("/v1/sessions/{session}"))).await
    }

    /// Ends a session and its sandbox. Can be repeated.
    ///
    /// # Errors
    /// It is not known.
    pub async fn end_session(&self, session: &SessionId) -> Result<Session, Error> {
        self.link.call(&Ask::new(Method::DELETE, format!("/v1/sessions/{session}"))).await
    }

    /// Frees what a session holds on the machine, after the run that goes on. Can be repeated.
    ///
    /// # Errors
    /// It is not known.
    pub async fn clean_up(&self, session: &SessionId) -> Result<Session, Error> {
        let ask = Ask::new(Method::DELETE, format!("/v1/sessions/{session}/sandbox"));
        self.link.call(&ask.within(CALL_WITHIN)).await
    }

    /// Has a file be in every sandbox of a session, before anything runs there.
    ///
    /// # Errors
    /// It is too large, or another dataset would be the same file.
    pub async fn add_dataset(
        &self,
        session: &SessionId,
        name: &str,
        bytes: Bytes,
    ) -> Result<SessionDataset, Error> {
        let path = format!("/v1/sessions/{session}/datasets/{}", escape(name));
        self.link.call(&Ask::new(Method::PUT, path).raw(bytes)).await
    }

    /// Calls a tool and waits for its answer. However often it has to be asked, it is done once.
    ///
    /// # Errors
    /// There is no such tool, its arguments are wrong, or nothing could be run.
    pub async fn call_tool(
        &self,
        session: &SessionId,
        tool: &str,
        arguments: &Value,
        calling: Calling,
    ) -> Result<Called, Error> {
        let path = format!("/v1/sessions/{session}/tools/{}", escape(tool));
        let ask = match calling.ends_with_caller {
            true => Ask::new(Method::POST, format!("{path}?cancel_on_disconnect=true")),
            false => Ask::new(Method::POST, path).once()?,
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

    /// The runs of a session that are remembered, the oldest first.
    ///
    /// # Errors
    /// It is not known.
    pub async fn runs(&self, session: &SessionId) -> Result<Vec<Run>, Error> {
        let page: Page<Run> = self.link.call(&Ask::get(format!("/v1/sessions/{session}/runs"))).await?;
        Ok(page.items)
    }

    /// What a run has written to a stream (`stdout` or `stderr`), from an offset on.
    ///
    /// # Errors
    /// Nothing is kept of it.
    pub async fn run_output(
        &self,
        (session, run): (&SessionId, &ExecId),
        stream: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Vec<u8>, Error> {
        let length = length.map(|length| format!("&length={length}")).unwrap_or_default();
        let path =
            format!("/v1/sessions/{session}/runs/{run}/output?stream={stream}&offset={offset}{length}");
        self.bytes(&path).await
    }

    /// What a session keeps.
    ///
    /// # Errors
    /// It is not known.
    pub async fn session_artifacts(&self, session: &SessionId) -> Result<Vec<SessionArtifact>, Error> {
        let page: Page<SessionArtifact> =
            self.link.call(&Ask::get(format!("/v1/sessions/{session}/artifacts"))).await?;
        Ok(page.items)
    }

    /// The bytes of a file that a session keeps.
    ///
    /// # Errors
    /// It keeps no such file.
    pub async fn session_artifact(&self, session: &SessionId, name: &str) -> Result<Vec<u8>, Error> {
        self.bytes(&format!("/v1/sessions/{session}/artifacts/{}", escape(name))).await
    }

    /// Removes what a session keeps.
    ///
    /// # Errors
    /// It is not known.
    pub async fn clear_session(&self, session: &SessionId) -> Result<(), Error> {
        self.link.done(&Ask::new(Method::DELETE, format!("/v1/sessions/{session}/artifacts"))).await
    }

    /// What happens in a session from now on. The first [`Events::next`] connects.
    pub fn session_events(&self, session: &SessionId) -> Events<SessionEvent> {
        Events::of(self, format!("/v1/sessions/{session}/events"))
    }

    /// The tools of a set in a form: `bellglass`, `openai`, `anthropic` or `mcp`.
    ///
    /// # Errors
    /// There is no such form.
    pub async fn tools(&self, set: ToolSet, format: &str) -> Result<Vec<Value>, Error> {
        let (set, format) = (set.name(), escape(format));
        self.link.call(&Ask::get(format!("/v1/tools?set={set}&format={format}"))).await
    }

    /// The instructions of a tool set.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn tools_prompt(&self, set: ToolSet) -> Result<String, Error> {
        let bytes = self.bytes(&format!("/v1/tools/prompt?set={}", set.name())).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn bytes(&self, path: &str) -> Result<Vec<u8>, Error> {
        let ask = Ask::get(path);
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

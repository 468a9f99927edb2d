//! `bellglass mcp`: serves tools over the Model Context Protocol on standard input and output. The tools run
//! on a server.

use std::process::ExitCode;
use std::sync::Arc;

use api::exec::Stream;
use api::session::{CreateSession, SessionEvent, ToolSet};
use api::{Error, ErrorCode, SessionId, limits};
use async_trait::async_trait;
use client::{Called, Calling, Client};
use serde_json::{Map, Value};
use tokio::sync::{OnceCell, mpsc};
use tokio_util::sync::CancellationToken;
use tools::mcp::{self, ARTIFACT_BYTES_MAX, Artifact, CallProgress, Content, Host, Tool, ToolAnswer};
use tools::publish::Facts;

use crate::connect::ServerConnection;
use crate::platform;

/// Arguments of `bellglass mcp`.
#[derive(clap::Args)]
#[command(after_help = "An MCP client starts this command. In the configuration of the client:\n\n  \
    {\"mcpServers\": {\"bellglass\": {\"command\": \"bellglass\", \"args\": [\"mcp\"],\n    \
    \"env\": {\"BELLGLASS_SERVER\": \"http://127.0.0.1:7070\", \"BELLGLASS_API_KEY\": \"…\"}}}}\n\n\
    MCP clients that support HTTP do not need this command: the server offers the same tools at /mcp.")]
pub struct Arguments {
    /// Tool set: analysis, python or interpreter.
    #[arg(long, value_name = "TOOL SET", default_value = "interpreter", value_parser = crate::command::tools::set)]
    set: ToolSet,
}

/// Session of the connected MCP client, on a server.
struct Talk {
    client: Client,
    set: ToolSet,
    /// Session ID, which is set when the first call creates the session.
    session: OnceCell<SessionId>,
}

/// Serves one MCP client until it disconnects.
pub async fn run(connection: &ServerConnection, arguments: &Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let host = Arc::new(Talk { client, set: arguments.set, session: OnceCell::new() });
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        // Without a signal handler, a signal simply ends the process.
        if crate::wait_for_end().await.is_ok() {
            stopping.cancel();
        }
    });
    let served = mcp::stdio(host, stop).await;
    served.map_err(|error| platform(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

impl Talk {
    async fn session(&self) -> Result<&SessionId, Error> {
        let make = async || {
            let session = self.client.create_session(&CreateSession::of(self.set)).await;
            session.map(|session| session.id).map_err(|error| error.to_api())
        };
        self.session.get_or_try_init(make).await
    }
}

#[async_trait]
impl Host for Talk {
    fn tools(&self) -> Vec<Tool> {
        mcp::of_set(self.set, &Facts::default())
    }

    fn instructions(&self) -> String {
        tools::prompt(self.set).to_owned()
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<CallProgress>,
    ) -> Result<ToolAnswer, Error> {
        let session = self.session().await?;
        let mut events = self.client.session_events(session);
        let arguments = Value::Object(arguments);
        let call = self.client.call_tool(session, tool, &arguments, Calling { ends_with_caller: true });
        tokio::pin!(call);
        let Called { result, .. } = loop {
            tokio::select! {
                called = &mut call => break called.map_err(|error| error.to_api())?,
                Ok(event) = events.next() => {
                    if let SessionEvent::Output { stream, text: Some(text), .. } = event {
                        let stderr = stream == Stream::Stderr;
                        let _ = progress.try_send(CallProgress::Output { stderr, text });
                    }
                }
            }
        };
        let ended = result.get("exit_code").and_then(Value::as_i64).unwrap_or(0);
        let failed = ended != 0 || result.get("success").and_then(Value::as_bool) == Some(false);
        // Return the result even if the artifacts cannot be listed.
        let artifacts = self
            .artifacts()
            .await
            .unwrap_or_default()
            .into_iter()
            .filter(|artifact| names(&result, &artifact.name));
        Ok(ToolAnswer { artifacts: artifacts.collect(), ..ToolAnswer::of(&result.to_string(), failed) })
    }

    async fn artifacts(&self) -> Result<Vec<Artifact>, Error> {
        let Some(session) = self.session.get() else { return Ok(Vec::new()) };
        let kept = self.client.session_artifacts(session).await.map_err(|error| error.to_api())?;
        let kept =
            kept.into_iter().map(|one| Artifact { name: one.name, mime: one.mime, size_bytes: one.size });
        Ok(kept.collect())
    }

    async fn artifact(&self, name: &str) -> Result<Content, Error> {
        let missing = || Error::not_found(format!("the session has no artifact {name:?}"));
        let found = self.artifacts().await?.into_iter().find(|artifact| artifact.name == name);
        let (Some(artifact), Some(session)) = (found, self.session.get()) else { return Err(missing()) };
        if artifact.size_bytes > ARTIFACT_BYTES_MAX {
            let error = limits::exceeded(
                "the size of the artifact in bytes",
                artifact.size_bytes,
                ARTIFACT_BYTES_MAX,
            );
            return Err(Error { code: ErrorCode::TooLarge, ..error });
        }
        let bytes = self.client.session_artifact(session, name).await.map_err(|error| error.to_api())?;
        Ok(Content { mime: artifact.mime, bytes: bytes.into() })
    }

    async fn end(&self) {
        if let Some(session) = self.session.get() {
            // If the server cannot be reached, its idle timeout stops the session's sandbox later.
            let _ = self.client.end_session(session).await;
        }
    }
}

/// Returns true if the result of a tool call names this file.
fn names(result: &Value, name: &str) -> bool {
    let list = |key: &str| result.get(key).and_then(Value::as_array).into_iter().flatten();
    list("output_files").any(|one| one == name) || list("files").any(|one| one["name"] == name)
}

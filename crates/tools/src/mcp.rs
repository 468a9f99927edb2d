//! Tools over the Model Context Protocol (MCP), on standard input and output or over streamable HTTP.
//!
//! `rmcp` implements the protocol. A [`Host`] runs the tools: a session of the server in this process, or of
//! a server on another machine. This module connects the two and handles everything else: lifetime and
//! ownership of sessions, limits of calls, and the form in which a model gets answers, errors, images and
//! files.
//!
//! | file | holds |
//! |---|---|
//! | `server` | the requests of a client: tools, calls, resources |
//! | `answer` | the form of answers and errors for a model |
//! | `progress` | the output of a call while it runs |
//! | `resource` | artifacts as resources |
//! | `session` | one client with its host, from its first message to its last |
//! | `table` | the sessions over HTTP: their owners and their limits |
//! | `service` | streamable HTTP |
//!
//! Protocol versions from 2026-07-28 on have no sessions, so two calls of one conversation would have nothing
//! in common. These versions are not offered: every client of that version also supports the previous one and
//! falls back to it.

mod answer;
mod progress;
mod resource;
mod server;
mod service;
mod session;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rmcp::RoleServer;
use rmcp::service::{ServerInitializeError, ServiceExt};
use rmcp::transport::IntoTransport;
use rmcp::transport::io::stdio_pipes;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::service::{Service, Settings};

use api::session::ToolSet;

use self::server::Server;
use self::session::McpSession;
use crate::publish::{self, Facts};

/// Maximum size of an artifact that is read as a resource. Encoded in base64, it is below the message limit
/// of clients, 16 MiB.
pub const ARTIFACT_BYTES_MAX: u64 = 10_000_000;

/// Maximum size of all images in one answer, in base64. The official Python client limits a message to 1 MiB.
const IMAGES_BYTES_MAX: usize = 700_000;

/// Component that runs the tools of one client.
///
/// A host holds no resources before its first call: a client may list the tools and disconnect.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Returns the tools, in the order in which they are listed.
    fn tools(&self) -> Vec<Tool>;

    /// Returns the instructions for a model on how to use the tools.
    fn instructions(&self) -> String;

    /// Runs a tool in the session of this host, which the first call creates. Dropping the future cancels the
    /// run.
    ///
    /// Calls may overlap. Messages sent to `progress` are consumed immediately while the call runs, and never
    /// after it.
    ///
    /// # Errors
    /// Any error that the model should see. A run that failed is a [`ToolAnswer`].
    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<CallProgress>,
    ) -> Result<ToolAnswer, api::Error>;

    /// Lists the artifacts of the session: none before the first call.
    ///
    /// # Errors
    /// The session is not available.
    async fn artifacts(&self) -> Result<Vec<Artifact>, api::Error>;

    /// Returns one artifact with its content.
    ///
    /// # Errors
    /// `not_found`; `too_large` if it is larger than [`ARTIFACT_BYTES_MAX`], before it is read.
    async fn artifact(&self, name: &str) -> Result<Content, api::Error>;

    /// Ends the session, if one exists, after the client has disconnected. Called once, after every call has
    /// ended or was dropped.
    async fn end(&self);
}

/// A tool as a model sees it.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool and of its use.
    pub description: String,
    /// The JSON Schema of its arguments: an object.
    pub schema: Map<String, Value>,
}

/// Progress of a running call.
#[derive(Clone, Debug)]
pub enum CallProgress {
    /// Output of the call.
    Output {
        /// True for standard error, false for standard output.
        stderr: bool,
        /// Text of the output.
        text: String,
    },
}

/// Answer to a call.
#[derive(Clone, Debug, Default)]
pub struct ToolAnswer {
    /// The result, for a program and for a model.
    pub result: Map<String, Value>,
    /// True if the run failed.
    pub failed: bool,
    /// Images that the run displayed.
    pub images: Vec<AnswerImage>,
    /// Artifacts that the run created or changed.
    pub artifacts: Vec<Artifact>,
}

/// An image.
#[derive(Clone, Debug)]
pub struct AnswerImage {
    /// Its type, such as `image/png`.
    pub mime: String,
    /// Its bytes in base64.
    pub base64: String,
}

/// A file that a call created or changed.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// Name, unique within the session.
    pub name: String,
    /// Its type.
    pub mime: String,
    /// Its size.
    pub size_bytes: u64,
}

/// An artifact with its bytes.
#[derive(Clone, Debug)]
pub struct Content {
    /// Its type.
    pub mime: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Returns the tools of a set.
pub fn of_set(set: ToolSet, facts: &Facts) -> Vec<Tool> {
    let tool = |one: publish::Definition| {
        let schema = match one.parameters {
            Value::Object(schema) => schema,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Map::new()
            }
        };
        Tool { name: one.name.to_owned(), description: one.description, schema }
    };
    publish::definitions(set, facts).into_iter().map(tool).collect()
}

impl ToolAnswer {
    /// Creates the answer of a tool. Images are removed from its text, in which a model could not read them,
    /// and added as images. Those beyond the size limit are available as resources only.
    pub fn of(text: &str, failed: bool) -> Self {
        let mut result: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let (mut images, mut left) = (Vec::new(), IMAGES_BYTES_MAX);
        for file in result.get_mut("files").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(file) = file.as_object_mut() else { continue };
            if let (Some(Value::String(base64)), Some(Value::String(mime))) =
                (file.remove("base64"), file.get("type"))
                && base64.len() <= left
            {
                left -= base64.len();
                images.push(AnswerImage { mime: mime.clone(), base64 });
            }
        }
        Self { result, failed, images, artifacts: Vec::new() }
    }
}

/// Failure to serve a client on standard input and output.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client sent no handshake, or an invalid one.
    #[error(
        "cannot start MCP on standard input and output; this command is for MCP clients, not for use in a terminal"
    )]
    Handshake(#[source] Box<ServerInitializeError>),
    /// The task that served the client failed.
    #[error("cannot continue to serve MCP on standard input and output")]
    Task(#[source] tokio::task::JoinError),
}

/// Serves one client on standard input and output until it disconnects or `stop` is cancelled, then ends the
/// session of the host.
///
/// If a client closes its end while calls run, it has five seconds to receive their answers; a script that
/// pipes its requests relies on this. Clients that want to stop a server send SIGTERM about two seconds after
/// closing. The handler of that signal should cancel `stop`.
///
/// # Errors
/// The client does not speak MCP, or the task that served it failed.
pub async fn stdio(host: Arc<dyn Host>, stop: CancellationToken) -> Result<(), StdioError> {
    serve(host, stdio_pipes(), stop).await
}

async fn serve<T, E, A>(host: Arc<dyn Host>, transport: T, stop: CancellationToken) -> Result<(), StdioError>
where
    T: IntoTransport<RoleServer, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let session = McpSession::new(host, &stop);
    let served = match Server::of(Arc::clone(&session)).serve_with_ct(transport, stop).await {
        Ok(running) => running.waiting().await.map(drop).map_err(StdioError::Task),
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(StdioError::Handshake(Box::new(error))),
    };
    session.finish().await;
    served
}

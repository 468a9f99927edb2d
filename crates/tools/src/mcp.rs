//! Tools over the Model Context Protocol (MCP), on standard input and output or over streamable HTTP.
//!
//! `rmcp` implements the protocol. A [`Host`] runs the tools in a session, either on the server in this
//! process or on a remote server. This module connects `rmcp` to the host and handles everything else:
//! lifetime and ownership of sessions, limits on calls, and the form in which a model receives answers,
//! errors, images and files.
//!
//! | file | holds |
//! |---|---|
//! | `server` | the requests of a client: tools, calls, resources |
//! | `answer` | the form of answers and errors for a model |
//! | `progress` | the output of a call while it runs |
//! | `resource` | artifacts as resources |
//! | `session` | one client and its host, from the first message to the last |
//! | `table` | the sessions over HTTP: their owners and limits |
//! | `service` | streamable HTTP |
//!
//! Protocol versions from 2026-07-28 on have no sessions, so two calls in the same conversation could not
//! share a sandbox. This module does not offer these versions. Every client that supports them also supports
//! the previous version, and falls back to it.

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

/// Maximum size of an artifact that a client can read as a resource, in bytes. In base64, such an artifact is
/// below the message limit of clients, which is 16 MiB.
pub const ARTIFACT_BYTES_MAX: u64 = 10_000_000;

/// Maximum size of all images in one answer, in base64. The official Python client limits a message to 1 MiB.
const IMAGES_BYTES_MAX: usize = 700_000;

/// Component that runs the tools of one client.
///
/// A host holds no resources before its first call, because a client may only list the tools and disconnect.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Returns the tools in the order in which clients list them.
    fn tools(&self) -> Vec<Tool>;

    /// Returns the instructions for a model on how to use the tools.
    fn instructions(&self) -> String;

    /// Runs a tool in the host's session. The first call creates the session. Dropping the future cancels the
    /// run.
    ///
    /// Calls may overlap. Messages to `progress` are consumed immediately while the call runs, and are no
    /// longer consumed after it.
    ///
    /// # Errors
    /// Returns an error if the call fails and the model should see why. If the run itself fails, returns a
    /// [`ToolAnswer`].
    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<CallProgress>,
    ) -> Result<ToolAnswer, api::Error>;

    /// Lists the artifacts of the session. Before the first call, the list is empty.
    ///
    /// # Errors
    /// Returns an error if the session is not available.
    async fn artifacts(&self) -> Result<Vec<Artifact>, api::Error>;

    /// Returns an artifact and its content.
    ///
    /// # Errors
    /// Returns an error if the artifact does not exist (`not_found`), or it is larger than
    /// [`ARTIFACT_BYTES_MAX`] (`too_large`). The size is checked before the artifact is read.
    async fn artifact(&self, name: &str) -> Result<Content, api::Error>;

    /// Ends the session, if one exists, after the client has disconnected. This function is called once,
    /// after every call has ended or its future was dropped.
    async fn end(&self);
}

/// Tool as a model sees it.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool and how to use it.
    pub description: String,
    /// JSON Schema of the tool's arguments, which are an object.
    pub schema: Map<String, Value>,
}

/// Progress of a running call.
#[derive(Clone, Debug)]
pub enum CallProgress {
    /// Output that the call produced.
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
    /// Result for programs and for the model.
    pub result: Map<String, Value>,
    /// True if the run failed.
    pub failed: bool,
    /// Images that the run displayed.
    pub images: Vec<AnswerImage>,
    /// Artifacts that the run created or changed.
    pub artifacts: Vec<Artifact>,
}

/// Image in an answer.
#[derive(Clone, Debug)]
pub struct AnswerImage {
    /// MIME type of the image, such as `image/png`.
    pub mime: String,
    /// Image data in base64.
    pub base64: String,
}

/// File that a call created or changed.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// Name, unique within the session.
    pub name: String,
    /// MIME type of the file.
    pub mime: String,
    /// Size of the file in bytes.
    pub size_bytes: u64,
}

/// Artifact with its content.
#[derive(Clone, Debug)]
pub struct Content {
    /// MIME type of the artifact.
    pub mime: String,
    /// Content of the artifact.
    pub bytes: Bytes,
}

/// Returns the tools of a tool set.
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
    /// Creates the answer of a tool. Base64 images are moved from the text, where a model could not use them,
    /// to the images of the answer. Images beyond the size limit are available only as resources.
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

/// Error while serving a client on standard input and output.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client did not send a valid handshake.
    #[error(
        "cannot start MCP on standard input and output; this command is for MCP clients, not for use in a terminal"
    )]
    Handshake(#[source] Box<ServerInitializeError>),
    /// The task that served the client failed.
    #[error("cannot continue to serve MCP on standard input and output")]
    Task(#[source] tokio::task::JoinError),
}

/// Serves one client on standard input and output until the client disconnects or `stop` is cancelled. Then
/// ends the host's session.
///
/// If a client closes its end while calls are running, it can still receive their answers for five seconds.
/// Scripts that pipe their requests rely on this. To stop a server, a client closes its end and sends SIGTERM
/// about two seconds later. The handler of this signal should cancel `stop`.
///
/// # Errors
/// Returns an error if the client does not speak MCP, or the task that served the client failed.
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

//! Tools over the Model Context Protocol (MCP), on standard input and output or over streamable HTTP.
//!
//! What is said on the wire is `rmcp`'s business. What a tool does is the business of a [`Host`]: a session of the server in this
//! process, or one on another machine. This module stands between the two, and owns what neither does: when a session begins and
//! ends, whose it is, what a call may hold, and how an answer, an error, an image or a file looks to a model.
//!
//! | file | holds |
//! |---|---|
//! | `server` | what a client may ask: tools, calls, resources |
//! | `answer` | how an answer or an error looks to a model |
//! | `progress` | the output of a call while it runs |
//! | `resource` | artifacts as resources |
//! | `session` | one client with its host, from its first word to its last |
//! | `table` | the sessions over HTTP: whose they are, and how many |
//! | `service` | streamable HTTP |
//!
//! Versions of the protocol from 2026-07-28 on know no sessions, so that two calls of one conversation have nothing in common.
//! They are not offered: every client of that version also speaks the one before, and falls back to it.

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
use self::session::Session;
use crate::publish::{self, Facts};

/// The size of an artifact that is read as a resource at most: as base64 it is less than the 16 MiB that clients take at once.
pub const ARTIFACT_BYTES_MAX: u64 = 10_000_000;

/// Pictures of one answer, in base64: the official Python client takes no message of more than a mebibyte.
const IMAGES_BYTES_MAX: usize = 700_000;

/// Whoever runs the tools of one client.
///
/// A host that was made and never called holds nothing: a client may look at the tools and go.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// The tools, in the order in which they are shown.
    fn tools(&self) -> Vec<Tool>;

    /// What a model is told about all of them together.
    fn instructions(&self) -> String;

    /// Runs a tool in the session of this host, which the first call makes. Dropping the future cancels the run.
    ///
    /// Calls may overlap. What is sent to `progress` is taken at once for as long as the call runs, and never later.
    ///
    /// # Errors
    /// Whatever a model should hear of. A run that failed is an [`Answer`].
    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Answer, api::Error>;

    /// The artifacts of the session: none before the first call.
    ///
    /// # Errors
    /// The session cannot be asked.
    async fn artifacts(&self) -> Result<Vec<Artifact>, api::Error>;

    /// One artifact, whole.
    ///
    /// # Errors
    /// `not_found`; `too_large` if it is larger than [`ARTIFACT_BYTES_MAX`], before it is read.
    async fn artifact(&self, name: &str) -> Result<Content, api::Error>;

    /// The client has gone: ends the session, if there is one. Called once, when every call has ended or was dropped.
    async fn end(&self);
}

/// A tool as a model sees it.
#[derive(Clone, Debug)]
pub struct Tool {
    /// What it is called by.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its arguments: an object.
    pub schema: Map<String, Value>,
}

/// What a call says while it runs.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Something was written.
    Output {
        /// To the standard error rather than to the standard output.
        stderr: bool,
        /// What.
        text: String,
    },
}

/// What a call gave.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The result, for a program and for a model.
    pub result: Map<String, Value>,
    /// Whether what was run failed.
    pub failed: bool,
    /// The images that it showed.
    pub images: Vec<Image>,
    /// The artifacts that it made or changed.
    pub artifacts: Vec<Artifact>,
}

/// An image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its type, such as `image/png`.
    pub mime: String,
    /// Its bytes in base64.
    pub base64: String,
}

/// A file that a call made or changed.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// What to ask for it by; unlike every other of the session.
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

/// The tools of a set.
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

impl Answer {
    /// An answer of a tool. Pictures are taken out of its text, in which no model could read them; those that are too large are
    /// resources only.
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
                images.push(Image { mime: mime.clone(), base64 });
            }
        }
        Self { result, failed, images, artifacts: Vec::new() }
    }
}

/// Why a client on standard input and output was not served.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// It never said the first word of the protocol, or said it wrongly.
    #[error(
        "cannot start MCP on standard input and output; this command is for MCP clients, not for use in a terminal"
    )]
    Handshake(#[source] Box<ServerInitializeError>),
    /// The task that served it ended by itself.
    #[error("cannot continue to serve MCP on standard input and output")]
    Task(#[source] tokio::task::JoinError),
}

/// Serves one client on standard input and output until it goes or `stop` is cancelled, then ends the session of the host.
///
/// A client that closes its end while calls run is given five seconds for their answers, which is what a script that pipes its
/// requests needs. Clients that mean to stop a server send SIGTERM about two seconds after that: it should cancel `stop`.
///
/// # Errors
/// The client never spoke MCP, or the task that serves it failed.
pub async fn stdio(host: Arc<dyn Host>, stop: CancellationToken) -> Result<(), StdioError> {
    serve(host, stdio_pipes(), stop).await
}

async fn serve<T, E, A>(host: Arc<dyn Host>, transport: T, stop: CancellationToken) -> Result<(), StdioError>
where
    T: IntoTransport<RoleServer, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let session = Session::new(host, &stop);
    let served = match Server::of(Arc::clone(&session)).serve_with_ct(transport, stop).await {
        Ok(running) => running.waiting().await.map(drop).map_err(StdioError::Task),
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(StdioError::Handshake(Box::new(error))),
    };
    session.finish().await;
    served
}

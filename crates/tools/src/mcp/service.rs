//! Streamable HTTP: one endpoint with a separate session for each client.
//!
//! A client opens a session by sending `initialize` without the header `Mcp-Session-Id`. The response
//! contains the session ID. Every later request contains this ID, and is answered only if its owner opened
//! the session. For any other owner, the session does not exist. A session ends when its client requests this
//! (DELETE), when it has been idle for too long, when a newer session of the same owner replaces it, or when
//! the server stops. Each session has one task that waits for its end and then ends the host's session. No
//! other code ends the host's session.
//!
//! A session counts as in use during a call and while a client reads a response. A client that only listens
//! therefore keeps its session without sending requests. A call also keeps its session after its client has
//! disconnected: the client can reconnect for the answer before the call ends, but not later.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Host;
use super::server::Server;
use super::session::McpSession;
use super::table::SessionTable;

const SESSION_HEADER: &str = "mcp-session-id";
/// Timeout for receiving a request and for the head of its response. The body of the response may take
/// longer, because it is a stream.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Time for which an answer is kept after it was sent.
const ANSWERS_KEPT: Duration = Duration::from_secs(10);
/// Timeout for `rmcp` to close a session. A client that does not read its messages can delay the close.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Response of the service.
pub(super) type Answered = Response<BoxBody<Bytes, Infallible>>;

/// Limits and access rules of the service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum number of sessions.
    pub sessions_max: usize,
    /// Maximum number of sessions of one owner.
    pub sessions_of_owner_max: usize,
    /// Idle time after which a session ends.
    pub idle: Duration,
    /// Maximum size of a request body in bytes.
    pub body_bytes_max: usize,
    /// Allowed values of the header `Host`, each with or without a port. If empty, all values are allowed.
    ///
    /// The list prevents a web page from reaching a server on the same machine through the page's own DNS
    /// name. A server that requires a key does not need the list, because web pages do not have the key.
    pub hosts: Vec<String>,
    /// Origins from which a browser may send requests, such as `https://chat.example.org:443`. Requests from
    /// other origins are rejected. Clients other than browsers send no origin.
    pub origins: Vec<String>,
}

/// MCP service over streamable HTTP.
#[derive(Clone)]
pub struct Service {
    table: Arc<SessionTable>,
    idle: Duration,
    manager: Arc<LocalSessionManager>,
    transport: StreamableHttpService<Server, LocalSessionManager>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Service {
    /// Creates a service without sessions.
    pub fn new(settings: Settings) -> Self {
        let stop = CancellationToken::new();
        let manager = Arc::new(without_end());
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop.clone())
            .with_max_request_body_bytes(settings.body_bytes_max)
            .with_allowed_hosts(settings.hosts)
            .with_allowed_origins(settings.origins)
            .enforce_origin_validation();
        let transport = StreamableHttpService::new(|| Ok(Server::unopened()), Arc::clone(&manager), config);
        let table = SessionTable::new(settings.sessions_max, settings.sessions_of_owner_max);
        Self { table, idle: settings.idle, manager, transport, stop, tasks: TaskTracker::new() }
    }

    /// Handles a request of an authenticated owner. If the request has no session ID and may open a session,
    /// calls `open` to create the host.
    ///
    /// # Errors
    /// Returns an error if the owner has no session with the given ID (`not_found`, after which a client
    /// opens a new session), `open` failed, there are too many sessions (`quota_exceeded` or `capacity`), or
    /// the request takes too long to arrive (`deadline`).
    pub async fn handle<B>(
        &self,
        owner: &str,
        open: impl FnOnce() -> Result<Arc<dyn Host>, Error>,
        request: Request<B>,
    ) -> Result<Answered, Error>
    where
        B: Body<Data: Send, Error: std::fmt::Display> + Send + 'static,
    {
        match session_id(request.headers()) {
            Some(id) => self.within(owner, id, request).await,
            None if request.method() == Method::POST => self.first(owner, open()?, request).await,
            None => Ok(self.transport.handle(request).await),
        }
    }

    /// Ends all sessions, and waits until all hosts have ended their sessions.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Handles a request that belongs to a session.
    async fn within<B>(&self, owner: &str, id: String, request: Request<B>) -> Result<Answered, Error>
    where
        B: Body<Data: Send, Error: std::fmt::Display> + Send + 'static,
    {
        let session = self.table.find(&id, owner).ok_or_else(no_session)?;
        if request.method() == Method::DELETE {
            self.table.end(&id);
            return Ok(empty(StatusCode::NO_CONTENT));
        }
        let used = session.used();
        let response = timeout(HEAD_WITHIN, self.transport.handle(request)).await.map_err(|_| late())?;
        Ok(response.map(|body| {
            let held = body.map_frame(move |frame| {
                let _ = &used;
                frame
            });
            held.boxed()
        }))
    }

    /// Handles a request without a session ID, which may open a session.
    async fn first<B>(
        &self,
        owner: &str,
        host: Arc<dyn Host>,
        mut request: Request<B>,
    ) -> Result<Answered, Error>
    where
        B: Body<Data: Send, Error: std::fmt::Display> + Send + 'static,
    {
        let place = self.table.place(owner)?;
        let session = McpSession::new(host, &self.stop);
        request.extensions_mut().insert(Arc::clone(&session));
        let service = self.clone();
        // A separate task registers the new session even if its client disconnects before the response is
        // complete.
        let opened = self.tasks.spawn(async move {
            let response =
                timeout(HEAD_WITHIN, service.transport.handle(request)).await.map_err(|_| late())?;
            if let Some(id) = session_id(response.headers()) {
                place.take(id.clone(), Arc::clone(&session));
                service.tasks.spawn(service.clone().live(id, session));
            }
            Ok(response)
        });
        opened.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Waits for the end of a session, then cleans up its resources.
    async fn live(self, id: String, session: Arc<McpSession>) {
        session.over(self.idle).await;
        self.table.end(&id);
        session.end();
        // This times out only if a client does not read its messages. The remaining resources are then freed
        // when the client's connection ends.
        let _ = timeout(CLOSE_WITHIN, self.manager.close_session(&id.into())).await;
        session.finish().await;
    }
}

/// Creates a session manager without an idle timeout. The timeout of `rmcp` would end a session even during a
/// long call, so this module has its own timeout.
fn without_end() -> LocalSessionManager {
    let mut sessions = SessionConfig::default();
    sessions.keep_alive = None;
    // After a disconnect, a client can request an answer again, but only for a short time, because the server
    // keeps the answer, which may be large, in memory.
    sessions.completed_cache_ttl = ANSWERS_KEPT;
    let mut manager = LocalSessionManager::default();
    manager.session_config = sessions;
    manager
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_HEADER)?.to_str().ok().map(str::to_owned)
}

fn empty(status: StatusCode) -> Answered {
    let mut response = Response::new(Empty::new().boxed());
    *response.status_mut() = status;
    response
}

fn no_session() -> Error {
    Error {
        fix: "Open a new session: send `initialize` without the header Mcp-Session-Id.".into(),
        ..Error::not_found("this MCP session does not exist or has ended")
    }
}

fn late() -> Error {
    platform(
        ErrorCode::Deadline,
        format!("the request was not received within {} seconds", HEAD_WITHIN.as_secs()),
    )
}

fn broken() -> Error {
    platform(ErrorCode::Platform, "cannot open an MCP session".into())
}

fn platform(code: ErrorCode, message: String) -> Error {
    Error {
        code,
        message,
        layer: Layer::Platform,
        ran: Ran::Unknown,
        retry: Retry::Unknown,
        fix: "Retry.".into(),
    }
}

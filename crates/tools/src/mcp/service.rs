//! Streamable HTTP: one endpoint, on which each client has a session of its own.
//!
//! A client that sends `initialize` without the header `Mcp-Session-Id` opens a session and is told its id. Every later request
//! names it, and is answered only for the owner that opened it: to anybody else there is no such session. A session ends when its
//! client says so (DELETE), when it is not used for a time, when it gives way to a newer one of its owner, or with the server.
//! One task per session waits for that and ends the session of the host; nothing else does.
//!
//! A call, and a response that is still being read, is a use. So a client that listens keeps its session without asking for
//! anything, and so does a call whose client was cut off: it may come back for the answer before the call ends, not after.

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
use super::session::Session;
use super::table::Table;

const SESSION_HEADER: &str = "mcp-session-id";
/// A request whose body takes longer is not coming. The answer may take longer: it is the stream that follows.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long an answer is kept after it was sent.
const ANSWERS_KEPT: Duration = Duration::from_secs(10);
/// How long `rmcp` is given to let go of a session; a client that does not read can hold it up.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A response as it leaves here.
pub(super) type Answered = Response<BoxBody<Bytes, Infallible>>;

/// What the service may hold, and whom it listens to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sessions at most.
    pub sessions_max: usize,
    /// Sessions of one owner at most.
    pub sessions_of_owner_max: usize,
    /// A session that is not used for so long is ended.
    pub idle: Duration,
    /// The size of a request at most.
    pub body_bytes_max: usize,
    /// The hosts, each with or without a port, by whose names the server may be called; any if there are none.
    ///
    /// It keeps a web page from reaching a server of the same machine by a name of its own. A server that asks every request for
    /// a key, which no page has, needs no list.
    pub hosts: Vec<String>,
    /// The origins, such as `https://chat.example.org:443`, from which a browser may ask. Others are refused; programs send none.
    pub origins: Vec<String>,
}

/// Streamable HTTP.
#[derive(Clone)]
pub struct Service {
    table: Arc<Table>,
    idle: Duration,
    manager: Arc<LocalSessionManager>,
    transport: StreamableHttpService<Server, LocalSessionManager>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Service {
    /// A service without sessions.
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
        let table = Table::new(settings.sessions_max, settings.sessions_of_owner_max);
        Self { table, idle: settings.idle, manager, transport, stop, tasks: TaskTracker::new() }
    }

    /// Answers a request of an owner, who was asked for a key before. `open` makes the host if the request may begin a session.
    ///
    /// # Errors
    /// `not_found` if the owner has no such session, on which a client opens a new one; what `open` says; `quota_exceeded` and
    /// `capacity` if there are too many; `deadline` if the request does not come.
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

    /// Ends every session, and returns when their hosts have ended theirs.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// A request that names a session.
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

    /// A request that names no session and may begin one.
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
        let session = Session::new(host, &self.stop);
        request.extensions_mut().insert(Arc::clone(&session));
        let service = self.clone();
        // In a task of its own: a session that was made must be entered, though its client goes before it hears of it.
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

    /// Waits for the end of a session, and ends what belongs to it.
    async fn live(self, id: String, session: Arc<Session>) {
        session.over(self.idle).await;
        self.table.end(&id);
        session.end();
        // In vain only if a client does not read what it is sent; then the end of its connection frees the rest.
        let _ = timeout(CLOSE_WITHIN, self.manager.close_session(&id.into())).await;
        session.finish().await;
    }
}

/// `rmcp` would end a session in which nothing was said for a while, even within a long call: that is decided here instead.
fn without_end() -> LocalSessionManager {
    let mut sessions = SessionConfig::default();
    sessions.keep_alive = None;
    // An answer can be asked for again after a connection that broke, not for long: it may be large.
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

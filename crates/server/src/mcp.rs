//! Tools over the Model Context Protocol. Each client has its own session, which its first tool call creates.

use std::sync::Arc;
use std::time::Duration;

use api::exec::Stream;
use api::session::{CreateSession, SessionEvent, ToolSet};
use api::{Error, ErrorCode, ExecId, limits};
use async_trait::async_trait;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::{OnceCell, mpsc};
use tools::mcp::{
    ARTIFACT_BYTES_MAX, Artifact, CallProgress, Content, Host, Service, Settings, Tool, ToolAnswer,
};
use tools::publish::Facts;

use crate::authority::{Caller, Write};
use crate::body::{self, BodyReservation};
use crate::extract::Query;
use crate::rejection::Rejection;
use control::account::{Account, Rate};
use control::fault::Fault;
use control::platform::Platform;
use control::session::Live;
use control::session::ToolRequest;
use control::session::flight::EndsWith;
use control::session::whole;

/// Maximum numbers of concurrent MCP clients in total and per key. A client itself needs little memory, and
/// its sandbox counts against its project's quota.
const CLIENTS_MAX: usize = 10_000;
const CLIENTS_OF_KEY_MAX: usize = 1000;
/// Idle time after which a client counts as gone. A client is idle if it has neither a request nor a
/// listening connection.
const CLIENT_IDLE: Duration = Duration::from_secs(1800);

/// Query parameters of an MCP client, which select a tool set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Tool set. The default is the set for running code.
    #[serde(default = "interpreter")]
    set: ToolSet,
}

/// State of one MCP client.
struct Talk {
    platform: Arc<Platform>,
    account: Arc<Account>,
    set: ToolSet,
    /// The client's session. The first tool call creates it.
    live: OnceCell<Arc<Live>>,
}

/// Creates the MCP service.
pub fn service() -> Service {
    Service::new(Settings {
        sessions_max: CLIENTS_MAX,
        sessions_of_owner_max: CLIENTS_OF_KEY_MAX,
        idle: CLIENT_IDLE,
        body_bytes_max: limits::BODY_BYTES_MAX,
        // No origin check is necessary: every request must present a key, which a third-party web page does
        // not have.
        hosts: Vec::new(),
        origins: Vec::new(),
    })
}

/// Handles a client's request.
///
/// # Errors
/// Returns an error if the client's session does not exist or if there are too many sessions.
pub async fn serve(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    State(service): State<Arc<Service>>,
    Query(offer): Query<Offer>,
    request: Request,
) -> Result<Response, Rejection> {
    caller.pace(Rate::Exec)?;
    let account = Arc::clone(&caller.account);
    let talk = Talk { platform: Arc::clone(&platform), account, set: offer.set, live: OnceCell::new() };
    let (request, room) = counted(request).await?;
    let answered = service.handle(&caller.key.id, || Ok(Arc::new(talk) as Arc<dyn Host>), request).await?;
    // A tool call uses its message until the response is complete, so the memory stays reserved until then.
    let answered = answered.map(|body| {
        body.map_frame(move |frame| {
            let _ = &room;
            frame
        })
    });
    Ok(answered.into_response())
}

/// Reads the request's message, which counts against the project's memory budget.
async fn counted(request: Request) -> Result<(Request, BodyReservation), Rejection> {
    if request.method() != Method::POST || api::defence::is_off("H-34") {
        return Ok((request, BodyReservation::default()));
    }
    let (parts, body) = request.into_parts();
    let (bytes, room) = body::counted(&parts, body, limits::BODY_BYTES_MAX).await?;
    Ok((Request::from_parts(parts, Body::from(bytes)), room))
}

impl Talk {
    async fn live(&self) -> Result<&Arc<Live>, Error> {
        let make = async || {
            let (platform, account) = (&self.platform, &self.account);
            let request = CreateSession::of(self.set);
            let session = platform.sessions.create(platform, account, &request, None).await?;
            platform.sessions.find(platform, account, session.id.as_str()).await
        };
        self.live.get_or_try_init(make).await.map_err(|fault: Fault| fault.into())
    }
}

#[async_trait]
impl Host for Talk {
    fn tools(&self) -> Vec<Tool> {
        tools::mcp::of_set(self.set, &Facts::default())
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
        let _place = self.account.share.stream().map_err(|fault| fault.error().clone())?;
        let live = self.live().await?;
        let mut events = live.events();
        let random = node::machine::random().map_err(discreet)?;
        let id = ExecId::from_random(random);
        let request = ToolRequest { tool, body: Value::Object(arguments), id: id.clone(), keyed: false };
        let flight = live.call(&self.platform, &self.account, request).await;
        let flight = flight.map_err(|fault| fault.error().clone())?;
        let ends = EndsWith::this(&flight);
        let landing = flight.landing();
        tokio::pin!(landing);
        let told = loop {
            tokio::select! {
                landing = &mut landing => break landing?,
                event = events.recv() => {
                    // Missed events lose no output: the final response contains all of it.
                    if let Ok(SessionEvent::Output { run, stream, text: Some(text), .. }) = event && run == id {
                        // A slow client misses some progress messages; the final response contains their
                        // output.
                        let stderr = stream == Stream::Stderr;
                        let _ = progress.try_send(CallProgress::Output { stderr, text });
                    }
                }
            }
        };
        ends.release();
        let artifacts = told.artifacts.iter().map(|one| Artifact {
            name: one.name.clone(),
            mime: one.mime.clone(),
            size_bytes: one.size,
        });
        Ok(ToolAnswer { artifacts: artifacts.collect(), ..ToolAnswer::of(&told.text, told.failed) })
    }

    async fn artifacts(&self) -> Result<Vec<Artifact>, Error> {
        let Some(live) = self.live.get() else { return Ok(Vec::new()) };
        let kept = live.artifacts().await.map_err(discreet)?;
        let kept =
            kept.into_iter().map(|one| Artifact { name: one.name, mime: one.mime, size_bytes: one.size });
        Ok(kept.collect())
    }

    async fn artifact(&self, name: &str) -> Result<Content, Error> {
        let missing = || Error::not_found(format!("the session has no artifact {name:?}"));
        let live = self.live.get().ok_or_else(missing)?;
        let found = live.artifact(name).await.map_err(discreet)?;
        let (artifact, outgoing) = found.ok_or_else(missing)?;
        if artifact.size > ARTIFACT_BYTES_MAX {
            let error =
                limits::exceeded("the size of the artifact in bytes", artifact.size, ARTIFACT_BYTES_MAX);
            return Err(Error { code: ErrorCode::TooLarge, ..error });
        }
        let bytes = whole(outgoing).await.map_err(discreet)?;
        Ok(Content { mime: artifact.mime, bytes: bytes.into() })
    }

    async fn end(&self) {
        let Some(live) = self.live.get() else { return };
        if let Err(fault) = live.end(&self.platform, &self.account).await {
            tracing::warn!(error = fault.error().message, "cannot end the session of an MCP client");
        }
    }
}

/// Converts a node error, and removes the details that clients must not see.
fn discreet(error: node::Error) -> Error {
    Rejection::from(error).error().clone()
}

fn interpreter() -> ToolSet {
    ToolSet::Interpreter
}

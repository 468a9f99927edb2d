//! A session's events, as lines of JSON or as WebSocket messages.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::sandbox::{SESSION_LABEL, Sandbox, SandboxEvent};
use api::server::HEARTBEAT_MS;
use api::session::{SessionEvent, SessionState};
use api::{Error, SessionId};
use axum::body::Body;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout, timeout_at};

use crate::authority::cut::Ends;
use crate::authority::{Caller, Read};
use crate::extract::Path;
use crate::output::{lines, written};
use crate::rejection::Answer;
use crate::routes::terminals::UpgradableConnection;
use control::platform::Platform;
use control::session::Live;

/// Timeout for sending a message. A client that accepts no data for this long has lost its network
/// connection.
const SEND_WITHIN: Duration = Duration::from_secs(30);
/// Maximum size of a message from a client. Clients only need to send pings and close frames.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Stream session events
///
/// Streams the events of a session from now on: changes of its sandboxes, runs with their output, stored images. Each event is one JSON
/// object, on its own line or, over a WebSocket, in its own message. The last event is `session_ended`.
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}/events",
    operation_id = "streamSessionEvents",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID")),
    security(("key" = [])),
    responses(
        (status = 200, body = SessionEvent, content_type = "application/x-ndjson"),
        (status = 101, description = "The connection is now a WebSocket. Each event is a text message"),
        (status = "default", body = Error),
    )
)]
pub async fn follow(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
    UpgradableConnection { held, upgrade }: UpgradableConnection,
) -> Answer<Response> {
    let place = caller.share.stream()?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let (events, sandboxes) = (live.events(), platform.node.events());
    let session = live.shown().await;
    let listener = SessionEventListener {
        session: session.id,
        project: caller.key.project.clone(),
        events,
        sandboxes,
        over: session.state == SessionState::Ended,
        _live: live,
        _place: place,
        ended: false,
    };
    if let Ok(upgrade) = upgrade {
        let ends = Ends::of(&caller);
        let most = if api::defence::is_off("H-33") { 64 << 20 } else { MESSAGE_BYTES_MAX };
        let upgrade = upgrade.max_message_size(most).max_frame_size(most);
        let upgrade = upgrade.read_buffer_size(MESSAGE_BYTES_MAX).write_buffer_size(0);
        return Ok(upgrade.on_upgrade(move |socket| async move {
            let _held = held;
            ends.limit(listener.serve(socket)).await;
        }));
    }
    let body = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(written(&[event])), listener))
    });
    Ok(lines(StatusCode::OK, Body::from_stream(body)))
}

/// A client that receives a session's events.
struct SessionEventListener {
    session: SessionId,
    /// The session's project. Sandboxes of other projects may carry the same session ID in a label and are
    /// ignored.
    project: String,
    events: Receiver<SessionEvent>,
    sandboxes: Receiver<SandboxEvent>,
    /// True if the session had ended before the request.
    over: bool,
    /// Keeps the session in use while the client listens.
    _live: Arc<Live>,
    _place: OwnedSemaphorePermit,
    ended: bool,
}

impl SessionEventListener {
    /// Returns the next event or a heartbeat. Returns `None` after the last event.
    async fn next(&mut self) -> Option<SessionEvent> {
        if self.ended {
            return None;
        }
        if self.over {
            self.ended = true;
            return Some(SessionEvent::SessionEnded);
        }
        let until = Instant::now() + Duration::from_millis(HEARTBEAT_MS);
        loop {
            let heard = tokio::select! {
                biased;
                event = self.sandboxes.recv() => match event {
                    Ok(SandboxEvent::Changed { sandbox })
                        if self.is_ours(&sandbox) =>
                    {
                        Some(SessionEvent::Sandbox { sandbox })
                    }
                    Ok(_) | Err(RecvError::Lagged(_)) => None,
                    Err(RecvError::Closed) => return None,
                },
                event = timeout_at(until, self.events.recv()) => match event {
                    Err(_) => Some(SessionEvent::Heartbeat),
                    Ok(Ok(event)) => Some(event),
                    Ok(Err(RecvError::Lagged(count))) => Some(SessionEvent::Missed { count }),
                    Ok(Err(RecvError::Closed)) => return None,
                },
            };
            if let Some(event) = heard {
                self.ended = event == SessionEvent::SessionEnded;
                return Some(event);
            }
        }
    }

    /// Returns true if a sandbox belongs to the session.
    fn is_ours(&self, sandbox: &Sandbox) -> bool {
        if api::defence::is_off("X-24") {
            return sandbox.labels.get("session").map(String::as_str) == Some(self.session.as_str());
        }
        sandbox.project == self.project
            && sandbox.labels.get(SESSION_LABEL).map(String::as_str) == Some(self.session.as_str())
    }

    /// Sends events until the session ends or the client disconnects.
    async fn serve(mut self, mut socket: WebSocket) {
        loop {
            let event = tokio::select! {
                event = self.next() => event,
                // Ignore client messages; a disconnect ends the stream.
                message = socket.recv() => match message {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(Message::Text(_) | Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => continue,
                },
            };
            let Some(event) = event else {
                let _ = timeout(SEND_WITHIN, socket.send(Message::Close(None))).await;
                return;
            };
            let Ok(text) = serde_json::to_string(&event) else { return };
            if !matches!(timeout(SEND_WITHIN, socket.send(Message::Text(text.into()))).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

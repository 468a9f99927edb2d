//! What happens in a session, as lines of JSON or as messages of a WebSocket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::account::Role;
use api::sandbox::SandboxEvent;
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

use crate::caller::{At, Caller};
use crate::fault::Answer;
use crate::output::{lines, place, written};
use crate::platform::Platform;
use crate::routes::terminals::Connection;
use crate::session::Live;
use crate::session::sandbox::LABEL;

/// Whoever takes nothing for so long has lost its network.
const SEND_WITHIN: Duration = Duration::from_secs(30);

/// What happens in a session from now on: its sandboxes, its runs with what they write, pictures that were kept. One JSON object a line,
/// or a message where the request asks for a WebSocket. The last is `session_ended`.
#[utoipa::path(get, path = "/v1/sessions/{session}/events", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = SessionEvent, content_type = "application/x-ndjson"), (status = 101, description = "The same events, each as a text message of a WebSocket."), (status = "default", body = Error)))]
pub async fn follow(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
    Connection { held, upgrade }: Connection,
) -> Answer<Response> {
    caller.require(Role::Read)?;
    let place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let (events, sandboxes) = (live.events(), platform.node.events());
    let session = live.shown().await;
    let listener = Listener {
        session: session.id,
        events,
        sandboxes,
        over: session.state == SessionState::Ended,
        _live: live,
        _place: place,
        ended: false,
    };
    if let Ok(upgrade) = upgrade {
        return Ok(upgrade.on_upgrade(move |socket| async move {
            let _held = held;
            listener.serve(socket).await;
        }));
    }
    let body = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(written(&[event])), listener))
    });
    Ok(lines(StatusCode::OK, Body::from_stream(body)))
}

/// One client that follows a session.
struct Listener {
    session: SessionId,
    events: Receiver<SessionEvent>,
    sandboxes: Receiver<SandboxEvent>,
    /// Whether it had ended when it was asked for.
    over: bool,
    /// Keeps the session in use.
    _live: Arc<Live>,
    _place: OwnedSemaphorePermit,
    ended: bool,
}

impl Listener {
    /// The next event, or a sign of life; none after the last.
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
                        if sandbox.labels.get(LABEL).map(String::as_str) == Some(self.session.as_str()) =>
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

    /// Sends all of it until the client leaves.
    async fn serve(mut self, mut socket: WebSocket) {
        loop {
            let event = tokio::select! {
                event = self.next() => event,
                // What a client says here means nothing; that it is gone does.
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

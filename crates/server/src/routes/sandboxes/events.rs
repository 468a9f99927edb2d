//! The events of a project's sandboxes, as lines of JSON.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::Error;
use api::sandbox::SandboxEvent;
use api::server::HEARTBEAT_MS;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::authority::{Caller, Read};
use crate::output::{lines, written};
use crate::rejection::Answer;
use control::platform::Platform;

/// Stream sandbox events
///
/// Streams events of the project's sandboxes from now on, one JSON object per line.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "streamEvents",
    tag = "sandboxes",
    security(("key" = [])),
    responses(
        (status = 200, body = SandboxEvent, content_type = "application/x-ndjson"),
        (status = "default", body = Error),
    )
)]
pub async fn follow(caller: Caller<Read>, State(platform): State<Arc<Platform>>) -> Answer<Response> {
    let listener = SandboxEventListener {
        events: platform.node.events(),
        project: caller.key.project.clone(),
        platform,
        _place: caller.share.stream()?,
    };
    let body = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(written(&[event])), listener))
    });
    Ok(lines(StatusCode::OK, Body::from_stream(body)))
}

/// A client that follows the events of its project.
struct SandboxEventListener {
    events: Receiver<SandboxEvent>,
    project: String,
    platform: Arc<Platform>,
    _place: OwnedSemaphorePermit,
}

impl SandboxEventListener {
    /// Returns the project's next event or a heartbeat.
    async fn next(&mut self) -> Option<SandboxEvent> {
        let until = tokio::time::Instant::now() + Duration::from_millis(HEARTBEAT_MS);
        loop {
            let event = match tokio::time::timeout_at(until, self.events.recv()).await {
                Err(_) => return Some(SandboxEvent::Heartbeat),
                Ok(Err(RecvError::Closed)) => return None,
                Ok(Err(RecvError::Lagged(count))) => return Some(SandboxEvent::Missed { count }),
                Ok(Ok(event)) => event,
            };
            let own = match &event {
                SandboxEvent::Changed { sandbox } => sandbox.project == self.project,
                SandboxEvent::Expiring { sandbox, .. } => {
                    self.platform.node.find(sandbox).is_some_and(|shown| shown.project == self.project)
                }
                SandboxEvent::Missed { .. } | SandboxEvent::Heartbeat => true,
            };
            if own {
                return Some(event);
            }
        }
    }
}

//! The connections of a link, one after another, and the end of the sandbox, which is final.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::exec::{GUEST_EXPIRED, LostCause};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use runtime::{Exit, Runtime};
use streamed::Streamed;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::PauseState;
use crate::port::Inwards;

/// Flow-control window of one stream: the maximum unread output that this process holds for one reader. It
/// equals two of the guest's chunks. The number of readers is limited per project.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Flow-control window of the connection: the HTTP/2 maximum, which means no additional limit. With a limit,
/// a caller that opens a stream and does not read it would use up the window that all other responses of the
/// guest need (attack O-02).
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Maximum size of an HTTP/2 frame. It is larger than the default, so that a flood of output causes fewer
/// wake-ups. It is no larger than this, because streams take turns and send one frame each: behind many
/// floods of output, a response must still arrive in time.
const FRAME_BYTES: u32 = 64 * 1024;
/// Interval and timeout of pings. A live guest answers pings. If the guest was stopped or starved for this
/// long, the connection is replaced.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_WITHIN: Duration = Duration::from_secs(10);
/// Timeout for one wait for a connection. The wait is repeated without limit, because the guest redials for
/// as long as it lives.
const DIAL_WITHIN: Duration = Duration::from_secs(30);

/// Interval between attempts to reach a sandbox that another process still holds.
const TAKE_AGAIN: Duration = Duration::from_millis(20);

/// Sends requests on one connection.
pub(super) type Sender = SendRequest<Either<Full<Bytes>, Either<Streamed, Inwards>>>;

/// The state of a link.
#[derive(Clone)]
pub(super) enum LinkState {
    Waiting,
    Live { sender: Sender, generation: u64 },
    Ended(LostCause),
}

/// Accepts the guest's connections, one after another.
pub(super) async fn keep(
    runtime: Arc<dyn Runtime>,
    id: SandboxId,
    state: Arc<watch::Sender<LinkState>>,
    mut pause: watch::Receiver<PauseState>,
) {
    let mut generation = 0;
    loop {
        // A frozen guest does not dial, and an engine rejects requests to connect to it.
        if pause.wait_for(|pause| *pause != PauseState::Frozen).await.is_err() {
            return;
        }
        let stream = match runtime.connect(&id, DIAL_WITHIN).await {
            Ok(stream) => stream,
            Err(runtime::Error::Deadline { .. } | runtime::Error::Impostor { .. }) => continue,
            // `mourn` waits for process 1 and reports the cause.
            Err(runtime::Error::NotFound(_) | runtime::Error::Ended(_)) => return,
            // All other errors are temporary. For example, a child process that the previous server forked
            // just before it exited can briefly hold the server's locks.
            Err(_) => {
                tokio::time::sleep(TAKE_AGAIN).await;
                continue;
            }
        };
        generation += 1;
        let Ok((sender, connection)) = handshake(stream).await else { continue };
        publish(&state, LinkState::Live { sender, generation });
        let _ = connection.await;
        publish(&state, LinkState::Waiting);
    }
}

/// Waits for process 1 to exit, and publishes why the sandbox ended.
pub(super) async fn mourn(
    runtime: Arc<dyn Runtime>,
    id: SandboxId,
    state: Arc<watch::Sender<LinkState>>,
    stopping: watch::Receiver<Option<LostCause>>,
) {
    let exit = loop {
        match runtime.wait(&id).await {
            // Only these results mean that the sandbox has ended. Other errors, such as a lack of file
            // descriptors, do not prove that.
            Ok(exit) => break exit,
            Err(runtime::Error::NotFound(_) | runtime::Error::Ended(_)) => break Exit::Unknown,
            Err(_) => tokio::time::sleep(TAKE_AGAIN).await,
        }
    };
    let struck = runtime.usage(&id).await.is_ok_and(|usage| usage.oom_kills > 0);
    let wanted = *stopping.borrow();
    let cause = match exit {
        _ if wanted.is_some() => wanted.unwrap_or(LostCause::Stopped),
        Exit::Exited(code) if code == i32::from(GUEST_EXPIRED) => LostCause::Expired,
        // If process 1 is subject to the sandbox's memory limit, running out of memory can kill it.
        _ if struck && runtime.properties().shares_limits => LostCause::Oom,
        Exit::Exited(_) | Exit::Signaled(_) | Exit::Unknown => LostCause::Died,
    };
    state.send_replace(LinkState::Ended(cause));
}

/// Publishes a state, unless the sandbox has ended, which is final.
fn publish(state: &watch::Sender<LinkState>, next: LinkState) {
    state.send_if_modified(|now| {
        let open = !matches!(now, LinkState::Ended(_));
        if open {
            *now = next;
        }
        open
    });
}

async fn handshake(stream: UnixStream) -> hyper::Result<(Sender, impl Future<Output = hyper::Result<()>>)> {
    Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .handshake(TokioIo::new(stream))
        .await
}

//! One terminal over one WebSocket: output goes to the client, and input and size changes come from it.
//!
//! ```text
//! exec ──▶ outward ──▶ client        offsets before the bytes; events as JSON; a heartbeat and a ping every few seconds
//! exec ◀── feeder ◀─┐
//! exec ◀── asker  ◀─┴─ inward ◀── client
//! ```
//!
//! The guest owns the exec, so the exec outlives the connection, and the client can reconnect with its
//! offsets. A client that does not read delays only its own connection. Meanwhile, the guest retains output
//! up to the exec's limit and reports any output beyond it as a gap. Input waits at the client while the
//! process does not read.

use std::sync::Arc;
use std::time::Duration;

use api::exec::ExecInfo;
use api::server::HEARTBEAT_MS;
use api::terminal::{INPUT_BYTES_MAX, TerminalEvent, TerminalRequest, TerminalSize, message, parts};
use api::{Error, ErrorCode, ExecId};
use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use node::{Call, Event, Exec};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::listen::ConnectionGuard;
use control::platform::Platform;

/// Maximum payload of one binary message. This is below the limit of 1 MiB that clients have by default.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Timeout for a client to accept a message. A client that takes longer has lost its network connection or is
/// suspended; it can reconnect with its offsets.
const SEND_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time without a message from the client. Clients answer pings, so six pings have then gone
/// unanswered.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of input chunks that are queued behind the current one. Further chunks wait in the client's
/// socket.
const INPUTS_WAITING: usize = 1;
/// Maximum number of queued signals.
const SIGNALS_WAITING: usize = 8;
/// Maximum number of replies that are queued behind output.
const REPLIES_WAITING: usize = 16;
/// Timeout for the process to read a chunk of input. After the timeout, the write is retried.
const INPUT_WITHIN: Duration = Duration::from_secs(60);
/// Time for the client to read the last message and close the connection. Without this time, dropping the
/// connection with unread bytes would reset it, and the last message would be lost.
const LINGER: Duration = Duration::from_secs(1);

/// Maximum size of a client's message.
pub const MESSAGE_BYTES_MAX: usize = INPUT_BYTES_MAX + api::terminal::OFFSET_BYTES;

/// One client's WebSocket connection to an exec's terminal.
pub struct TerminalSession {
    /// Platform on which the exec runs.
    pub platform: Arc<Platform>,
    /// Call to the sandbox. While it exists, the sandbox does not count as idle.
    pub call: Call,
    /// The exec's state when the client connected.
    pub info: ExecInfo,
    /// Offset of the first output byte that the client wants.
    pub from: u64,
    /// One of the project's stream slots.
    pub place: OwnedSemaphorePermit,
    /// One of the server's connection slots.
    pub held: Option<ConnectionGuard>,
}

/// Queues for the client's requests to the guest, and for replies to the client.
struct TerminalQueues {
    inputs: mpsc::Sender<(u64, Bytes)>,
    sizes: watch::Sender<Option<TerminalSize>>,
    signals: mpsc::Sender<i32>,
    replies: mpsc::Sender<TerminalEvent>,
}

/// Guard that counts a connection in the metrics.
struct StreamCountGuard(Arc<Platform>);

impl TerminalSession {
    /// Serves the client until it disconnects, the exec ends, or one of the two is silent for too long.
    pub async fn serve(self, socket: WebSocket) {
        let _counted = StreamCountGuard::new(&self.platform);
        let (sink, stream) = socket.split();
        let (inputs, inputs_to_do) = mpsc::channel(INPUTS_WAITING);
        let (signals, signals_to_do) = mpsc::channel(SIGNALS_WAITING);
        let (replies, replies_to_send) = mpsc::channel(REPLIES_WAITING);
        let (sizes, sizes_to_do) = watch::channel(None);
        let mut reader = self.call.exec_reader(self.info.id.clone());
        reader.seek(self.from, 0, 0);
        let id = &self.info.id;
        tokio::select! {
            () = outward(sink, &self.info, reader, replies_to_send) => {}
            () = inward(stream, TerminalQueues { inputs, sizes, signals, replies: replies.clone() }) => {}
            () = feeder(&self.call, id, inputs_to_do, &replies) => {}
            () = asker(&self.call, id, sizes_to_do, signals_to_do, &replies) => {}
        }
    }
}

impl StreamCountGuard {
    fn new(platform: &Arc<Platform>) -> Self {
        platform.metrics.streams.inc();
        Self(Arc::clone(platform))
    }
}

impl Drop for StreamCountGuard {
    fn drop(&mut self) {
        self.0.metrics.streams.dec();
    }
}

/// Sends output, events and replies to the client. Returns after the last message.
async fn outward(
    mut sink: SplitSink<WebSocket, Message>,
    info: &ExecInfo,
    mut reader: Exec,
    mut replies: mpsc::Receiver<TerminalEvent>,
) {
    let opened = TerminalEvent::Opened { exec: info.clone(), received: info.stdin_bytes };
    if !say(&mut sink, &opened).await {
        return;
    }
    let mut beat = interval(Duration::from_millis(HEARTBEAT_MS));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.reset();
    loop {
        let (event, is_last) = tokio::select! {
            _ = beat.tick() => {
                if !put(&mut sink, Message::Ping(Bytes::new())).await {
                    return;
                }
                (TerminalEvent::Heartbeat, false)
            }
            Some(reply) = replies.recv() => (reply, false),
            heard = reader.next() => match heard {
                Ok(Some(Event::Data { offset, bytes, .. })) => {
                    if !show(&mut sink, offset, &bytes).await {
                        return;
                    }
                    continue;
                }
                Ok(Some(Event::Gap { from, to, .. })) => (TerminalEvent::Gap { from, to }, false),
                // Only code has results, and code never runs on a terminal.
                Ok(Some(Event::Result { .. })) => continue,
                Ok(Some(Event::End(end))) => (TerminalEvent::End { end }, true),
                Ok(None) => {
                    let error = node::Error::Protocol("the output stream ended without an end event".into()).to_api();
                    (TerminalEvent::Error { error }, true)
                }
                Err(error) => (TerminalEvent::Error { error: told(error) }, true),
            }
        };
        if !say(&mut sink, &event).await {
            return;
        }
        if is_last {
            let _ = timeout(LINGER, sink.close()).await;
            return tokio::time::sleep(LINGER).await;
        }
    }
}

/// Handles the client's messages until it disconnects.
async fn inward(mut stream: SplitStream<WebSocket>, asked: TerminalQueues) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE_MAX, stream.next()).await {
        let taken = match message {
            Message::Binary(bytes) => asked.input(&bytes).await,
            Message::Text(text) => asked.request(text.as_str()).await,
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        if let Err(error) = taken
            && asked.replies.send(TerminalEvent::Refused { error }).await.is_err()
        {
            return;
        }
    }
}

impl TerminalQueues {
    async fn input(&self, message: &Bytes) -> Result<(), Error> {
        let Some((offset, bytes)) = parts(message) else {
            return Err(Error::invalid(
                "the binary message is shorter than an offset",
                "Send the offset as eight bytes, big-endian, followed by the input.",
            ));
        };
        if !bytes.is_empty() {
            // Sending fails only if the session is ending.
            let _ = self.inputs.send((offset, message.slice_ref(bytes))).await;
        }
        Ok(())
    }

    async fn request(&self, text: &str) -> Result<(), Error> {
        let request = serde_json::from_str(text).map_err(|error| {
            Error::invalid(
                format!("invalid text message: {error}"),
                r#"Send {"resize":{"cols":80,"rows":24}} or {"signal":2}; input is a binary message."#,
            )
        })?;
        match request {
            TerminalRequest::Resize(size) => {
                size.check()?;
                self.sizes.send_replace(Some(size));
            }
            TerminalRequest::Signal(signal) => {
                let _ = self.signals.send(signal).await;
            }
        }
        Ok(())
    }
}

/// Writes input chunk by chunk. For each chunk, waits as long as the process needs to read it.
async fn feeder(
    call: &Call,
    id: &ExecId,
    mut inputs: mpsc::Receiver<(u64, Bytes)>,
    replies: &mpsc::Sender<TerminalEvent>,
) {
    while let Some((offset, bytes)) = inputs.recv().await {
        let reply = loop {
            match call.exec_reader(id.clone()).write_stdin(offset, bytes.clone(), false, INPUT_WITHIN).await {
                Ok(received) => break TerminalEvent::Received { received },
                // The retry skips the part of the chunk that the process has already received.
                Err(node::Error::Deadline { .. }) => {}
                Err(error) => break TerminalEvent::Refused { error: told(error) },
            }
        };
        if replies.send(reply).await.is_err() {
            break;
        }
    }
    // Do not return, because `inward` decides when the session ends.
    std::future::pending().await
}

/// Forwards size changes, of which only the latest matters, and signals, all of which matter.
async fn asker(
    call: &Call,
    id: &ExecId,
    mut sizes: watch::Receiver<Option<TerminalSize>>,
    mut signals: mpsc::Receiver<i32>,
    replies: &mpsc::Sender<TerminalEvent>,
) {
    loop {
        let done = tokio::select! {
            Ok(()) = sizes.changed() => {
                let size = *sizes.borrow_and_update();
                match size {
                    // The exec had a terminal when the session began. If it no longer has one, the exec has
                    // ended, and its end event reports that.
                    Some(size) => call.exec_reader(id.clone()).resize(size).await.or_else(unless_ended),
                    None => Ok(()),
                }
            }
            Some(signal) = signals.recv() => call.exec_reader(id.clone()).signal(signal).await.map(drop),
            else => break,
        };
        if let Err(error) = done
            && replies.send(TerminalEvent::Refused { error: told(error) }).await.is_err()
        {
            break;
        }
    }
    std::future::pending().await
}

fn unless_ended(error: node::Error) -> Result<(), node::Error> {
    if error.to_api().code == ErrorCode::Conflict { Ok(()) } else { Err(error) }
}

/// Splits output into messages that every client accepts, and sends them. Returns false if the client is
/// gone.
async fn show(sink: &mut SplitSink<WebSocket, Message>, offset: u64, bytes: &[u8]) -> bool {
    let mut at = offset;
    for piece in bytes.chunks(OUTPUT_BYTES_MAX) {
        if !put(sink, Message::Binary(message(at, piece).into())).await {
            return false;
        }
        at += piece.len() as u64;
    }
    true
}

async fn say(sink: &mut SplitSink<WebSocket, Message>, event: &TerminalEvent) -> bool {
    // Serializing our own types cannot fail.
    let Ok(text) = serde_json::to_string(event) else { return false };
    put(sink, Message::text(text)).await
}

async fn put(sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(SEND_WITHIN, sink.send(message)).await, Ok(Ok(())))
}

/// Converts an error into the form that clients may see.
fn told(error: node::Error) -> Error {
    crate::rejection::Rejection::from(error).error().clone()
}

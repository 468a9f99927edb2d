//! One terminal over one WebSocket: output to whoever watches, keys and sizes from them.
//!
//! ```text
//! exec ──▶ outward ──▶ client        offsets before the bytes; events as JSON; a heartbeat and a ping every few seconds
//! exec ◀── feeder ◀─┐
//! exec ◀── asker  ◀─┴─ inward ◀── client
//! ```
//!
//! The exec lives in the guest's table, so the end of a session is the end of nothing: the client comes back with its
//! offsets. A client that does not read holds up its own session only; what the exec writes meanwhile is kept by the guest
//! within its bound, and the rest is a gap. Input waits with whoever sends it while the process does not read.

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

use crate::listen::Held;
use crate::platform::Platform;

/// The payload of one binary message: below the 1 MiB that clients take unless told otherwise.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// A client that takes no byte for so long has lost its network, or sleeps; it comes back with its offsets.
const SEND_WITHIN: Duration = Duration::from_secs(30);
/// A client answers pings; six unanswered ones, and it is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Pieces of input that wait behind the one being written: the others wait in the client's socket.
const INPUTS_WAITING: usize = 1;
/// Signals that wait to be sent.
const SIGNALS_WAITING: usize = 8;
/// Answers that wait behind output.
const REPLIES_WAITING: usize = 16;
/// How long one piece of input waits for a process that does not read, before it is tried again.
const INPUT_WITHIN: Duration = Duration::from_secs(60);
/// How long the client has to take the last message and close: a connection that is dropped with unread bytes in it is
/// reset, and takes the last message with it.
const LINGER: Duration = Duration::from_secs(1);

/// What a client may send in one message.
pub const MESSAGE_BYTES_MAX: usize = INPUT_BYTES_MAX + api::terminal::OFFSET_BYTES;

/// One client at one terminal.
pub struct Session {
    /// The platform.
    pub platform: Arc<Platform>,
    /// Keeps the sandbox in use.
    pub call: Call,
    /// The exec as it was when the client came.
    pub info: ExecInfo,
    /// The first byte of output that the client wants.
    pub from: u64,
    /// Its place among the streams of its project.
    pub place: OwnedSemaphorePermit,
    /// Its place among the connections.
    pub held: Option<Held>,
}

/// What the client asked for, on its way to the guest.
struct Asked {
    inputs: mpsc::Sender<(u64, Bytes)>,
    sizes: watch::Sender<Option<TerminalSize>>,
    signals: mpsc::Sender<i32>,
    replies: mpsc::Sender<TerminalEvent>,
}

/// Counts a session for as long as it lasts.
struct Counted(Arc<Platform>);

impl Session {
    /// Serves the client until it leaves, the exec ends, or one of them is silent for too long.
    pub async fn serve(self, socket: WebSocket) {
        let _counted = Counted::new(&self.platform);
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
            () = inward(stream, Asked { inputs, sizes, signals, replies: replies.clone() }) => {}
            () = feeder(&self.call, id, inputs_to_do, &replies) => {}
            () = asker(&self.call, id, (sizes_to_do, signals_to_do), &replies) => {}
        }
    }
}

impl Counted {
    fn new(platform: &Arc<Platform>) -> Self {
        platform.metrics.streams.inc();
        Self(Arc::clone(platform))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.streams.dec();
    }
}

/// Sends everything that goes to the client, and ends with its last message.
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
                // Only code shows any, and has no terminal.
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

/// Takes what the client sends, until it leaves.
async fn inward(mut stream: SplitStream<WebSocket>, asked: Asked) {
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

impl Asked {
    async fn input(&self, message: &Bytes) -> Result<(), Error> {
        let Some((offset, bytes)) = parts(message) else {
            return Err(Error::invalid(
                "the binary message is shorter than an offset",
                "Send the offset as eight bytes, big-endian, followed by the input.",
            ));
        };
        if !bytes.is_empty() {
            // Nobody left to take it: the session ends.
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

/// Writes input, one piece after the other, each for as long as the process takes.
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
                // What was taken of it is skipped the next time.
                Err(node::Error::Deadline { .. }) => {}
                Err(error) => break TerminalEvent::Refused { error: told(error) },
            }
        };
        if replies.send(reply).await.is_err() {
            break;
        }
    }
    // Whoever reads the client says when it is over.
    std::future::pending().await
}

/// Passes on sizes, of which the last counts, and signals, of which each does.
async fn asker(
    call: &Call,
    id: &ExecId,
    (mut sizes, mut signals): (watch::Receiver<Option<TerminalSize>>, mpsc::Receiver<i32>),
    replies: &mpsc::Sender<TerminalEvent>,
) {
    loop {
        let done = tokio::select! {
            Ok(()) = sizes.changed() => {
                let size = *sizes.borrow_and_update();
                match size {
                    // It had a terminal when it was opened; that it has none any more is told by its end.
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

/// Sends output, in messages that every client takes. Says whether the client is still there.
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
    // A type of ours: it can be written.
    let Ok(text) = serde_json::to_string(event) else { return false };
    put(sink, Message::text(text)).await
}

async fn put(sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(SEND_WITHIN, sink.send(message)).await, Ok(Ok(())))
}

/// An error as a client may see it.
fn told(error: node::Error) -> Error {
    crate::fault::Fault::from(error).error().clone()
}

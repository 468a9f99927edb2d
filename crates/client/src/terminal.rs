//! A terminal in a sandbox: keyboard input and screen output, over as many connections as necessary.
//!
//! ```text
//!            ┌─────── disconnected, silent, not ready ────────┐
//!            ▼                                                │
//! connect ──▶ opened: input continues ──▶ output, gaps, acknowledgements ──▶ end
//! ```
//!
//! The exec runs in the sandbox, independently of any connection. A new connection requests output from the
//! offset that the client has reached. Input is retained until the server acknowledges it; a new connection
//! sends it again from the acknowledged offset. Each keystroke therefore arrives once, even if the server was
//! killed. Only one client may type at a time. The acknowledged offsets reveal input from a different client,
//! which is reported as an error instead of being mixed with this client's input.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use api::exec::{ExecEnd, ExecSpec};
use api::terminal::{INPUT_BYTES_MAX, TerminalEvent, TerminalRequest, TerminalSize, message, parts};
use api::{ErrorCode, ExecId, Layer, Ran, Retry, SandboxId};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Sink, Stream};
use reqwest::Upgraded;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::client::Client;
use crate::error::Error;
use crate::execs::last_words;
use crate::link::{ApiRequest, FailedAttempt};
use crate::patience::Attempts;

/// Maximum amount of unacknowledged input. This is more than a person pastes at once.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Maximum amount of input in flight. Input that the process does not read stays in the client, so that it
/// does not delay size changes and signals.
const WINDOW_BYTES: u64 = INPUT_BYTES_MAX as u64;
/// Maximum size of an incoming message: four times the size of the largest message that servers send.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of queued requests. Further signals are dropped.
const SIGNALS_MAX: usize = 16;

type TerminalSocket = WebSocketStream<Upgraded>;

/// A terminal. Sends and receives data only while the caller awaits [`Terminal::next`].
pub struct Terminal {
    client: Client,
    sandbox: SandboxId,
    id: ExecId,
    /// Offset up to which the caller has received the output.
    position: u64,
    /// Input that has not been acknowledged yet. It begins at the offset `received`.
    pending: BytesMut,
    received: Option<u64>,
    /// Offset up to which input was sent over the current connection.
    sent: u64,
    size: Option<TerminalSize>,
    requests: VecDeque<TerminalRequest>,
    socket: Option<Box<TerminalSocket>>,
    /// Connection attempt in progress. It runs as a task, so that it continues if the caller drops the future
    /// of `next` to handle something else.
    connecting: Option<JoinHandle<Result<TerminalSocket, FailedAttempt>>>,
    /// Time of the next connection attempt, if the client must wait before it.
    pause_until: Option<Instant>,
    /// Time at which the server last sent something.
    heard: Instant,
    opened: bool,
    attempts: Attempts,
    ended: bool,
}

/// A terminal event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalUpdate {
    /// The terminal is connected, either for the first time or again.
    Connected,
    /// The connection was lost and is being reestablished.
    Reconnecting,
    /// Bytes for the screen.
    Output {
        /// Offset of the first byte.
        offset: u64,
        /// Bytes to write to the screen.
        bytes: Bytes,
    },
    /// A range of output that the server no longer retains.
    Gap {
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the first byte after the gap.
        to: u64,
    },
    /// The server refused a size or a signal. The terminal remains usable.
    Refused(api::Error),
    /// The exec has ended. No event follows.
    End(ExecEnd),
}

impl Client {
    /// Starts a command on a terminal. The spec must request a `terminal`. A retry does not start the command
    /// twice.
    ///
    /// # Errors
    /// Fails like [`Client::start`]. Also fails with `capacity` if the sandbox has too many terminals.
    pub async fn terminal(&self, sandbox: &SandboxId, spec: &ExecSpec) -> Result<Terminal, Error> {
        let info = self.start(sandbox, spec).await?;
        Ok(self.terminal_of(sandbox, &info.id))
    }

    /// Returns the terminal of an exec that was started earlier. Reads from the first retained byte. Does not
    /// connect yet.
    pub fn terminal_of(&self, sandbox: &SandboxId, exec: &ExecId) -> Terminal {
        Terminal {
            client: self.clone(),
            sandbox: sandbox.clone(),
            id: exec.clone(),
            position: 0,
            pending: BytesMut::new(),
            received: None,
            sent: 0,
            size: None,
            requests: VecDeque::new(),
            socket: None,
            connecting: None,
            pause_until: None,
            heard: Instant::now(),
            opened: false,
            attempts: self.link.attempts(),
            ended: false,
        }
    }
}

impl Terminal {
    /// Returns the exec's ID.
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// Returns the current offset in the output.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Starts reading at this offset instead of at the first byte. Must be called before anything is read.
    pub fn seek(&mut self, position: u64) {
        self.position = position;
        (self.socket, self.connecting, self.opened) = (None, None, false);
    }

    /// Returns the number of bytes that [`Terminal::write`] currently accepts.
    pub fn room(&self) -> usize {
        PENDING_BYTES_MAX - self.pending.len()
    }

    /// Returns true if the server has acknowledged all input.
    pub fn is_received(&self) -> bool {
        self.pending.is_empty()
    }

    /// Queues input for the terminal.
    ///
    /// # Errors
    /// Returns an error if the queue is full, because the process does not read its input.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > self.room() {
            return Err(Error::Refused(api::Error {
                code: ErrorCode::TooLarge,
                message: format!(
                    "{} bytes of input are already queued, because the program does not read its input",
                    self.pending.len()
                ),
                layer: Layer::UserCode,
                ran: Ran::Yes,
                retry: Retry::Safe,
                fix: "Wait until the program reads its input, or interrupt the program with a signal.".into(),
            }));
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    /// Changes the size of the terminal. The latest size is also sent on every new connection.
    pub fn resize(&mut self, size: TerminalSize) {
        self.size = Some(size);
        self.requests.retain(|request| !matches!(request, TerminalRequest::Resize(_)));
        self.requests.push_back(TerminalRequest::Resize(size));
    }

    /// Sends a signal to all processes of the exec, at most once. The signal is lost if the connection breaks
    /// or too many requests are queued.
    pub fn signal(&mut self, signal: i32) {
        if self.requests.len() < SIGNALS_MAX {
            self.requests.push_back(TerminalRequest::Signal(signal));
        }
    }

    /// Returns the next event, or `None` after the end. Cancel-safe.
    ///
    /// # Errors
    /// Fails like [`crate::Exec::next`]. Also fails with `conflict` if another client typed or if the exec
    /// has no terminal.
    pub async fn next(&mut self) -> Result<Option<TerminalUpdate>, Error> {
        while !self.ended {
            let failure = match self.step().await {
                Ok(Some(message)) => {
                    self.attempts.progress();
                    match self.accept(&message) {
                        Ok(Some(seen)) => return Ok(Some(seen)),
                        Ok(None) => continue,
                        Err(failure) => failure,
                    }
                }
                Ok(None) => continue,
                Err(failure) => failure,
            };
            let was_open = std::mem::take(&mut self.opened);
            self.socket = None;
            self.pause_until = Some(Instant::now() + failure.pause(&mut self.attempts)?);
            if was_open {
                return Ok(Some(TerminalUpdate::Reconnecting));
            }
        }
        Ok(None)
    }

    /// Connects if necessary and returns `None`, or waits for the next message and returns it. Cancel-safe:
    /// the next call continues any wait.
    async fn step(&mut self) -> Result<Option<Message>, FailedAttempt> {
        if let Some(at) = self.pause_until {
            tokio::time::sleep_until(at).await;
            self.pause_until = None;
        }
        let silence_max = self.client.link.options.silence_max;
        if self.socket.is_none() {
            let path =
                format!("/v1/sandboxes/{}/execs/{}/terminal?from={}", self.sandbox, self.id, self.position);
            let ask = ApiRequest::get(path).within(silence_max);
            let client = self.client.clone();
            let connecting = self.connecting.get_or_insert_with(|| tokio::spawn(connect(client, ask)));
            let made = connecting.await;
            self.connecting = None;
            let made = made.unwrap_or_else(|error| Err(self.client.link.cut(error.to_string())));
            self.socket = Some(Box::new(made?));
            self.heard = Instant::now();
            return Ok(None);
        }
        let silent = self.heard + silence_max;
        match tokio::time::timeout_at(silent, poll_fn(|context| self.turn(context))).await {
            Ok(Ok(message)) => {
                self.heard = Instant::now();
                Ok(Some(message))
            }
            Ok(Err(why)) => Err(self.client.link.cut(why)),
            Err(_) => Err(self.client.link.cut(format!("received no data for {silence_max:?}"))),
        }
    }

    /// Sends queued messages and receives the next message.
    fn turn(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, String>> {
        let Some(mut socket) = self.socket.take() else {
            return Poll::Ready(Err("the connection is closed".into()));
        };
        let heard = self.exchange(Pin::new(&mut *socket), context);
        self.socket = Some(socket);
        heard.map_err(|error| error.to_string())
    }

    fn exchange(
        &mut self,
        mut socket: Pin<&mut TerminalSocket>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Message, tungstenite::Error>> {
        while self.opened && socket.as_mut().poll_ready(context)?.is_ready() {
            let Some(next) = self.outgoing() else { break };
            socket.as_mut().start_send(next)?;
        }
        // The flush may remain incomplete; the next poll continues it.
        let _ = socket.as_mut().poll_flush(context)?;
        match socket.poll_next(context) {
            Poll::Ready(Some(message)) => Poll::Ready(message),
            Poll::Ready(None) => Poll::Ready(Err(tungstenite::Error::ConnectionClosed)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the next message for the server, if any.
    fn outgoing(&mut self) -> Option<Message> {
        if let Some(request) = self.requests.pop_front() {
            return serde_json::to_string(&request).ok().map(Message::text);
        }
        let received = self.received?;
        let (skip, on_its_way) = (usize::try_from(self.sent - received).ok()?, self.sent - received);
        let room = usize::try_from(WINDOW_BYTES.saturating_sub(on_its_way)).ok()?;
        let rest = self.pending.get(skip..)?;
        let piece = rest.get(..room.min(INPUT_BYTES_MAX)).unwrap_or(rest);
        if piece.is_empty() {
            return None;
        }
        let next = message(self.sent, piece);
        self.sent += piece.len() as u64;
        Some(Message::binary(next))
    }

    /// Checks a message against the previous messages and updates the state.
    fn accept(&mut self, message: &Message) -> Result<Option<TerminalUpdate>, FailedAttempt> {
        match message {
            Message::Binary(whole) => {
                let Some((offset, bytes)) = parts(whole) else {
                    return Err(
                        self.lie("received a binary message that is shorter than its offset field".into())
                    );
                };
                if !self.opened || offset != self.position {
                    return Err(self.lie(format!(
                        "received data with offset {offset}, but expected offset {}",
                        self.position
                    )));
                }
                self.position += bytes.len() as u64;
                Ok(Some(TerminalUpdate::Output { offset, bytes: whole.slice_ref(bytes) }))
            }
            Message::Text(text) => {
                let event = serde_json::from_str(text.as_str())
                    .map_err(|error| self.lie(format!("malformed text message: {error}")))?;
                self.hear(event)
            }
            Message::Close(_) => Err(self.client.link.cut("the server closed the connection".into())),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(None),
        }
    }

    fn hear(&mut self, event: TerminalEvent) -> Result<Option<TerminalUpdate>, FailedAttempt> {
        match event {
            TerminalEvent::Opened { received, .. } => {
                self.take_receipt(received, self.pending.len() as u64)?;
                (self.sent, self.opened) = (received, true);
                if let Some(size) = self.size {
                    self.resize(size);
                }
                Ok(Some(TerminalUpdate::Connected))
            }
            TerminalEvent::Received { received } => {
                let sent = self.sent.saturating_sub(self.received.unwrap_or(self.sent));
                self.take_receipt(received, sent)?;
                Ok(None)
            }
            TerminalEvent::Gap { from, to } => {
                if from != self.position || to <= from {
                    return Err(self.lie(format!(
                        "received a gap from {from} to {to}, but expected offset {}",
                        self.position
                    )));
                }
                self.position = to;
                Ok(Some(TerminalUpdate::Gap { from, to }))
            }
            TerminalEvent::Heartbeat => Ok(None),
            TerminalEvent::Refused { error } => Ok(Some(TerminalUpdate::Refused(error))),
            TerminalEvent::End { end } => {
                if end.stdout_bytes != self.position {
                    let said = end.stdout_bytes;
                    return Err(self.lie(format!(
                        "the end event reports {said} bytes, but {} bytes were received",
                        self.position
                    )));
                }
                (self.ended, self.socket) = (true, None);
                Ok(Some(TerminalUpdate::End(end)))
            }
            TerminalEvent::Error { error } => Err(last_words(error)),
        }
    }

    /// Records that the server received input up to this offset. This client can have sent at most `ours`
    /// bytes of the newly received input. If there are more, another client has typed, and this function
    /// returns an error.
    fn take_receipt(&mut self, received: u64, ours: u64) -> Result<(), FailedAttempt> {
        let before = *self.received.get_or_insert(received);
        let Some(new) = received.checked_sub(before) else {
            return Err(
                self.lie(format!("the number of received input bytes decreased from {before} to {received}"))
            );
        };
        if new > ours {
            return Err(FailedAttempt {
                error: Error::Refused(others(&self.id)),
                trouble: None,
                pause: None,
            });
        }
        self.pending.advance(usize::try_from(new).unwrap_or(usize::MAX).min(self.pending.len()));
        self.received = Some(received);
        Ok(())
    }

    fn lie(&self, what: String) -> FailedAttempt {
        FailedAttempt { error: self.client.link.protocol(what), trouble: None, pause: None }
    }
}

async fn connect(client: Client, ask: ApiRequest) -> Result<TerminalSocket, FailedAttempt> {
    let upgraded = client.link.socket(&ask).await?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .write_buffer_size(0);
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

fn others(id: &ExecId) -> api::Error {
    api::Error {
        code: ErrorCode::Conflict,
        message: format!("another client is typing in the terminal of exec {id}"),
        layer: Layer::UserCode,
        ran: Ran::Yes,
        retry: Retry::Useless,
        fix: "Let only one client type at a time. Other clients can read the output of the exec.".into(),
    }
}

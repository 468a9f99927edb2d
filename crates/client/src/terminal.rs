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

mod input;
mod socket;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use api::exec::{ExecEnd, ExecSpec};
use api::terminal::{TerminalEvent, TerminalRequest, TerminalSize, parts};
use api::{ErrorCode, ExecId, Layer, Ran, Retry, SandboxId};
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::client::Client;
use crate::error::Error;
use crate::execs::last_words;
use crate::link::{ApiRequest, FailedAttempt};
use crate::patience::Attempts;
use input::{RetainedInput, WrongReceipt};
use socket::{TerminalSocket, connect, exchange};

/// Maximum number of queued requests. Further signals are dropped.
const SIGNALS_MAX: usize = 16;

/// A terminal. Sends and receives data only while the caller awaits [`Terminal::next`].
pub struct Terminal {
    client: Client,
    sandbox: SandboxId,
    id: ExecId,
    /// Offset up to which the caller has received the output.
    position: u64,
    input: RetainedInput,
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
            input: RetainedInput::default(),
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
        self.input.room()
    }

    /// Returns true if the server has acknowledged all input.
    pub fn is_received(&self) -> bool {
        self.input.is_empty()
    }

    /// Queues input for the terminal.
    ///
    /// # Errors
    /// Returns an error if the queue is full, because the process does not read its input.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.input.write(bytes)
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
        let opened = self.opened;
        let heard = exchange(Pin::new(&mut *socket), context, opened, || self.outgoing());
        self.socket = Some(socket);
        heard.map_err(|error| error.to_string())
    }

    /// Returns the next message for the server, if any.
    fn outgoing(&mut self) -> Option<Message> {
        if let Some(request) = self.requests.pop_front() {
            return serde_json::to_string(&request).ok().map(Message::text);
        }
        self.input.next_message().map(Message::binary)
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
                self.input.reopen(received).map_err(|receipt| self.wrong_receipt(receipt, received))?;
                self.opened = true;
                if let Some(size) = self.size {
                    self.resize(size);
                }
                Ok(Some(TerminalUpdate::Connected))
            }
            TerminalEvent::Received { received } => {
                self.input.acknowledge(received).map_err(|receipt| self.wrong_receipt(receipt, received))?;
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

    fn wrong_receipt(&self, receipt: WrongReceipt, received: u64) -> FailedAttempt {
        match receipt {
            WrongReceipt::Decreased { before } => {
                self.lie(format!("the number of received input bytes decreased from {before} to {received}"))
            }
            WrongReceipt::Foreign => {
                FailedAttempt { error: Error::Refused(others(&self.id)), trouble: None, pause: None }
            }
        }
    }

    fn lie(&self, what: String) -> FailedAttempt {
        FailedAttempt { error: self.client.link.protocol(what), trouble: None, pause: None }
    }
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

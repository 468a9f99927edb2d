//! Sends input to processes, as single chunks or as streams of chunks.
//!
//! An input stream counts toward its project's maximum number of open streams. A message longer than
//! [`UNCOUNTED_BYTES_MAX`] counts against the project's memory budget for bodies, from the arrival of the
//! message's first bytes until the process has read the message.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use control::account::Share;
use server::body::BODY_WITHIN;

use super::connect::{Called, Code, ConnectMessage, Envelopes, Failed, last, message, streamed};
use super::process::Selected;
use super::running::{ProcessMatch, Selector, exec_id, missing};
use super::who::Inside;

/// Time within which the process must read a chunk of input. After this time, the sender of the chunk gets an
/// error.
const INPUT_WITHIN: Duration = Duration::from_secs(60);
/// Time within which the next message of a stream must arrive. Clients send keepalive messages more often
/// than this.
const STREAM_WITHIN: Duration = Duration::from_secs(120);
/// Maximum length of a message that does not count against the budget. The 512 streams of a project hold at
/// most 8 MiB of such messages.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// Input for a process, in base64.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// One message of an input stream.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Streamed {
    start: Option<Value>,
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    input: Input,
}

/// Messages of an input stream.
struct Messages {
    body: Body,
    envelopes: Envelopes,
    share: Arc<Share>,
    /// Memory reservation for the message that is being received or used.
    room: Option<OwnedSemaphorePermit>,
}

/// Sends a chunk of input.
pub async fn send_input(
    inside: Inside,
    ConnectMessage(ask): ConnectMessage<Selected>,
) -> Called<Json<Value>> {
    feed(&inside, &ask.process, ask.input.unwrap_or_default(), false).await?;
    Ok(Json(json!({})))
}

/// Closes the standard input of a process.
pub async fn close_stdin(
    inside: Inside,
    ConnectMessage(ask): ConnectMessage<Selected>,
) -> Called<Json<Value>> {
    feed(&inside, &ask.process, Input::default(), true).await?;
    Ok(Json(json!({})))
}

/// Forwards an input stream to a process, message by message as they arrive.
pub async fn stream_input(inside: Inside, request: Request) -> Called<Response> {
    let share = Arc::clone(&inside.caller.share);
    let _place = share.stream()?;
    let mut messages =
        Messages { body: request.into_body(), envelopes: Envelopes::default(), share, room: None };
    let mut which = None;
    while let Some(text) = messages.next().await? {
        let wrong = |error| Failed::of(Code::InvalidArgument, format!("invalid message: {error}"));
        let part: Streamed = serde_json::from_slice(&text).map_err(wrong)?;
        drop(text);
        if let Some(start) = part.start {
            let selector = start.get("process").cloned().unwrap_or_default();
            which = Some(serde_json::from_value::<Selector>(selector).map_err(wrong)?);
        }
        if let Some(data) = part.data {
            let first = || Failed::of(Code::InvalidArgument, "the first message must name the process");
            feed(&inside, which.as_ref().ok_or_else(first)?, data.input, false).await?;
        }
    }
    let answer: Bytes = [message(&json!({})), last(None)].concat().into();
    Ok(streamed(Body::from(answer)))
}

impl Messages {
    /// Returns the next message. The caller must drop the previous message first, because this call ends the
    /// memory reservation for that message.
    async fn next(&mut self) -> Called<Option<Bytes>> {
        self.room = None;
        let mut began: Option<Instant> = None;
        loop {
            if let Some(message) = self.envelopes.next()? {
                return Ok(Some(message));
            }
            let unfinished = self.envelopes.unfinished();
            let counts = unfinished.is_some_and(|bytes| bytes > UNCOUNTED_BYTES_MAX);
            if counts && self.room.is_none() && !api::defence::is_off("H-35") {
                self.room = unfinished.map(|bytes| self.share.room(bytes)).transpose()?;
            }
            if unfinished.is_some() {
                began = began.or_else(|| Some(Instant::now()));
            }
            let within = began.map_or(STREAM_WITHIN, |began| BODY_WITHIN.saturating_sub(began.elapsed()));
            match timeout(within, self.body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => self.envelopes.take(&frame.into_data().unwrap_or_default()),
                Ok(Some(Err(_))) => {
                    return Err(Failed::of(Code::InvalidArgument, "the request body ended early"));
                }
                Err(_) => {
                    let told = format!("the next message did not arrive within {within:?}");
                    return Err(Failed::of(Code::DeadlineExceeded, told));
                }
            }
        }
    }
}

/// Sends input to a process, after all input that earlier requests sent.
async fn feed(inside: &Inside, which: &Selector, input: Input, closes: bool) -> Called<()> {
    let (pid, found) = inside.clients.processes.find(&inside.sandbox, &inside.call, which).await?;
    let ProcessMatch::Running(process) = found else { return Err(missing(which)) };
    let text = input.stdin.or(input.pty).unwrap_or_default();
    let bytes = STANDARD.decode(&text);
    // Drop the encoded text, so that only one copy of the input is in memory until the process has read the
    // input.
    drop(text);
    let bytes = bytes.map_err(|_| Failed::of(Code::InvalidArgument, "the input is not valid base64"))?;
    if closes && process.terminal {
        let told = "stdin of a terminal cannot be closed; send the control-D character instead";
        return Err(Failed::of(Code::FailedPrecondition, told));
    }
    let mut sent = process.sent.lock().await;
    let id = exec_id(pid)?;
    // If an earlier chunk was not written completely, or its sender disconnected, only the guest knows the
    // current offset.
    let at = match sent.take() {
        Some(at) => at,
        None => {
            inside
                .call
                .execs()
                .await?
                .iter()
                .find(|info| info.id == id)
                .ok_or_else(|| missing(which))?
                .stdin_bytes
        }
    };
    let length = bytes.len() as u64;
    inside.call.exec_reader(id).write_stdin(at, bytes.into(), closes, INPUT_WITHIN).await?;
    *sent = Some(at + length);
    Ok(())
}

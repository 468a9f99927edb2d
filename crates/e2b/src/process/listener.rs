//! Responses that stream the output of a process.

use std::time::Duration;

use api::exec::{ExecEnd, Outcome, Stream};
use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use crate::connect::{Called, Code, Failed, last, message, streamed};
use crate::running::ProcessEvent;
use crate::who::Inside;

/// A client that receives the output of a process.
pub(super) struct ProcessListener {
    pub _inside: Inside,
    pub _place: OwnedSemaphorePermit,
    pub told: mpsc::Receiver<ProcessEvent>,
    pub terminal: bool,
    pub every: Duration,
    /// Message to send before all others.
    pub first: Option<Bytes>,
}

/// Creates the response that streams the events of a process.
pub(super) fn events(listener: ProcessListener) -> Response {
    let body = stream::unfold(Some(listener), |listener| async move {
        let mut listener = listener?;
        let (bytes, goes_on) = listener.next().await;
        Some((Ok::<_, std::convert::Infallible>(bytes), goes_on.then_some(listener)))
    });
    streamed(Body::from_stream(body))
}

/// Returns the first message of a response, which contains the process number.
pub(super) fn started(pid: u32) -> Option<Bytes> {
    Some(message(&json!({ "event": { "start": { "pid": pid } } })))
}

impl ProcessListener {
    /// Returns the next message, and whether more messages follow.
    async fn next(&mut self) -> (Bytes, bool) {
        if let Some(first) = self.first.take() {
            return (first, true);
        }
        let told = match timeout(self.every, self.told.recv()).await {
            Err(_) => return (message(&json!({ "event": { "keepalive": {} } })), true),
            Ok(told) => told,
        };
        match told {
            Some(ProcessEvent::Data { stream, bytes }) => {
                let name = match stream {
                    _ if self.terminal => "pty",
                    Stream::Stderr => "stderr",
                    Stream::Stdout | Stream::Results => "stdout",
                };
                (message(&json!({ "event": { "data": { name: STANDARD.encode(&bytes) } } })), true)
            }
            Some(ProcessEvent::End(end)) => match ended(&end) {
                Ok(event) => {
                    let event = message(&json!({ "event": { "end": event } }));
                    ([event, last(None)].concat().into(), false)
                }
                Err(failed) => (last(Some(&failed)), false),
            },
            Some(ProcessEvent::Broken(error)) => (last(Some(&error.into())), false),
            None => {
                let failed = Failed::of(
                    Code::ResourceExhausted,
                    "the client did not read this stream for too long; connect again",
                );
                (last(Some(&failed)), false)
            }
        }
    }
}

/// Converts an outcome into the event that E2B's clients expect.
fn ended(end: &ExecEnd) -> Called<Value> {
    let by_signal = |name: &str, why: String| json!({ "exitCode": -1, "exited": false, "status": format!("signal: {name}"), "error": why });
    Ok(match &end.outcome {
        Outcome::Exited { code: 0 } => json!({ "exitCode": 0, "exited": true, "status": "exit status 0" }),
        Outcome::Exited { code } => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
        Outcome::Signaled { signal } => {
            let name = name_of(*signal);
            by_signal(&name, format!("signal: {name}"))
        }
        Outcome::Cancelled => by_signal("killed", "the command was cancelled".into()),
        Outcome::Oom => {
            let limit =
                end.memory.map(|memory| format!(" of {} bytes", memory.limit_bytes)).unwrap_or_default();
            by_signal("killed", format!("the memory limit{limit} was exceeded"))
        }
        Outcome::OutputLimit => by_signal("killed", "the command exceeded its output limit".into()),
        Outcome::Timeout => {
            return Err(Failed::of(
                Code::DeadlineExceeded,
                "the command exceeded its timeout and was stopped",
            ));
        }
        Outcome::SandboxLost { .. } => return Err(Failed::Gone),
        Outcome::Unknown => return Err(Failed::of(Code::Internal, "the outcome of the command is unknown")),
    })
}

fn name_of(signal: i32) -> String {
    match signal {
        1 => "hangup".into(),
        2 => "interrupt".into(),
        3 => "quit".into(),
        6 => "aborted".into(),
        9 => "killed".into(),
        11 => "segmentation fault".into(),
        13 => "broken pipe".into(),
        15 => "terminated".into(),
        other => format!("signal {other}"),
    }
}

//! Tests of the client against misbehaving servers.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | a server whose responses a test specifies exactly |
//! | [`requests`] | which requests are retried, which are not, and for how long |
//! | [`files`] | files over connections that break, and responses that differ from the data sent |
//! | [`reading`] | output over connections that break, carry false data or fall silent |
//! | [`trust`] | servers with trusted and untrusted certificates |

#![cfg(test)]

mod files;
mod reading;
mod requests;
mod server;
mod trust;

use std::time::Duration;

use api::exec::{ExecEnd, ExecInfo, ExecSpec, Outcome};
use api::{Error, ErrorCode, Layer, Ran, Retry};
use client::{Client, Options, Patience};
use server::Server;

/// Returns a client with timeouts that are short enough for a test.
fn client(server: &Server) -> Client {
    client_of(&server.url())
}

fn client_of(url: &str) -> Client {
    let patience = Patience { connection: Duration::from_secs(3), busy: Duration::from_secs(1) };
    let options = Options {
        patience,
        answer_within: Duration::from_secs(5),
        silence_max: Duration::from_secs(1),
        ..Options::default()
    };
    Client::with(url, "secret", options).unwrap()
}

fn spec() -> ExecSpec {
    ExecSpec { argv: vec!["true".into()], ..ExecSpec::default() }
}

fn info() -> ExecInfo {
    serde_json::from_value(serde_json::json!({
        "id": "e1", "argv": "true", "outcome": null, "processes": 1, "stdout_bytes": 0, "stderr_bytes": 0, "duration_ms": 0,
    }))
    .unwrap()
}

fn end(stdout_bytes: u64, stderr_bytes: u64) -> ExecEnd {
    ExecEnd {
        outcome: Outcome::Exited { code: 0 },
        stdout_bytes,
        stdout_dropped: 0,
        stderr_bytes,
        stderr_dropped: 0,
        results_bytes: 0,
        state_lost: false,
        duration_us: 5,
        left_running: 0,
        memory: None,
    }
}

fn error(code: ErrorCode, retry: Retry) -> Error {
    Error { code, message: "no".into(), layer: Layer::Platform, ran: Ran::No, retry, fix: "Wait.".into() }
}

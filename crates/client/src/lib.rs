//! Typed client for Bellglass's public API.
//!
//! ```no_run
//! # async fn example() -> Result<(), client::Error> {
//! let client = client::Client::new("http://127.0.0.1:7070", "secret")?;
//! let sandbox = client.create(&api::sandbox::CreateSandbox::default()).await?;
//! let spec = api::exec::ExecSpec { argv: vec!["id".into()], ..Default::default() };
//! let done = client.exec(&sandbox.id, &spec).await?.collect().await?;
//! client.stop(&sandbox.id).await?;
//! # let _ = done; Ok(()) }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`Client`] | sandboxes: create, find, list, renew, stop |
//! | `execs` | execs: start, list, signal, cancel |
//! | `contexts` | live interpreters: create, list, restart, interrupt, remove, list variables |
//! | `artifacts` | artifacts of execs, and datasets for sandboxes |
//! | `sessions` | agent sessions: create, call tools, retrieve files, end |
//! | `secrets` | secrets: set, list, remove |
//! | `admin` | projects, keys, the node and the server's health |
//! | [`Exec`] | a reader of one exec's output: every byte once, then the end event |
//! | [`Stdin`] | a writer to one exec's standard input |
//! | [`Terminal`] | a terminal that reconnects as often as necessary: keyboard input and screen output |
//! | [`Events`] | live events of the project's sandboxes or of a session |
//! | [`Tunnel`] | a connection to a port inside a sandbox |
//! | [`Files`] | the files of a sandbox: inspect, read, write, transfer, watch |
//! | `link` | requests, retried over new connections when that is safe |
//! | `lines` | lines of JSON from a response body, with a size limit |
//! | `patience` | retry policy |
//! | `tls` | certificates that the client trusts |
//! | [`Error`] | errors, with the information that callers need to handle them |
//!
//! Invariants: A request is repeated only if repeating it has no additional effect. Every wait is limited,
//! and so is the size of every line and body. The output of an exec counts as complete only after its end
//! event; without this event, reading it ends with an error.

#![forbid(unsafe_code)]

mod admin;
mod artifacts;
mod client;
mod contexts;
mod error;
mod events;
mod exec;
mod execs;
mod files;
mod lines;
mod link;
mod patience;
mod ports;
mod secrets;
mod sessions;
mod stdin;
mod terminal;
mod tls;

pub use api::output::{Collected, Event};
pub use client::{Client, Options};
pub use error::Error;
pub use events::{Events, Telling};
pub use exec::Exec;
pub use files::{Archive, FilePage, FileReader, FileWatch, Files, ProgressCallback};
pub use patience::{BUSY_WITHIN, CONNECTION_WITHIN, Patience};
pub use ports::Tunnel;
pub use sessions::{Called, Calling};
pub use stdin::Stdin;
pub use terminal::{Terminal, TerminalUpdate};

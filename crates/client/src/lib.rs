//! The typed client of Bellglass's public API.
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
//! | `contexts` | live interpreters: create, list, restart, interrupt, remove, variables |
//! | `artifacts` | artifacts of execs, and datasets for sandboxes |
//! | `sessions` | sessions of agents: create, call tools, retrieve files, end |
//! | `secrets` | secrets: set, list, remove |
//! | `admin` | projects, keys, the node, the server's health |
//! | [`Exec`] | a reader of one exec: every byte once, then its end |
//! | [`Stdin`] | a writer to one exec |
//! | [`Terminal`] | a terminal: keys in, screen out, over as many connections as necessary |
//! | [`Events`] | live events of the project's sandboxes or of a session |
//! | [`Tunnel`] | a connection to a port inside a sandbox |
//! | [`Files`] | the files of a sandbox: inspect, read, write, transfer, watch |
//! | `link` | one request over as many connections as necessary |
//! | `lines` | lines of JSON from a body, with a size limit |
//! | `patience` | retry policy |
//! | `tls` | trusted certificates |
//! | [`Error`] | errors, with the information that a caller needs to handle them |
//!
//! Invariants: a request is repeated only if the repetition has no additional effect; every wait, line and
//! body is bounded; the output of an exec is incomplete, and reading it ends in an error, until the end event
//! was received.

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

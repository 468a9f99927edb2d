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
//! | `contexts` | interpreters that stay: create, list, restart, interrupt, remove, variables |
//! | `artifacts` | what was kept of execs, and datasets for sandboxes |
//! | `sessions` | sessions of agents: make, call tools, what is kept, end |
//! | `secrets` | secrets: set, list, remove |
//! | `admin` | projects, keys, the node, the server's health |
//! | [`Exec`] | a reader of one exec: every byte once, then its end |
//! | [`Stdin`] | a writer to one exec |
//! | [`Terminal`] | a terminal: keys in, screen out, over as many connections as it takes |
//! | [`Events`] | what happens to the project's sandboxes, or in a session |
//! | [`Tunnel`] | a connection to a port inside a sandbox |
//! | [`Files`] | the files of a sandbox: looked at, read, written, transferred whole, watched |
//! | `link` | one request over as many connections as it takes |
//! | `lines` | lines of JSON out of a body, bounded |
//! | `patience` | how long and how often to ask again |
//! | `tls` | whom to trust |
//! | [`Error`] | what can go wrong, for whoever acts on it |
//!
//! Invariants: a request is sent again only where that changes nothing more; every wait, line and body is bounded; the
//! output of an exec is an error until its end was said.

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

pub use client::{Client, Options};
pub use error::Error;
pub use events::{Events, Telling};
pub use exec::{Collected, Event, Exec};
pub use files::{Archive, Files, Listed, Progress, Reader, Watch};
pub use patience::{BUSY_WITHIN, CONNECTION_WITHIN, Patience};
pub use ports::Tunnel;
pub use sessions::{Called, Calling};
pub use stdin::Stdin;
pub use terminal::{Seen, Terminal};

//! What is said on every wire of Bellglass: ids, bodies, frames, error codes and limits.
//!
//! | module | holds |
//! |---|---|
//! | [`id`] | the names of sandboxes, execs, contexts and sessions, checked once, when they are made |
//! | [`sandbox`] | what a sandbox is asked to be, how it is doing, and why it ended |
//! | [`exec`] | what an exec is asked to do, how it is doing, and how it ended |
//! | [`code`] | running code: what is asked for, what it shows, interpreters that stay |
//! | [`terminal`] | an exec on a pseudo-terminal, and what is said about it over a WebSocket |
//! | [`output`] | an exec's output as lines of JSON, for the public API |
//! | [`policy`] | what may leave a sandbox |
//! | [`secret`] | values that code in a sandbox can use and never sees |
//! | [`host`] | the name of a host, in its one form |
//! | [`ports`] | ports inside a sandbox, reached from outside |
//! | [`account`] | projects and keys |
//! | [`server`] | what the server says of itself: pages, health, versions |
//! | [`artifact`] | files of a run that are kept after its sandbox is gone |
//! | [`dataset`] | files that are put into a sandbox before anything runs in it |
//! | [`session`] | an agent's conversation with one sandbox: tool calls, their runs, what is kept of them |
//! | [`files`] | what can be asked of the files of a sandbox, and what is answered |
//! | [`frame`] | the frames in which an exec's output travels |
//! | [`layer`] | what is said about unpacking one layer of an image |
//! | [`hello`] | the fixed greeting that opens every connection between guest and node |
//! | [`limits`] | what a sandbox may use: defaults and hard maxima |
//! | [`posture`] | what can be seen of a process's privileges |
//! | [`trace`] | where the time of a request went, and how a step is told |
//! | [`walls`] | what the guest is told to put around itself, where nobody else does |
//! | [`defence`] | switches for the controls of attacks, in test builds only |
//! | [`error`] | the one shape of every error |
//!
//! Invariants: nothing here does I/O or knows a clock; every decoder takes hostile bytes and has a bound.

#![forbid(unsafe_code)]

pub mod account;
pub mod artifact;
pub mod code;
pub mod dataset;
pub mod defence;
pub mod error;
pub mod exec;
pub mod files;
pub mod frame;
pub mod hello;
pub mod host;
pub mod id;
pub mod layer;
pub mod limits;
pub mod output;
pub mod policy;
pub mod ports;
pub mod posture;
pub mod sandbox;
pub mod secret;
pub mod server;
pub mod session;
pub mod terminal;
pub mod trace;
pub mod walls;

pub use error::{Error, ErrorCode, Layer, Ran, Retry};
pub use id::{ContextId, ExecId, SandboxId, SessionId};

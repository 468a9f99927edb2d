//! Types of all Bellglass wire protocols: IDs, bodies, frames, error codes and limits.
//!
//! | module | holds |
//! |---|---|
//! | [`id`] | IDs of sandboxes, execs, contexts and sessions, validated on construction |
//! | [`sandbox`] | sandboxes: create requests, states, reasons for their end |
//! | [`exec`] | execs: requests, states, outcomes |
//! | [`code`] | running code: requests, results, contexts |
//! | [`terminal`] | execs on a pseudo-terminal, and their WebSocket messages |
//! | [`output`] | an exec's output as lines of JSON, for the public API |
//! | [`policy`] | egress policies |
//! | [`secret`] | secrets: values that code in a sandbox can use but cannot read |
//! | [`host`] | host names in canonical form |
//! | [`ports`] | ports inside a sandbox, reached from outside |
//! | [`account`] | projects and keys |
//! | [`server`] | status of the server: pages, health, versions |
//! | [`artifact`] | files that a run created or changed, kept after its sandbox is gone |
//! | [`dataset`] | files that are copied into a sandbox before anything runs in it |
//! | [`session`] | sessions of agents: tool calls, their runs, and the data kept from them |
//! | [`files`] | requests for the files of a sandbox, and their responses |
//! | [`frame`] | frames in which an exec's output is transferred |
//! | [`layer`] | image layers: compression, and the report on unpacking a layer |
//! | [`hello`] | the greeting that opens every connection between guest and node |
//! | [`limits`] | resource limits of a sandbox: defaults and hard maxima |
//! | [`posture`] | observable privileges of a process |
//! | [`trace`] | traces of requests: their steps and durations |
//! | [`walls`] | the isolation that the guest sets up when no runtime does so |
//! | [`defence`] | switches that turn off defences against attacks, in test builds only |
//! | [`error`] | the common format of all errors |
//!
//! Invariants: Nothing in this crate performs I/O or reads a clock. Every decoder accepts untrusted bytes and
//! limits their size.

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

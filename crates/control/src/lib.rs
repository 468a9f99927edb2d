//! The platform on one machine: authentication, the public API, and the history of sandboxes.
//!
//! | module | holds |
//! |---|---|
//! | [`routes`] | the public API, one handler per route |
//! | [`authority`] | conversion of a request's credential into a grant, and the need of every route |
//! | [`account`] | accounts: key lookup, rates, and the limits that a project's requests share |
//! | [`caller`] | parts of a request other than its credential and its body |
//! | [`body`] | request bodies, counted before they are read |
//! | [`platform`] | operations of more than one step: create, find, stop, health |
//! | [`session`] | sessions of agents: tool calls, one after the other, in a sandbox created on first use |
//! | [`e2b`] | the API of E2B for the same sandboxes |
//! | [`mcp`] | the tools of sandboxes over the Model Context Protocol |
//! | [`ports`] | access from outside to ports in sandboxes |
//! | [`output`] | an exec's output as lines of JSON |
//! | [`terminal`] | a terminal over a WebSocket |
//! | [`follow`] | reconciliation of the store with the node |
//! | [`store`] | accounts and the history of sandboxes, in one SQLite file |
//! | [`vault`] | secrets, encrypted |
//! | [`audit`] | the audit log: an append-only record of actions and their callers |
//! | [`metrics`] | counters and their exposition |
//! | [`trace`] | timings of the steps of requests |
//! | [`fault`] | conversion of errors into responses |
//! | [`listen`] | bounded connections, with or without TLS |
//!
//! Invariants: a request without a valid key has no effect; resources of other projects are reported as not found; every
//! rejection is an [`api::Error`]; work that a request started continues if its connection is closed.

#![forbid(unsafe_code)]

pub mod account;
pub mod audit;
pub mod authority;
pub mod body;
pub mod caller;
mod description;
pub mod e2b;
pub mod fault;
pub mod follow;
pub mod listen;
pub mod mcp;
pub mod metrics;
pub mod output;
pub mod platform;
pub mod ports;
pub mod routes;
pub mod session;
pub mod store;
pub mod terminal;
pub mod trace;
pub mod vault;

pub use platform::Platform;

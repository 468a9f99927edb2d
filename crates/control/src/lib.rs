//! The platform on one machine: accounts, the history of sandboxes, secrets, the audit log, and agent sessions.
//!
//! This crate contains no HTTP: the crate `server` maps requests to it and its errors to responses.
//!
//! | module | contents |
//! |---|---|
//! | [`credential`] | API keys and tickets |
//! | [`authority`] | grants of requests and needs of routes |
//! | [`account`] | lookup of keys, and the rates and permits that all requests of a project share |
//! | [`platform`] | operations of more than one step: create, find, stop, health |
//! | [`session`] | agent sessions: tool calls, one after the other, in a sandbox that is created on first use |
//! | [`output`] | the output of execs as lines of JSON |
//! | [`follow`] | keeps the store consistent with the machine |
//! | [`store`] | accounts and the history of sandboxes, in one SQLite file |
//! | [`vault`] | encrypted secrets |
//! | [`audit`] | an append-only log of actions |
//! | [`metrics`] | counters |
//! | [`trace`] | the time spent in each step of a request |
//! | [`fault`] | errors of the platform |
//!
//! Invariants: an object of another project looks like an object that does not exist; every error is an [`api::Error`]; an
//! operation that has started completes even if its request is dropped.

#![forbid(unsafe_code)]

pub mod account;
pub mod audit;
pub mod authority;
pub mod credential;
pub mod fault;
pub mod follow;
pub mod metrics;
pub mod output;
pub mod platform;
pub mod session;
pub mod store;
pub mod trace;
pub mod vault;

pub use platform::Platform;

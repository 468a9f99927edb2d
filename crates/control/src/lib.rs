//! The platform on one machine: accounts, the history of sandboxes, secrets, the audit log, and agent sessions.
//!
//! This crate contains no HTTP code: the crate `server` maps requests to operations of this crate, and errors
//! of this crate to responses.
//!
//! | module | contents |
//! |---|---|
//! | [`credential`] | API keys and tickets |
//! | [`authority`] | authorization: the grant of each request, and the need of each route |
//! | [`account`] | key lookup, and the rates and permits that all requests of a project share |
//! | [`platform`] | operations with several steps: create, find, stop, health |
//! | [`session`] | agent sessions: tool calls that run one at a time in a sandbox, which is created on first use |
//! | [`output`] | exec output as lines of JSON |
//! | [`follow`] | keeps the store consistent with the machine |
//! | [`store`] | accounts and the history of sandboxes, in one SQLite file |
//! | [`vault`] | encrypted secrets |
//! | [`audit`] | an append-only log of actions |
//! | [`metrics`] | counters |
//! | [`trace`] | the time spent in each step of a request |
//! | [`fault`] | platform errors |
//!
//! Invariants: A project cannot distinguish an object of another project from an object that does not exist.
//! Every request error is an [`api::Error`]. An operation that has started completes even if its request is
//! dropped.

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

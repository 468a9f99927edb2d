//! The platform on one machine: who may ask for what, what has been asked for, and what became of it.
//!
//! | module | holds |
//! |---|---|
//! | [`routes`] | the public API, a handler each |
//! | [`authority`] | what turns the credential of a request into a grant, and what every route needs |
//! | [`account`] | accounts: how a key is known, rates and what a project's requests share |
//! | [`caller`] | what a request brings besides its credential and its body |
//! | [`body`] | bodies of requests, counted before they are read |
//! | [`platform`] | the decisions that are more than one step: create, find, stop, health |
//! | [`session`] | sessions of agents: tool calls, one after the other, in a sandbox that is made when it is needed |
//! | [`e2b`] | the API of E2B over the same sandboxes |
//! | [`mcp`] | their tools over the Model Context Protocol |
//! | [`ports`] | ports inside sandboxes, reached from outside |
//! | [`output`] | an exec's output as lines of JSON |
//! | [`terminal`] | a terminal over a WebSocket |
//! | [`follow`] | keeping the store true to the machine |
//! | [`store`] | accounts and the history of sandboxes, in one SQLite file |
//! | [`vault`] | secrets, sealed |
//! | [`audit`] | who did what, in a file that only grows |
//! | [`metrics`] | what is counted |
//! | [`trace`] | where the time of requests went |
//! | [`fault`] | how a refusal becomes an answer |
//! | [`listen`] | connections within bounds, with or without TLS |
//!
//! Invariants: nothing is done for whoever shows no valid key; what belongs to another project is not there; every
//! refusal is an [`api::Error`]; what a request begins goes on without it.

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

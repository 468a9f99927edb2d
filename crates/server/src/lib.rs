//! The HTTP server of the platform: the public API, MCP, ports of sandboxes, and the parts that other APIs are built from.
//!
//! | module | contents |
//! |---|---|
//! | [`app`] | the state of all routes |
//! | [`routes`] | the public API, one handler per route |
//! | [`authority`] | extractors that turn a credential into a grant, and the table of routes |
//! | [`extract`] | extractors for the other parts of a request |
//! | [`body`] | request bodies, counted before they are read |
//! | [`rejection`] | errors as responses |
//! | [`output`] | responses with the output of an exec |
//! | [`mcp`] | the Model Context Protocol |
//! | [`ports`] | ports of sandboxes, reached from outside |
//! | [`terminal`] | terminals over WebSockets |
//! | [`listen`] | connections within limits, with or without TLS |
//!
//! Invariants: a request without a valid credential has no effect; every error is an [`api::Error`]; an operation that a request
//! starts completes even if its connection ends.

#![forbid(unsafe_code)]

pub mod app;
pub mod authority;
pub mod body;
mod description;
pub mod extract;
pub mod listen;
pub mod mcp;
pub mod output;
pub mod ports;
pub mod rejection;
pub mod routes;
pub mod terminal;

pub use app::App;
pub use routes::VendorApi;

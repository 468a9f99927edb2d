//! The platform's HTTP server: the public API, MCP, sandbox ports, and the parts from which other APIs are
//! built.
//!
//! | module | contents |
//! |---|---|
//! | [`app`] | the state that all routes share |
//! | [`routes`] | the public API, one handler per route |
//! | [`authority`] | extractors that turn a credential into a grant, and the route table |
//! | [`extract`] | extractors for the other parts of a request |
//! | [`body`] | request bodies, which count against memory budgets before they are read |
//! | [`rejection`] | errors as HTTP responses |
//! | [`list`] | responses with a list, which count against a memory budget
//! | [`output`] | responses that stream an exec's output |
//! | [`mcp`] | the Model Context Protocol |
//! | [`ports`] | access to sandbox ports from outside |
//! | [`terminal`] | terminals over WebSockets |
//! | [`listen`] | acceptance of connections, with limits, with or without TLS |
//!
//! Invariants: A request without a valid credential has no effect. Every error is an [`api::Error`]. An
//! operation that a request starts completes even if the request's connection ends.

#![forbid(unsafe_code)]

pub mod app;
pub mod authority;
pub mod body;
mod description;
pub mod extract;
pub mod list;
pub mod listen;
pub mod mcp;
pub mod output;
pub mod ports;
pub mod rejection;
pub mod routes;
pub mod terminal;

pub use app::App;
pub use routes::VendorApi;

//! Tests that start real sandboxes, one module per subject. They need root and a runtime. Run them with
//! `just real` and `just engines`.

// Tests fail by panicking, and print their measurements.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm
)]

mod artifacts;
mod builds;
mod code;
mod contexts;
mod cycles;
mod egress;
mod engine;
mod exec;
mod files;
mod laws;
mod lifecycle;
mod limits;
mod many_runs;
mod outages;
mod output;
mod packages;
mod pause;
mod pool;
mod ports;
mod secrets;
mod service;
mod session;
mod sharing;
mod template;
mod terminal;
mod terminal_inside;
mod tools;
mod troubles;

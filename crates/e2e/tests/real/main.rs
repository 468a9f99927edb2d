//! Tests that start real sandboxes, one module per subject. They need root and a runtime. Run them with
//! `just real` and `just engines`.

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
mod upgrade;

//! Runs of code in real sandboxes: what they write, show, install and leave, and how they end. Numbers are those of the list of
//! regression scenarios and of the requirements.

// A test fails by panicking, and says what it saw.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm
)]

mod charts;
mod ends;
mod languages;
mod outages;
mod packages;
mod pictures;
mod processes;
mod runs;

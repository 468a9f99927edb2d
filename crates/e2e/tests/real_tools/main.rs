//! The tool sets on a real server, in real sandboxes. Every text is compared byte for byte; numbers are those of the requirements.

// A test fails by panicking, and says what it saw.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm
)]

mod analysis;
mod interpreter;
mod python;
mod sessions;

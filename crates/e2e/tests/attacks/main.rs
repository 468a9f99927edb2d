//! The attacks of `attacks/`, one module for each part of Bellglass that they attack. They run with `just
//! attacks`.

// A test fails by panicking, and prints the result of the attack.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod egress;
mod files;
mod images;
mod sandbox;
mod service;

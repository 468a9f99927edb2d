//! The attacks of `attacks/`, with one module for each part of Bellglass that they attack. Run them with
//! `just attacks`.

// Tests fail by panicking, and print the result of the attack.
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

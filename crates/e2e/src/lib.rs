//! Shared code for the end-to-end tests.
//!
//! | test target | holds | needs |
//! |---|---|---|
//! | `house` | the house rules: layering, names, module docs, length, links | nothing |
//! | `real` | behaviour of real sandboxes; one module per subject | root, runc, a template; runsc if installed |
//! | `attacks` | the attacks of `attacks/`, each with its positive control | the same, faketime, openssl, PyPI |
//! | `figures` (a program) | the figures of `docs/specification.md` | the same as `real` |
//!
//! A test that needs root does nothing unless `BELLGLASS_REAL` is set in the environment, as `just real` and
//! `just attacks` do. It is therefore safe to run `cargo test` on any machine.

// This library serves tests, which fail by panicking.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm
)]

pub mod cutter;
pub mod daytona;
pub mod dockerd;
pub mod lab;
pub mod layer;
pub mod random;
pub mod room;
pub mod service;
pub mod talk;
pub mod tmux;
pub mod traces;
pub mod wild;
pub mod wire;
pub mod world;

pub use lab::{Lab, on};

/// Runs a future to completion on a separate thread, because the caller may already be inside an executor.
fn apart<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            executor.block_on(work())
        });
        done.join().unwrap()
    })
}

//! Shared code of the whole-platform tests.
//!
//! | test target | holds | needs |
//! |---|---|---|
//! | `house` | the house rules: layering, names, module docs, length, links | nothing |
//! | `real` | behavior of real sandboxes; one module per subject | root, runc, a template; runsc if installed |
//! | `attacks` | the attacks of `attacks/`, each with its positive control | the same, faketime, openssl, PyPI |
//! | `figures` (a program) | the figures of `docs/specification.md` | the same |
//!
//! A test that needs root does nothing unless `BELLGLASS_REAL` is set in the environment, as `just real` and
//! `just attacks` do. `cargo test` is therefore safe on any machine.

// A library for tests, which fails by panicking.
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

/// Runs a future to its end on a separate thread, because the caller may already be on an executor.
fn apart<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            executor.block_on(work())
        });
        done.join().unwrap()
    })
}

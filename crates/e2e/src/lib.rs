//! Shared code for the end-to-end tests.
//!
//! | test target | holds | needs |
//! |---|---|---|
//! | `real` | behaviour of real sandboxes; one module per subject | root, runc, a template; runsc if installed |
//! | `attacks` | the attacks of `attacks/`, each with its positive control | the same, faketime, openssl, PyPI |
//! | `figures` (a program) | the figures of `docs/specification.md` | the same as `real` |
//!
//! A test that needs root is ignored unless the caller asks for ignored tests, as `just real` and
//! `just attacks` do. It is therefore safe to run `cargo test` on any machine.

pub mod attack;
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

use std::pin::Pin;

pub use lab::{Lab, on};

/// A future that stays on its thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The body of a test, which takes what its fixture creates. Fixtures take bodies as `&dyn Body<…>`, so that
/// they and the executor are compiled once, and not once for each test.
pub trait Body<A: ?Sized> {
    /// Runs the body.
    fn run<'a>(&'a self, fixture: &'a A) -> Local<'a, ()>;
}

impl<A: ?Sized, F: AsyncFn(&A)> Body<A> for F {
    fn run<'a>(&'a self, fixture: &'a A) -> Local<'a, ()> {
        Box::pin(self(fixture))
    }
}

/// Runs a future to completion on a separate thread, because the caller may already be inside an executor.
fn apart<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let work: Local<'_, T> = Box::pin(work());
            executor.block_on(work)
        });
        done.join().unwrap()
    })
}

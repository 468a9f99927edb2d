//! A call that is under way, shared by all who wait for it.

use std::sync::Arc;

use api::session::SessionArtifact;
use api::{Error, ErrorCode};
use tokio::sync::watch;

/// What a tool answers.
#[derive(Clone, Debug)]
pub struct Told {
    /// The answer, as JSON.
    pub text: String,
    /// Whether it tells of a failure.
    pub failed: bool,
    /// Files that were kept.
    pub artifacts: Vec<SessionArtifact>,
}

/// How a call ends.
pub type Landing = Result<Told, Error>;

/// A call under way.
pub struct Flight {
    /// The hash of the call.
    call: String,
    cancel: watch::Sender<bool>,
    landed: watch::Sender<Option<Arc<Landing>>>,
}

/// Ends a call when it is dropped before the call has ended.
pub struct EndsWith(Option<Arc<Flight>>);

impl Flight {
    /// One of this call.
    pub(super) fn of(call: &str) -> Self {
        Self { call: call.to_owned(), cancel: watch::Sender::new(false), landed: watch::Sender::new(None) }
    }

    /// Refuses another call under the same name.
    pub(super) fn check(&self, call: &str) -> Result<(), Error> {
        if self.call == call { Ok(()) } else { Err(another_call()) }
    }

    /// One that has ended before it began.
    pub(super) fn landed(landing: Landing) -> Arc<Self> {
        let flight = Self::of("");
        flight.land(landing);
        Arc::new(flight)
    }

    /// Asks for its end.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Whoever has to heed that.
    pub(super) fn cancelled(&self) -> watch::Receiver<bool> {
        self.cancel.subscribe()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What the call was refused with.
    pub async fn landing(&self) -> Landing {
        let mut landed = self.landed.subscribe();
        match landed.wait_for(Option::is_some).await.ok().and_then(|landing| landing.clone()) {
            Some(landing) => (*landing).clone(),
            None => Err(Error {
                code: ErrorCode::Platform,
                ..Error::invalid("the result of the call was lost", "Retry the call.")
            }),
        }
    }

    /// Has it end like this if it has not ended.
    pub(super) fn land_unless_landed(&self, landing: Landing) {
        self.landed.send_if_modified(|landed| {
            let open = landed.is_none();
            if open {
                *landed = Some(Arc::new(landing));
            }
            open
        });
    }

    pub(super) fn land(&self, landing: Landing) {
        self.landed.send_replace(Some(Arc::new(landing)));
    }
}

impl EndsWith {
    /// Has a call end with this value.
    pub fn this(flight: &Arc<Flight>) -> Self {
        Self(Some(Arc::clone(flight)))
    }

    /// Has it end by itself.
    pub fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsWith {
    fn drop(&mut self) {
        if let Some(flight) = self.0.take() {
            flight.cancel();
        }
    }
}

/// The error for a key that was used before, for something else.
pub(super) fn another_call() -> Error {
    Error {
        code: ErrorCode::Conflict,
        ..Error::invalid("the same idempotency key was used for another call", "Use another idempotency key.")
    }
}

/// Waits until somebody asks for the end.
pub(super) async fn asked_to_end(cancelled: &mut watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending().await
    }
}

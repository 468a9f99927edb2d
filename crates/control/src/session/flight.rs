//! A call in progress, shared by all callers that wait for it.

use std::sync::Arc;

use api::session::SessionArtifact;
use api::{Error, ErrorCode};
use tokio::sync::watch;

/// Response of a tool.
#[derive(Clone, Debug)]
pub struct ToolReply {
    /// The response, as JSON.
    pub text: String,
    /// True if the response reports a failure.
    pub failed: bool,
    /// Files that were stored.
    pub artifacts: Vec<SessionArtifact>,
}

/// Result of a tool call: the tool's reply, or an error.
pub type Landing = Result<ToolReply, Error>;

/// A call in progress.
pub struct Flight {
    /// The hash of the call.
    call: String,
    cancel: watch::Sender<bool>,
    landed: watch::Sender<Option<Arc<Landing>>>,
}

/// Guard that cancels a call when the guard is dropped. Has no effect after the call has ended.
pub struct EndsWith(Option<Arc<Flight>>);

impl Flight {
    /// Creates the flight for a call with this hash.
    pub(super) fn of(call: &str) -> Self {
        Self { call: call.to_owned(), cancel: watch::Sender::new(false), landed: watch::Sender::new(None) }
    }

    /// Checks that a call with the same idempotency key is the same call, by its hash.
    pub(super) fn check(&self, call: &str) -> Result<(), Error> {
        if self.call == call { Ok(()) } else { Err(another_call()) }
    }

    /// Creates the flight for a call that has already ended with this result.
    pub(super) fn landed(landing: Landing) -> Arc<Self> {
        let flight = Self::of("");
        flight.land(landing);
        Arc::new(flight)
    }

    /// Requests the cancellation of the call.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Returns a receiver for the cancellation request, for the task that runs the call.
    pub(super) fn cancelled(&self) -> watch::Receiver<bool> {
        self.cancel.subscribe()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// Returns an error if the call was rejected or its result was lost.
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

    /// Sets the result, unless it is already set.
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
    /// Creates a guard for a call.
    pub fn this(flight: &Arc<Flight>) -> Self {
        Self(Some(Arc::clone(flight)))
    }

    /// Disarms the guard, so that the call continues.
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

/// Builds the error for an idempotency key that was already used for a different call.
pub(super) fn another_call() -> Error {
    Error {
        code: ErrorCode::Conflict,
        ..Error::invalid("the same idempotency key was used for another call", "Use another idempotency key.")
    }
}

/// Waits until the cancellation of the call is requested.
pub(super) async fn asked_to_end(cancelled: &mut watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending().await
    }
}

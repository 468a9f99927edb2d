//! The queue of a session's calls, which run one at a time in order of arrival.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use api::session::WAITING_MAX;
use api::{Error, ErrorCode, Layer, Ran, Retry};
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

/// Queue of calls.
#[derive(Default)]
pub(super) struct Queue {
    /// Lock that a call holds while it runs. The lock is fair: calls acquire it in order of arrival.
    turn: Arc<Mutex<TurnState>>,
    waiting: AtomicUsize,
}

/// State that only the current run uses, which holds the lock `turn`.
#[derive(Default)]
pub(super) struct TurnState {
    /// The sandbox that was used last.
    pub of: Option<api::SandboxId>,
    /// Stored version of each output file of that sandbox, by file name.
    pub kept: HashMap<String, String>,
    /// The task that stops the sandbox of the previous run.
    pub leaving: Option<tokio::task::JoinHandle<()>>,
}

/// A call's place in the queue.
pub(super) struct QueuePermit(Arc<Queue>);

/// Position in the queue, assigned when the call arrived. It contains the lock's guard if the lock was free.
/// Otherwise, the future acquires the lock.
pub(super) type QueuePosition =
    (Option<OwnedMutexGuard<TurnState>>, Pin<Box<dyn Future<Output = OwnedMutexGuard<TurnState>> + Send>>);

impl Queue {
    /// Joins the queue of calls.
    pub(super) fn wait(self: &Arc<Self>) -> Result<QueuePermit, Error> {
        let waiting = QueuePermit(Arc::clone(self));
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            return Err(Error {
                code: ErrorCode::RateLimited,
                message: format!("the session already has {WAITING_MAX} queued calls, the maximum"),
                layer: Layer::Policy,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Wait until some of the queued calls have finished.".into(),
            });
        }
        Ok(waiting)
    }

    /// Waits for the current run and all calls that are queued before this one.
    pub(super) async fn turn(&self) -> MutexGuard<'_, TurnState> {
        self.turn.lock().await
    }

    /// Assigns the position of a call. Calls run in order of arrival, regardless of the order in which their
    /// tasks are scheduled (requirement A3.04).
    pub(super) async fn position(&self) -> QueuePosition {
        let mut turn: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(Arc::clone(&self.turn).lock_owned());
        match poll_fn(|context| Poll::Ready(turn.as_mut().poll(context))).await {
            Poll::Ready(guard) => (Some(guard), turn),
            Poll::Pending => (None, turn),
        }
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

//! The claim to a ready sandbox: from the moment it is taken off its shelf until it is somebody's, or back.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::sandbox::SandboxState;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;

use super::{Claimed, Near, Pool, Ready};
use crate::handle::Handle;
use crate::journal::Record;
use crate::plan::{Kind, Plan};
use crate::ready::Preparation;

/// A ready sandbox that nobody else can have. Dropped without being used, it goes back to its shelf: nothing has happened to it.
pub struct Claim {
    pub(crate) pool: Arc<Pool>,
    kind: Kind,
    ready: Option<Ready>,
    /// Whether its guest has been asked whether it is alive.
    begun: bool,
    id: SandboxId,
    /// What its order comes to.
    plan: Plan,
}

impl Claim {
    /// The id that the sandbox has.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// What it is ready for.
    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What its order comes to.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Has its guest asked whether it is alive, for which nobody has to wait yet.
    pub fn begin(&mut self) {
        if let Some(ready) = self.ready.as_ref().filter(|_| !self.begun) {
            let ttl = Duration::from_millis(self.plan.limits().ttl_ms);
            // Whether it is heard is known when it is given its order.
            ready.near.send_replace(Some(Near { ttl, request: Span::current() }));
            self.begun = true;
        }
    }

    /// Gives it its order. Nothing where it turns out not to be alive: then nothing is left of it.
    pub(crate) async fn give(mut self, record: Record, preparation: Preparation) -> Option<Arc<Handle>> {
        self.begin();
        let Ready { handle, claims, .. } = self.ready.take()?;
        let (taken, heard) = oneshot::channel();
        let given = claims.send(Claimed { record, preparation, taken }).is_ok();
        if given && heard.await.is_ok() {
            return Some(handle);
        }
        tracing::warn!(sandbox = %self.id, "pre-warmed sandbox is no longer alive; creating another");
        handle.until(SandboxState::is_terminal).await;
        None
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(ready) = self.ready.take() else { return };
        if self.begun && !api::defence::is_off("X-25") {
            // Its guest may have been told how long it would live with this one.
            let ttl = ready.until.saturating_duration_since(Instant::now());
            ready.near.send_replace(Some(Near { ttl, request: Span::none() }));
        }
        let mut shelves = self.pool.shelves();
        // Where nothing is wanted any more it goes with its claim.
        if !shelves.closed
            && let Some(shelf) = shelves.of.get_mut(&self.kind)
        {
            shelf.ready.push_front(ready);
        }
    }
}

impl Pool {
    /// Takes a ready sandbox of this kind that is made as the plan says, if there is one.
    pub(crate) fn claim(self: &Arc<Self>, kind: Kind, plan: Plan) -> Option<Claim> {
        let ready = self.take(&kind, |record| plan.is_of(record))?;
        let id = ready.handle.id().clone();
        Some(Claim { pool: Arc::clone(self), kind, ready: Some(ready), begun: false, id, plan })
    }
}

//! The claim of a pre-warmed sandbox, from the time it leaves its shelf until it belongs to a project or is
//! returned to its shelf. A shelf holds the pre-warmed sandboxes of one kind.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::sandbox::SandboxState;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;

use super::{Claimed, Near, Pool, Ready};
use crate::handle::Handle;
use crate::journal::SandboxRecord;
use crate::plan::{Plan, PoolKind};
use crate::ready::Preparation;

/// The exclusive right to a pre-warmed sandbox. If the claim is dropped unused, the sandbox returns to its
/// shelf unchanged.
pub struct Claim {
    pub(crate) pool: Arc<Pool>,
    kind: PoolKind,
    ready: Option<Ready>,
    /// True if the claim has been announced to the suspended startup.
    begun: bool,
    id: SandboxId,
    /// The resolved order.
    plan: Plan,
}

impl Claim {
    /// Returns the ID of the sandbox.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Returns the kind of the sandbox.
    pub(crate) fn kind(&self) -> &PoolKind {
        &self.kind
    }

    /// Returns the resolved order.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Announces the claim, so that the guest is checked while the caller does other work.
    pub fn begin(&mut self) {
        if let Some(ready) = self.ready.as_ref().filter(|_| !self.begun) {
            let ttl = Duration::from_millis(self.plan.limits().ttl_ms);
            // If the sandbox has died, `give` notices it when it passes the order to the startup.
            ready.near.send_replace(Some(Near { ttl, request: Span::current() }));
            self.begun = true;
        }
    }

    /// Passes the order to the suspended startup. If the sandbox is no longer alive, waits until it is
    /// removed completely, and returns `None`.
    pub(crate) async fn give(
        mut self,
        record: SandboxRecord,
        preparation: Preparation,
    ) -> Option<Arc<Handle>> {
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
            // The guest may have received the time to live of this claim, so its old time to live is
            // restored.
            let ttl = ready.until.saturating_duration_since(Instant::now());
            ready.near.send_replace(Some(Near { ttl, request: Span::none() }));
        }
        let mut shelves = self.pool.shelves();
        // If the pool is closed, the sandbox is dropped, which removes it.
        if !shelves.closed
            && let Some(shelf) = shelves.of.get_mut(&self.kind)
        {
            shelf.ready.push_front(ready);
        }
    }
}

impl Pool {
    /// Claims a pre-warmed sandbox of this kind that matches the plan, if there is one.
    pub(crate) fn claim(self: &Arc<Self>, kind: PoolKind, plan: Plan) -> Option<Claim> {
        let ready = self.take(&kind, |record| plan.is_of(record))?;
        let id = ready.handle.id().clone();
        Some(Claim { pool: Arc::clone(self), kind, ready: Some(ready), begun: false, id, plan })
    }
}

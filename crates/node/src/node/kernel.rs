//! Stops sandboxes that use too much of a kernel resource for which Linux has no limit.

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::sandbox::EndReason;
use runtime::Runtime;

use crate::Node;
use crate::shared::NodeState;

/// Interval between checks. Of these resources, file locks grow fastest: on a fast core, a sandbox can fill
/// about 60 MiB of kernel memory with them in this time.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Timeout for one check, including the stop of a sandbox, which may wait for the disk.
const ACT_WITHIN: Duration = Duration::from_secs(20);

impl Node {
    /// Checks all runtimes periodically until the node is gone.
    pub(crate) async fn watch_kernel(shared: Weak<NodeState>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(node) = shared.upgrade().map(|shared| Self { shared }) else { return };
            for runtime in &node.shared.choice.runtimes {
                // A timeout is ignored: the machine is overloaded, and the next check follows.
                let _ = tokio::time::timeout(ACT_WITHIN, node.end_culprit(runtime)).await;
            }
        }
    }

    async fn end_culprit(&self, runtime: &Arc<dyn Runtime>) {
        let culprit = match runtime.culprit().await {
            Ok(Some(culprit)) => culprit,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(runtime = runtime.name(), %error, "cannot measure the kernel memory held by each sandbox");
                return;
            }
        };
        tracing::warn!(sandbox = %culprit.id, "stopping sandbox: it {}, and Linux has no limit for them", culprit.what);
        // The sandbox may belong to a different process on this machine. It is stopped even if this node does
        // not know it.
        if self.stop(&culprit.id, EndReason::KernelResource).await.is_none() {
            let _ = runtime.stop(&culprit.id, Duration::ZERO).await;
        }
    }
}

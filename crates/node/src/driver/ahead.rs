//! Pre-warms a sandbox, and suspends its startup until the sandbox is claimed.

use std::sync::Arc;
use std::time::Duration;

use api::exec::LostCause;
use api::trace::STEP;
use guest_client::Sandbox;
use host::error::Error;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, info_span};

use crate::handle::Handle;
use crate::plan::READY_MS;
use crate::pool::{Making, Near, Ready, UNKNOWN_BYTES};
use crate::ready::Preparation;
use crate::shared::NodeState;

/// Timeout for the response of a claimed guest. A live guest responds in less than a millisecond.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// Remaining time to live at which an unclaimed sandbox is removed, so that no claim gets a sandbox that is
/// about to end.
const RETIRE_BEFORE: Duration = Duration::from_secs(60);

/// Creates a sandbox and keeps it on its shelf, the pool's queue for its kind, until it is claimed. If the
/// sandbox is removed unclaimed, returns an error, as after any failed startup.
pub(super) async fn hold_ready(
    shared: &NodeState,
    handle: &Arc<Handle>,
    making: Making,
    mut unwanted: watch::Receiver<bool>,
) -> Result<(Sandbox, Preparation), Error> {
    let begun = Instant::now();
    let started = async {
        let sandbox = shared.start(handle).await?;
        warm(handle, &sandbox).await.map(|()| sandbox)
    };
    // The span names the sandbox, so that its creation can be shown to the project that claims it.
    let whole = info_span!(target: STEP, "made ahead", sandbox = handle.id().as_str(), exec = Empty);
    let sandbox = started.instrument(whole).await.inspect_err(|error| making.failed(error))?;
    let each_bytes = sandbox.usage().await.map_or(UNKNOWN_BYTES, |usage| usage.sandbox_memory_bytes);
    let (near, mut nearing) = watch::channel(None::<Near>);
    let (claims, mut claimed) = oneshot::channel();
    let until = begun + Duration::from_millis(READY_MS);
    shared.pool.put(&making.kind, each_bytes, Ready { handle: Arc::clone(handle), near, claims, until });
    drop(making);
    let nobody = || Error::Lost(LostCause::Stopped);
    let until = until - RETIRE_BEFORE;
    let claimed = loop {
        tokio::select! {
            biased;
            // Runs while the claim is being journalled. One request checks that the guest is alive and sets
            // its new time to live. If the claim is dropped, the sandbox returns to its shelf, and a second
            // request restores its old time to live.
            Ok(()) = nearing.changed() => {
                let Some(near) = nearing.borrow_and_update().clone() else { continue };
                let claim = near.request.in_scope(|| info_span!(target: STEP, "claim"));
                sandbox.live_for(near.ttl, ALIVE_WITHIN).instrument(claim).await?;
            }
            claimed = &mut claimed => break claimed.map_err(|_| nobody())?,
            cause = sandbox.ended() => return Err(Error::Lost(cause)),
            Ok(()) = async { unwanted.wait_for(|unwanted| *unwanted).await.map(drop) } => return Err(nobody()),
            () = tokio::time::sleep_until(until) => return Err(nobody()),
        }
    };
    handle.replace(claimed.record);
    handle.active(Instant::now());
    let _ = claimed.taken.send(());
    Ok((sandbox, claimed.preparation))
}

/// Starts the interpreter and runs the template's imports, if there are any.
async fn warm(handle: &Handle, sandbox: &Sandbox) -> Result<(), Error> {
    let record = handle.record();
    if !record.imports.is_empty() {
        sandbox.set_interpreter(&record.imports, &record.env, record.sandbox.limits.cpu_millis).await?;
        sandbox.interpreter().await?;
        handle.now_prepared();
    }
    Ok(())
}

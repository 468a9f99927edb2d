//! Starts a sandbox that nobody has asked for yet, and holds it until it is claimed.

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
use crate::shared::Shared;

/// A guest that is asked whether it lives answers in less than a millisecond.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// It is taken off its shelf this long before, so that nobody claims one that is about to end.
const RETIRE_BEFORE: Duration = Duration::from_secs(60);

/// Makes a sandbox, and has it ready on its shelf until somebody claims it; then it is that one's. The end of a wait for nobody is
/// an error, like the end of any start that came to nothing.
pub(super) async fn hold_ready(
    shared: &Shared,
    handle: &Arc<Handle>,
    making: Making,
    mut unwanted: watch::Receiver<bool>,
) -> Result<(Sandbox, Preparation), Error> {
    let begun = Instant::now();
    let started = async {
        let sandbox = shared.start(handle).await?;
        warm(handle, &sandbox).await.map(|()| sandbox)
    };
    // How it was made is shown to whoever has it.
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
            // While the claim is written down, both at once: that it is alive, and how long it may live from now on. One that
            // comes back to its shelf gets its time back.
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

/// Has the interpreter of a template that names imports do them.
async fn warm(handle: &Handle, sandbox: &Sandbox) -> Result<(), Error> {
    let record = handle.record();
    if !record.imports.is_empty() {
        sandbox.set_interpreter(&record.imports, &record.env, record.sandbox.limits.cpu_millis).await?;
        sandbox.interpreter().await?;
        handle.now_prepared();
    }
    Ok(())
}

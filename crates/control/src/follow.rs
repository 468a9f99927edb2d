//! Reconciliation of the store with the node.
//!
//! The node is the authority on running sandboxes; the store is the authority on requests and their results.
//! The node keeps its record of an ended sandbox until the store has saved that the sandbox ended. A sandbox
//! that is missing from the store is added, so an empty store never causes a sandbox to be stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::sandbox::{EndReason, Sandbox, SandboxEvent, SandboxState};
use node::clock;
use node::egress::{Decided, Decision};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

use crate::audit::{Act, Entry};
use crate::platform::Platform;
use crate::store;

/// Maximum number of changes in one transaction. It is large enough to save a burst of create requests
/// together.
const CHANGES_AT_ONCE: usize = 64;
/// Interval between passes over all ended sandboxes. The passes catch events that were missed and writes that
/// failed.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// Maximum interval between two rounds of store maintenance.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Time for which the records of ended sandboxes are retained. Users must be able to find out for at least a
/// day why a sandbox ended; a week is more convenient.
const REMEMBER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Interval between removals of unused layers and old records.
const TIDY_EVERY: Duration = Duration::from_secs(600);

/// Interval between saves of the last-use times of keys.
const NOTE_USE_EVERY: Duration = Duration::from_secs(60);

/// Updates the store once to match the node. The server must not accept requests before this function
/// returns.
///
/// # Errors
/// Returns an error if the store does not respond.
pub async fn begin(platform: &Platform) -> Result<(), store::Error> {
    for project in platform.store.projects().await? {
        platform.node.set_quota(&project.name, project.quota.disk_bytes);
    }
    let stored: HashMap<_, _> =
        platform.store.live().await?.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)).collect();
    for shown in platform.node.list() {
        // After a restart nearly all sandboxes are unchanged, so only differences are written.
        if stored.get(&shown.id).is_none_or(|known| known.state != shown.state) {
            keep(platform, &shown).await?;
        }
    }
    for sandbox in stored.into_values() {
        if platform.node.find(&sandbox.id).is_some() {
            continue;
        }
        // The node writes its record before it creates a sandbox. If the node has no record of a sandbox, the
        // sandbox was never started, or the node's disk was replaced.
        let reason = match sandbox.state {
            _ if platform.node.has_lost_record(&sandbox.id) => EndReason::RecordDamaged,
            SandboxState::Starting => EndReason::Interrupted,
            SandboxState::Running
            | SandboxState::Paused
            | SandboxState::Stopping
            | SandboxState::Ended
            | SandboxState::Lost => EndReason::Died,
        };
        let ended = Sandbox {
            state: reason.state(),
            reason: Some(reason),
            ended_at_ms: Some(clock::wall_ms()),
            ..sandbox
        };
        platform.store.moved(&ended).await?;
    }
    Ok(())
}

/// Keeps the store up to date after [`begin`].
pub async fn follow(platform: Arc<Platform>) {
    let mut events = platform.node.events();
    loop {
        let until = Instant::now() + COMPARE_EVERY;
        // Write changes as their events arrive. The pass after this loop finds ended sandboxes whose events
        // were missed or could not be saved.
        while let Ok(heard) = timeout_at(until, events.recv()).await {
            match heard {
                Ok(SandboxEvent::Changed { sandbox }) => {
                    let changed = changes(&mut events, *sandbox);
                    for sandbox in &changed {
                        platform.metrics.changed(sandbox);
                    }
                    let _ = keep_all(&platform, &changed).await;
                }
                Ok(SandboxEvent::Expiring { .. } | SandboxEvent::Missed { .. } | SandboxEvent::Heartbeat)
                | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
        for shown in platform.node.list() {
            if shown.state.is_terminal() {
                let _ = keep(&platform, &shown).await;
            }
        }
    }
}

/// Returns the first change, followed by the changes that were published while earlier ones were being
/// written, so that one transaction can write all of them.
fn changes(events: &mut Receiver<SandboxEvent>, first: Sandbox) -> Vec<Sandbox> {
    let mut changed = vec![first];
    while changed.len() < CHANGES_AT_ONCE
        && let Ok(event) = events.try_recv()
    {
        if let SandboxEvent::Changed { sandbox } = event {
            changed.push(*sandbox);
        }
    }
    // The state `starting` is already in the store, because it was recorded with the request.
    changed.retain(|sandbox| sandbox.state != SandboxState::Starting);
    changed
}

/// Records the egress decisions of sandboxes in the audit log.
pub async fn write_down(platform: Arc<Platform>) {
    let mut decisions = platform.node.decisions();
    loop {
        let entry = match decisions.recv().await {
            Ok(Decided { sandbox, project, decision }) => {
                let Decision { target, ask, verdict } = decision;
                let (act, detail) = match verdict {
                    Ok(rule) => (Act::Egress, format!("{target} {ask}: {rule}")),
                    Err(why) => (Act::EgressRefused, format!("{target} {ask}: {why}")),
                };
                Entry::new(clock::wall_ms(), act).project(&project).sandbox(&sandbox).detail(&detail)
            }
            Err(RecvError::Lagged(count)) => {
                Entry::new(clock::wall_ms(), Act::Missed).detail(&format!("{count} egress decisions"))
            }
            Err(RecvError::Closed) => return,
        };
        platform.audit.record(entry);
    }
}

/// Saves the last-use times of keys periodically. If the store fails, retries in the next round.
pub async fn note_use(platform: Arc<Platform>) {
    loop {
        tokio::time::sleep(NOTE_USE_EVERY).await;
        let used_ms = platform.accounts.take_used();
        if !used_ms.is_empty() && platform.store.keys_used(&used_ms).await.is_err() {
            platform.accounts.put_back_used(used_ms);
        }
    }
}

/// Runs the store's maintenance periodically: retries failed writes, and does work that is due.
pub async fn look_after(platform: Arc<Platform>) {
    loop {
        platform.store.time_is_due(UPKEEP_EVERY).await;
        platform.store.upkeep().await;
    }
}

/// Periodically deletes old records of sandboxes and sessions, and removes unused layers.
pub async fn tidy(platform: Arc<Platform>) {
    loop {
        let before = clock::wall_ms().saturating_sub(clock::millis(REMEMBER));
        if let Err(error) = platform.store.prune(before).await {
            tracing::warn!(
                error = node::error::chain(&error),
                "cannot delete records of old sandboxes; will retry"
            );
        }
        if let Err(error) = platform.sessions.tidy(&platform, before).await {
            tracing::warn!(error = node::error::chain(&error), "cannot delete old sessions; will retry");
        }
        if let Err(error) = platform.node.tidy().await {
            tracing::warn!(error = node::error::chain(&error), "cannot remove unused layers; will retry");
        }
        tokio::time::sleep(TIDY_EVERY).await;
    }
}

/// Saves the state of a sandbox in the store. If the sandbox has ended, the node then deletes its record.
async fn keep(platform: &Platform, shown: &Sandbox) -> Result<(), store::Error> {
    keep_all(platform, std::slice::from_ref(shown)).await
}

/// Like [`keep`], but for several sandboxes.
async fn keep_all(platform: &Platform, all: &[Sandbox]) -> Result<(), store::Error> {
    if all.is_empty() {
        return Ok(());
    }
    let moved = match platform.store.moved_all(all).await {
        // A damaged row must not block the updates of other sandboxes.
        Err(store::Error::Damaged(_)) if all.len() > 1 => {
            for shown in all {
                if let Ok(moved) = platform.store.moved(shown).await {
                    kept(platform, shown, moved).await?;
                }
            }
            return Ok(());
        }
        moved => moved?,
    };
    for (shown, moved) in all.iter().zip(moved) {
        kept(platform, shown, moved).await?;
    }
    Ok(())
}

/// Completes an update of the store. If the store does not know the sandbox, adds it. If the sandbox has
/// ended, records the end in the audit log and deletes the node's record.
async fn kept(platform: &Platform, shown: &Sandbox, moved: bool) -> Result<(), store::Error> {
    if !moved && platform.store.sandbox(&shown.project, shown.id.as_str()).await?.is_none() {
        platform.store.adopt(shown).await?;
    }
    if shown.state.is_terminal() {
        if moved {
            let reason = shown.reason.map_or("", EndReason::name);
            let entry = Entry::new(clock::wall_ms(), Act::SandboxEnd).project(&shown.project);
            platform.audit.record(entry.sandbox(&shown.id).detail(reason));
        }
        if let Err(error) = platform.node.forget(&shown.id) {
            tracing::warn!(
                sandbox = %shown.id,
                error = node::error::chain(&error),
                "cannot remove the node's record of an ended sandbox; will retry"
            );
        }
    }
    Ok(())
}

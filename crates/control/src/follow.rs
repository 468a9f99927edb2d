//! Keeping the store true to the machine.
//!
//! The node is the authority on what runs; the store on what was asked for and what became of it. The node tells the end of a
//! sandbox until the store has it, and only then forgets it. What the store lacks is put there: an empty store never ends
//! a sandbox.

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

/// Changes that are written at once: one transaction for a burst of creates.
const CHANGES_AT_ONCE: usize = 64;
/// Everything is compared this often, whatever was heard.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// What could not be written to the store is tried again this often.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// How long the end of a sandbox is remembered. A cause must be there a day later; a week is for people.
const REMEMBER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Layers that nobody uses are removed, and old ends forgotten, this often.
const TIDY_EVERY: Duration = Duration::from_secs(600);

/// When keys were last used is written this often.
const NOTE_USE_EVERY: Duration = Duration::from_secs(60);

/// Makes the store true to the machine, once, before anything is served.
///
/// # Errors
/// The store does not answer.
pub async fn begin(platform: &Platform) -> Result<(), store::Error> {
    for project in platform.store.projects().await? {
        platform.node.set_quota(&project.name, project.quota.disk_bytes);
    }
    let stored: HashMap<_, _> =
        platform.store.live().await?.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)).collect();
    for shown in platform.node.list() {
        // After a restart nearly all are as they were: only what differs is written.
        if stored.get(&shown.id).is_none_or(|known| known.state != shown.state) {
            keep(platform, &shown).await?;
        }
    }
    for sandbox in stored.into_values() {
        if platform.node.find(&sandbox.id).is_some() {
            continue;
        }
        // The node writes down what it begins before it does: what it does not know was never begun, or its disk is new.
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

/// Keeps it true from then on.
pub async fn follow(platform: Arc<Platform>) {
    let mut events = platform.node.events();
    loop {
        let until = Instant::now() + COMPARE_EVERY;
        // One change is written when it is heard; what could not be written, or was missed, is found by comparing.
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

/// A change, and those that were told while the ones before were written: all are written at once.
fn changes(events: &mut Receiver<SandboxEvent>, first: Sandbox) -> Vec<Sandbox> {
    let mut changed = vec![first];
    while changed.len() < CHANGES_AT_ONCE
        && let Ok(event) = events.try_recv()
    {
        if let SandboxEvent::Changed { sandbox } = event {
            changed.push(*sandbox);
        }
    }
    // That it was asked for was written down by whoever asked.
    changed.retain(|sandbox| sandbox.state != SandboxState::Starting);
    changed
}

/// Writes down what is decided about what leaves sandboxes.
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

/// Writes when keys were last used. What the store does not take is tried again with the next.
pub async fn note_use(platform: Arc<Platform>) {
    loop {
        tokio::time::sleep(NOTE_USE_EVERY).await;
        let used_ms = platform.accounts.take_used();
        if !used_ms.is_empty() && platform.store.keys_used(&used_ms).await.is_err() {
            platform.accounts.put_back_used(used_ms);
        }
    }
}

/// Has the store do what it could not do before, or what is due.
pub async fn look_after(platform: Arc<Platform>) {
    loop {
        platform.store.time_is_due(UPKEEP_EVERY).await;
        platform.store.upkeep().await;
    }
}

/// Forgets what is old, and removes layers that nobody uses.
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

/// Has the store take note of a sandbox, and the node forget it if it has ended.
async fn keep(platform: &Platform, shown: &Sandbox) -> Result<(), store::Error> {
    keep_all(platform, std::slice::from_ref(shown)).await
}

/// The same of several.
async fn keep_all(platform: &Platform, all: &[Sandbox]) -> Result<(), store::Error> {
    if all.is_empty() {
        return Ok(());
    }
    let moved = match platform.store.moved_all(all).await {
        // One that is damaged keeps nobody else from being written.
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

/// What is done once the store has taken note of a sandbox, or found nothing new in it.
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

//! Recovery when a node starts: compares the journal with the sandboxes on this machine.
//!
//! ```text
//! record                    sandbox                action                               end state
//! starting                  any                    removed: no client knows it yet      lost, interrupted
//! running                   alive                  taken over, with all its execs
//! paused                    alive                  taken over, and frozen again if it runs
//! running, paused           unknown                taken over; waits for its backend
//! running, paused           dead or missing        removed                              lost, died or host_reboot
//! stopping                  any                    removed                              the recorded reason
//! unreadable                alive                  left alone, not reachable            lost, record_damaged
//! unreadable                dead or missing        removed                              lost, record_damaged
//! none                      orphaned               removed
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::sandbox::{EndReason, SandboxState};
use guest_client::link::PauseState;
use guest_client::sandbox::Sandbox;
use host::clock;
use host::error::Error;
use runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::create::INBOX;
use crate::Node;
use crate::driver::Beginning;
use crate::journal::SandboxRecord;
use crate::shared::{Handles, NodeState};

impl Node {
    /// Takes over running sandboxes, and removes incomplete, dead and orphaned ones.
    pub(crate) async fn recover(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let mut there: HashMap<_, (Arc<dyn Runtime>, runtime::Listed)> = HashMap::new();
        let mut away = HashMap::new();
        for runtime in shared.choice.runtimes.iter().chain(&shared.choice.kept) {
            match runtime.list().await {
                Ok(found) => {
                    there.extend(found.into_iter().map(|one| (one.id.clone(), (Arc::clone(runtime), one))));
                }
                // The state of this backend's sandboxes is unknown, so their drivers wait for the backend.
                Err(error @ (runtime::Error::Unavailable { .. } | runtime::Error::Unsupported { .. }))
                    if runtime.properties().takes_images =>
                {
                    tracing::warn!(backend = runtime.name(), "{error}");
                    away.insert(runtime.name().to_owned(), Arc::clone(runtime));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let records = shared.journal.load()?;
        let lost = shared.journal.lost()?;
        let mut handles = shared.handles();
        for mut record in records {
            if !record.ports.has_all_tokens() {
                // The record is from an earlier release, which had fewer kinds of tokens.
                record.ports = record.ports.with_all_tokens()?;
                shared.journal.save(&record)?;
            }
            let found = there.remove(&record.sandbox.id);
            let living = found.filter(|(_, listed)| listed.alive).map(|(runtime, _)| runtime);
            let living = living.or_else(|| away.get(&record.runtime).cloned());
            let living = living.filter(|_| record.boot == shared.boot);
            let beginning = match (record.sandbox.state, record.sandbox.reason) {
                (SandboxState::Ended | SandboxState::Lost, _) => None,
                (SandboxState::Running | SandboxState::Paused, _) if living.is_some() => {
                    Some(Beginning::Adopt)
                }
                (SandboxState::Stopping, Some(reason)) => Some(Beginning::End(reason)),
                (SandboxState::Starting, _) => Some(Beginning::End(EndReason::Interrupted)),
                (SandboxState::Running | SandboxState::Paused | SandboxState::Stopping, _) => {
                    Some(Beginning::End(shared.absent(&record)))
                }
            };
            match (beginning, living) {
                (Some(Beginning::Adopt), Some(runtime)) => self.adopt(record, runtime, &mut handles),
                (Some(beginning), _) => drop(self.begin(record, beginning, &mut handles)),
                (None, _) => self.remember(record, &mut handles),
            }
        }
        drop(handles);
        for (id, (runtime, listed)) in there {
            if listed.alive && lost.contains(&id) {
                // The sandbox's project and policy are unknown. The guest ends the sandbox when its time to
                // live expires.
                tracing::error!(sandbox = %id, "sandbox is running but its record is lost; no client can reach the sandbox, and it runs until its time to live expires");
            } else if !listed.owned {
                tracing::warn!(sandbox = %id, "removing orphaned sandbox");
                tokio::spawn(async move { runtime.stop(&id, Duration::ZERO).await });
            }
        }
        Ok(())
    }

    /// Returns true if the record of a sandbox was lost.
    pub fn has_lost_record(&self, id: &SandboxId) -> bool {
        self.shared.journal.lost().is_ok_and(|lost| lost.contains(id))
    }

    /// Takes over a sandbox from an earlier server process. The deadlines of its execs are read from the
    /// guest at once.
    fn adopt(&self, record: SandboxRecord, runtime: Arc<dyn Runtime>, handles: &mut Handles) {
        let (tell, inbox) = mpsc::channel(INBOX);
        let handle = Arc::new(self.handle_of(record, tell));
        let memory_bytes = handle.shown().limits.memory_bytes;
        let sandbox = Sandbox::attach(runtime, handle.id().clone(), memory_bytes);
        if handle.state() == SandboxState::Paused {
            sandbox.link().set_pause(PauseState::Changing);
        }
        handle.hold(Arc::new(sandbox));
        handle.look_at(Instant::now());
        self.drive(&handle, inbox, Beginning::Adopt, handles);
    }

    /// Keeps a sandbox that has ended until the control plane has recorded its end.
    fn remember(&self, record: SandboxRecord, handles: &mut Handles) {
        let (tell, _) = mpsc::channel(INBOX);
        let handle = self.handle_of(record, tell);
        handles.insert(handle.id().clone(), Arc::new(handle));
    }
}

impl NodeState {
    /// Returns the end reason for a recorded sandbox that is no longer alive.
    fn absent(&self, record: &SandboxRecord) -> EndReason {
        if record.boot != self.boot {
            EndReason::HostReboot
        } else if clock::boot_ms() >= record.expires_boot_ms {
            EndReason::Expired
        } else {
            EndReason::Died
        }
    }
}

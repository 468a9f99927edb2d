//! The only way to change a sandbox's record: the journal is written first, then the record in memory is
//! replaced, and then subscribers are notified.

use api::sandbox::SandboxEvent;
use api::trace::STEP;
use host::clock;
use host::error::{Error, chain};
use tracing::info_span;

use crate::handle::Handle;
use crate::journal::SandboxRecord;
use crate::lifecycle::Phase;
use crate::shared::NodeState;

impl NodeState {
    /// Changes the record of a sandbox and returns the new record. If `change` or the journal fails, nothing
    /// is changed.
    pub(crate) fn update(
        &self,
        handle: &Handle,
        change: impl FnOnce(&mut SandboxRecord) -> Result<(), Error>,
    ) -> Result<SandboxRecord, Error> {
        let _alone = handle.alone();
        let before = handle.record();
        let mut record = before.clone();
        change(&mut record)?;
        self.save(&record)?;
        self.publish(handle, &before, &record);
        Ok(record)
    }

    /// Moves a sandbox to a new phase, and records the error that caused the change, if any. A phase is a
    /// fact and cannot be refused: if the journal fails, clients still see the new phase, but a restarted
    /// server finds the sandbox in its last journalled phase.
    pub(crate) fn enter(&self, handle: &Handle, phase: Phase, error: Option<api::Error>) {
        let _alone = handle.alone();
        let before = handle.record();
        let mut record = before.clone();
        phase.mark(&mut record.sandbox, clock::wall_ms());
        record.sandbox.error = error.or(record.sandbox.error);
        // The record of a pooled sandbox is removed at its end, not updated.
        if !(record.pooled && record.sandbox.state.is_terminal())
            && let Err(error) = self.save(&record)
        {
            tracing::error!(sandbox = %handle.id(), error = chain(&error), "cannot journal the state of the sandbox");
        }
        self.publish(handle, &before, &record);
    }

    fn save(&self, record: &SandboxRecord) -> Result<(), Error> {
        info_span!(target: STEP, "journal").in_scope(|| self.journal.save(record))
    }

    /// Makes a record visible. The caller holds the lock of the record, so that subscribers see all changes
    /// in order.
    fn publish(&self, handle: &Handle, before: &SandboxRecord, record: &SandboxRecord) {
        handle.replace(record.clone());
        if !record.pooled && record.sandbox != before.sandbox {
            self.say(SandboxEvent::Changed { sandbox: Box::new(record.sandbox.clone()) });
        }
    }
}

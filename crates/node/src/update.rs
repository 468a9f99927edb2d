//! The one way to change the record of a sandbox: journal first, then memory, then subscribers.

use api::sandbox::SandboxEvent;
use api::trace::STEP;
use tracing::info_span;

use crate::clock;
use crate::entry::Entry;
use crate::error::{Error, chain};
use crate::journal::Record;
use crate::lifecycle::Phase;
use crate::live::Shared;

impl Shared {
    /// Changes the record of a sandbox and returns the new record. If `change` or the journal fails, nothing has changed.
    pub(crate) fn update(
        &self,
        entry: &Entry,
        change: impl FnOnce(&mut Record) -> Result<(), Error>,
    ) -> Result<Record, Error> {
        let _alone = entry.alone();
        let before = entry.record();
        let mut record = before.clone();
        change(&mut record)?;
        self.save(&record)?;
        self.publish(entry, &before, &record);
        Ok(record)
    }

    /// Moves a sandbox to another phase, with the error that caused it. A phase is a fact and cannot be refused: if the journal
    /// fails, clients still see the phase, but a server that is restarted finds the sandbox in its last journalled phase.
    pub(crate) fn enter(&self, entry: &Entry, phase: Phase, error: Option<api::Error>) {
        let _alone = entry.alone();
        let before = entry.record();
        let mut record = before.clone();
        phase.mark(&mut record.sandbox, clock::wall_ms());
        record.sandbox.error = error.or(record.sandbox.error);
        // The record of a pooled sandbox is removed at its end, not updated.
        if !(record.pooled && record.sandbox.state.is_terminal())
            && let Err(error) = self.save(&record)
        {
            tracing::error!(sandbox = %entry.id(), error = chain(&error), "cannot journal the state of the sandbox");
        }
        self.publish(entry, &before, &record);
    }

    fn save(&self, record: &Record) -> Result<(), Error> {
        info_span!(target: STEP, "journal").in_scope(|| self.journal.save(record))
    }

    /// Makes a record visible. The caller holds the lock of the record, so that subscribers see changes in their order.
    fn publish(&self, entry: &Entry, before: &Record, record: &Record) {
        entry.replace(record.clone());
        if !record.pooled && record.sandbox != before.sandbox {
            self.say(SandboxEvent::Changed { sandbox: Box::new(record.sandbox.clone()) });
        }
    }
}

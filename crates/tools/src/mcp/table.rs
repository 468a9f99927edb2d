//! The sessions over HTTP, with their owners and limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{Error, ErrorCode, Layer, Ran, Retry};

use super::session::McpSession;

/// Table of sessions by ID.
pub(super) struct SessionTable {
    sessions_max: usize,
    sessions_of_owner_max: usize,
    rows: Mutex<Rows>,
}

/// Reserved slot for one more session. Dropping the reservation frees the slot if it was not used.
pub(super) struct SessionReservation {
    table: Arc<SessionTable>,
    owner: String,
}

#[derive(Default)]
struct Rows {
    sessions: HashMap<String, SessionRow>,
    /// Owners of sessions that are being opened and have no ID yet.
    opening: Vec<String>,
}

struct SessionRow {
    owner: String,
    session: Arc<McpSession>,
}

impl SessionTable {
    pub(super) fn new(sessions_max: usize, sessions_of_owner_max: usize) -> Arc<Self> {
        Arc::new(Self { sessions_max, sessions_of_owner_max, rows: Mutex::default() })
    }

    /// Reserves a slot for one more session of an owner.
    ///
    /// # Errors
    /// Returns an error if the owner has as many sessions as allowed and all are in use (`quota_exceeded`),
    /// or there are too many sessions in total (`capacity`). Sessions of other owners are never evicted.
    pub(super) fn place(self: &Arc<Self>, owner: &str) -> Result<SessionReservation, Error> {
        let mut rows = self.rows();
        if rows.in_use(owner) >= self.sessions_of_owner_max {
            return Err(too_many(self.sessions_of_owner_max));
        }
        if rows.sessions.len() + rows.opening.len() >= self.sessions_max {
            return Err(full());
        }
        rows.opening.push(owner.to_owned());
        Ok(SessionReservation { table: Arc::clone(self), owner: owner.to_owned() })
    }

    /// Returns the session with this ID if this owner opened it. For other owners, the session does not
    /// exist.
    pub(super) fn find(&self, id: &str, owner: &str) -> Option<Arc<McpSession>> {
        self.rows().sessions.get(id).filter(|row| row.owner == owner).map(|row| Arc::clone(&row.session))
    }

    /// Ends a session and removes it from the table. Does nothing if the session does not exist.
    pub(super) fn end(&self, id: &str) {
        self.rows().end(id);
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionReservation {
    /// Registers a session in the reserved slot.
    ///
    /// Many clients disconnect without closing their session. If the owner has reached its limit, the session
    /// that has been idle longest is therefore evicted.
    pub(super) fn take(self, id: String, session: Arc<McpSession>) {
        let mut rows = self.table.rows();
        if rows.count(&self.owner) >= self.table.sessions_of_owner_max
            && let Some(unused) = rows.longest_unused(&self.owner)
        {
            rows.end(&unused);
        }
        rows.sessions.insert(id, SessionRow { owner: self.owner.clone(), session });
    }
}

impl Drop for SessionReservation {
    fn drop(&mut self) {
        let mut rows = self.table.rows();
        if let Some(at) = rows.opening.iter().position(|owner| *owner == self.owner) {
            rows.opening.swap_remove(at);
        }
    }
}

impl Rows {
    fn count(&self, owner: &str) -> usize {
        self.of(owner).count()
    }

    /// Counts the sessions that cannot be evicted: sessions in use and sessions being opened.
    fn in_use(&self, owner: &str) -> usize {
        let used = self.of(owner).filter(|(_, row)| row.session.unused_since().is_none()).count();
        used + self.opening.iter().filter(|opening| *opening == owner).count()
    }

    fn longest_unused(&self, owner: &str) -> Option<String> {
        let unused = self.of(owner).filter_map(|(id, row)| Some((row.session.unused_since()?, id)));
        unused.min().map(|(_, id)| id.clone())
    }

    fn of(&self, owner: &str) -> impl Iterator<Item = (&String, &SessionRow)> {
        self.sessions.iter().filter(move |(_, row)| row.owner == owner)
    }

    fn end(&mut self, id: &str) {
        if let Some(row) = self.sessions.remove(id) {
            row.session.end();
        }
    }
}

fn too_many(most: usize) -> Error {
    Error {
        code: ErrorCode::QuotaExceeded,
        message: format!("{most} MCP sessions of this key are in use, the maximum"),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "End one of these sessions, or wait until one is no longer in use.".into(),
    }
}

fn full() -> Error {
    Error {
        code: ErrorCode::Capacity,
        message: "the server has reached its maximum number of MCP sessions".into(),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Retry later.".into(),
    }
}

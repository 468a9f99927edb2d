//! Stores sessions, and the sandbox that each session uses. The files of sessions are stored by the node
//! ([`node::folder`]).

use std::collections::VecDeque;

use api::server::{PAGE_MAX, Page};
use api::session::Session;
use api::{ExecId, SessionId};
use serde::{Deserialize, Serialize};

use super::history::{Cursor, items_of_page};
use super::read::For;
use super::{Error, Lasting, Store, begin, body, failed, integer, parse};

/// Maximum number of stored sessions of one project.
pub const SESSIONS_MAX: u64 = 100_000;

/// Stored form of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The public part.
    pub session: Session,
    /// Number of sandboxes that the session has released. It makes the idempotency key of the session's next
    /// create request unique.
    #[serde(default)]
    pub spent: u64,
    /// True if the sandbox has its initial files. Until then, a missing file does not mean that a run removed
    /// it.
    #[serde(default)]
    pub prepared: bool,
    /// Paths of the datasets that are in the sandbox.
    #[serde(default)]
    pub placed: Vec<String>,
    /// Runs, oldest first.
    #[serde(default)]
    pub runs: VecDeque<ExecId>,
}

impl Store {
    /// Saves a new session, at most one per idempotency key. If an earlier request with the same key created
    /// a session, returns that session.
    ///
    /// # Errors
    /// Returns an error if the idempotency key was used for a different request, the project has the maximum
    /// number of sessions, or the store does not respond.
    pub async fn create_session(
        &self,
        record: &SessionRecord,
        idempotency: Option<(&str, [u8; 32])>,
    ) -> Result<Option<SessionRecord>, Error> {
        const ACT: &str = "save a session";
        let Session { id, project, created_at_ms, .. } = &record.session;
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        if let Some((key, hash)) = idempotency {
            let known: Option<(Vec<u8>, String)> = sqlx::query_as(
                "SELECT request_hash, body FROM sessions WHERE project = ? AND idempotency_key = ?",
            )
            .bind(project)
            .bind(key)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
            match known {
                Some((known, _)) if known != hash => return Err(Error::Conflict),
                Some((_, text)) => return parse(id.as_str(), &text).map(Some),
                None => {}
            }
        }
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM sessions WHERE project = ?")
            .bind(project)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        if count >= integer(SESSIONS_MAX) {
            return Err(Error::Quota { what: "sessions", most: SESSIONS_MAX });
        }
        sqlx::query(
            "INSERT INTO sessions (id, project, created_at_ms, changed_at_ms, idempotency_key, request_hash, body)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(id.as_str())
        .bind(project)
        .bind(integer(*created_at_ms))
        .bind(integer(*created_at_ms))
        .bind(idempotency.map(|(key, _)| key))
        .bind(idempotency.map(|(_, hash)| hash.to_vec()))
        .bind(body(id.as_str(), record)?)
        .execute(&mut *transaction)
        .await
        .map_err(failed(ACT))?;
        transaction.commit().await.map_err(failed(ACT))?;
        Ok(None)
    }

    /// Returns a session of a project.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or the row is damaged.
    pub async fn session(&self, project: &str, id: &SessionId) -> Result<Option<SessionRecord>, Error> {
        const ACT: &str = "look up a session";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        let row: Option<String> =
            sqlx::query_scalar("SELECT body FROM sessions WHERE project = ? AND id = ?")
                .bind(project)
                .bind(id.as_str())
                .fetch_optional(&mut *reader)
                .await
                .map_err(failed(ACT))?;
        row.map(|text| parse(id.as_str(), &text)).transpose()
    }

    /// Returns a page of a project's sessions, newest first.
    ///
    /// # Errors
    /// Returns an error if no page returned this cursor, the store does not respond, or a row is damaged.
    pub async fn sessions(
        &self,
        project: &str,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<Session>, Error> {
        const ACT: &str = "list sessions";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        let limit = limit.clamp(1, PAGE_MAX);
        let after = cursor.map(Cursor::parse).transpose()?;
        let rows = sqlx::query_as(
            "SELECT id, body FROM sessions WHERE project = ? AND (created_at_ms, id) < (?, ?)
             ORDER BY created_at_ms DESC, id DESC LIMIT ?",
        )
        .bind(project)
        .bind(after.as_ref().map_or(i64::MAX, |after| integer(after.created_at_ms)))
        .bind(after.as_ref().map_or("", |after| after.id.as_str()))
        .bind(limit + 1)
        .fetch(&mut *reader);
        let session = |id: &str, text: &str| parse::<SessionRecord>(id, text).map(|record| record.session);
        let (items, more) = items_of_page(rows, limit, ACT, session).await?;
        let next = items
            .last()
            .filter(|_| more)
            .map(|last| Cursor { created_at_ms: last.created_at_ms, id: last.id.to_string() }.spell());
        Ok(Page { items, next })
    }

    /// Saves the current state of a session. Returns false if the session no longer exists.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn put_session(&self, record: &SessionRecord, now_ms: u64) -> Result<bool, Error> {
        const ACT: &str = "save a session";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        let id = record.session.id.as_str();
        let done = sqlx::query("UPDATE sessions SET body = ?, changed_at_ms = ? WHERE id = ?")
            .bind(body(id, record)?)
            .bind(integer(now_ms))
            .bind(id)
            .execute(&mut *connection)
            .await
            .map_err(failed(ACT))?;
        Ok(done.rows_affected() > 0)
    }

    /// Returns up to one page of sessions that have not changed since `before_ms`.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn old_sessions(&self, before_ms: u64) -> Result<Vec<Session>, Error> {
        const ACT: &str = "list old sessions";
        let mut reader = self.reader(For::Server, ACT).await?;
        let rows: Vec<(String, String)> =
            sqlx::query_as("SELECT id, body FROM sessions WHERE changed_at_ms < ? LIMIT ?")
                .bind(integer(before_ms))
                .bind(PAGE_MAX)
                .fetch_all(&mut *reader)
                .await
                .map_err(failed(ACT))?;
        // A damaged session must not prevent the deletion of other sessions.
        let read = |(id, text): &(String, String)| match parse::<SessionRecord>(id, text) {
            Ok(record) => Some(record.session),
            Err(error) => {
                tracing::error!(session = id, %error, "cannot parse a stored session");
                None
            }
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    /// Deletes a session.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn forget_session(&self, id: &SessionId) -> Result<(), Error> {
        const ACT: &str = "delete a session";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        sqlx::query("DELETE FROM sessions WHERE id = ?")
            .bind(id.as_str())
            .execute(&mut *connection)
            .await
            .map_err(failed(ACT))
            .map(drop)
    }
}

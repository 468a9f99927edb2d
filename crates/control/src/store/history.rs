//! Lookup of sandboxes. A project never sees the sandboxes of another project.

use api::SandboxId;
use api::sandbox::Sandbox;
use api::server::{PAGE_MAX, Page};
use api::trace::STEP;
use tracing::{Instrument as _, info_span};

use super::read::For;
use super::{Error, Store, failed, integer, parse};

/// Position after which a page begins. The positions of rows never change. New rows are newer than the first
/// page, so they do not affect later pages.
pub(super) struct Cursor {
    pub created_at_ms: u64,
    pub id: String,
}

impl Store {
    /// Returns the project's sandbox with this ID or, if there is none, its live sandbox with this name.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or the row is damaged.
    pub async fn sandbox(&self, project: &str, id_or_name: &str) -> Result<Option<Sandbox>, Error> {
        const ACT: &str = "look up a sandbox";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        let row: Option<(String, String)> = sqlx::query_as(
            "SELECT id, body FROM sandboxes WHERE project = ?1 AND id = ?2
             UNION ALL
             SELECT id, body FROM live_sandboxes WHERE project = ?1 AND name = ?2 AND id <> ?2
             LIMIT 1",
        )
        .bind(project)
        .bind(id_or_name)
        .fetch_optional(&mut *reader)
        .instrument(info_span!(target: STEP, "store", what = ACT))
        .await
        .map_err(failed(ACT))?;
        row.map(|(id, body)| parse(&id, &body)).transpose()
    }

    /// Returns true if a sandbox was requested with this idempotency key.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn knows_key(&self, project: &str, key: &str) -> Result<bool, Error> {
        const ACT: &str = "look up a request";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sandboxes WHERE project = ? AND idempotency_key = ?)",
        )
        .bind(project)
        .bind(key)
        .fetch_one(&mut *reader)
        .instrument(info_span!(target: STEP, "store", what = ACT))
        .await
        .map_err(failed(ACT))
    }

    /// Returns a page of a project's sandboxes, newest first.
    ///
    /// # Errors
    /// Returns an error if no page returned this cursor, the store does not respond, or a row is damaged.
    pub async fn sandboxes(
        &self,
        project: &str,
        live_only: bool,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<Sandbox>, Error> {
        const ACT: &str = "list sandboxes";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        let query = if live_only {
            "SELECT id, body FROM live_sandboxes WHERE project = ? AND (created_at_ms, id) < (?, ?)
             ORDER BY created_at_ms DESC, id DESC LIMIT ?"
        } else {
            "SELECT id, body FROM sandboxes WHERE project = ? AND (created_at_ms, id) < (?, ?)
             ORDER BY created_at_ms DESC, id DESC LIMIT ?"
        };
        let limit = limit.clamp(1, PAGE_MAX);
        let after = cursor.map(Cursor::parse).transpose()?;
        let rows: Vec<(String, String)> = sqlx::query_as(query)
            .bind(project)
            .bind(after.as_ref().map_or(i64::MAX, |after| integer(after.created_at_ms)))
            .bind(after.as_ref().map_or("", |after| after.id.as_str()))
            // Fetch one row more than fits on the page, to detect whether another page follows.
            .bind(limit + 1)
            .fetch_all(&mut *reader)
            .await
            .map_err(failed(ACT))?;
        let mut items = rows.iter().map(|(id, body)| parse(id, body)).collect::<Result<Vec<Sandbox>, _>>()?;
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().filter(|_| more).map(|last| Cursor::of(last).spell());
        Ok(Page { items, next })
    }

    /// Returns the live sandboxes of all projects.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or a row is damaged.
    pub async fn live(&self) -> Result<Vec<Sandbox>, Error> {
        const ACT: &str = "list live sandboxes";
        let mut reader = self.reader(For::Server, ACT).await?;
        let rows: Vec<(String, String)> = sqlx::query_as("SELECT id, body FROM live_sandboxes")
            .fetch_all(&mut *reader)
            .await
            .map_err(failed(ACT))?;
        rows.iter().map(|(id, body)| parse(id, body)).collect()
    }
}

impl Cursor {
    fn of(sandbox: &Sandbox) -> Self {
        Self { created_at_ms: sandbox.created_at_ms, id: sandbox.id.to_string() }
    }

    pub fn spell(&self) -> String {
        format!("{:x}-{}", self.created_at_ms, self.id)
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        let (time, id) = text.split_once('-').ok_or(Error::Cursor)?;
        let created_at_ms = u64::from_str_radix(time, 16).map_err(|_| Error::Cursor)?;
        // Session IDs have the same form, so they also pass this check.
        let id = id.parse::<SandboxId>().map_err(|_| Error::Cursor)?.to_string();
        let cursor = Self { created_at_ms, id };
        // A number can be written in several ways, such as with leading zeros. Accept only the form that the
        // server writes.
        if cursor.spell() == text { Ok(cursor) } else { Err(Error::Cursor) }
    }
}

//! Lookup of sandboxes. A project never sees the sandboxes of another project.

use api::SandboxId;
use api::sandbox::Sandbox;
use api::server::{PAGE_MAX, Page};
use api::trace::STEP;
use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use tracing::{Instrument as _, info_span};

use super::read::For;
use super::{Error, Store, failed, integer, parse};

/// Size of the rows of a page, after which the page ends. The policy and the labels of a sandbox can take 80
/// KiB, so a number of items is no bound on memory.
const PAGE_BYTES: usize = 1 << 20;

/// Position after which a page begins. The positions of rows never change. New rows are newer than the first
/// page, so they do not affect later pages.
pub(super) struct Cursor {
    pub created_at_ms: u64,
    pub id: String,
}

/// Parses the rows of a page, up to `limit` rows or `PAGE_BYTES`. Returns true if another row follows.
pub(super) async fn items_of_page<T>(
    mut rows: BoxStream<'_, Result<(String, String), sqlx::Error>>,
    limit: u32,
    act: &'static str,
    parse: impl Fn(&str, &str) -> Result<T, Error>,
) -> Result<(Vec<T>, bool), Error> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    while let Some((id, body)) = rows.try_next().await.map_err(failed(act))? {
        bytes += body.len();
        // A page has at least one item, so that the next page begins after it.
        if items.len() >= limit as usize || (bytes > PAGE_BYTES && !items.is_empty()) {
            return Ok((items, true));
        }
        items.push(parse(&id, &body)?);
    }
    Ok((items, false))
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
        let rows = sqlx::query_as(query)
            .bind(project)
            .bind(after.as_ref().map_or(i64::MAX, |after| integer(after.created_at_ms)))
            .bind(after.as_ref().map_or("", |after| after.id.as_str()))
            // Fetch one row more than fits on the page, to detect whether another page follows.
            .bind(limit + 1)
            .fetch(&mut *reader);
        let (items, more) = items_of_page(rows, limit, ACT, parse::<Sandbox>).await?;
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

#[cfg(test)]
mod fuzz;

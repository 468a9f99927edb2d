//! The row of a sandbox in the store, from the create request until the sandbox ends. The row is created
//! once, within the quota, and its state only moves forward.

use api::SandboxId;
use api::account::Quota;
use api::sandbox::{EndReason, Sandbox, SandboxState};
use sqlx::sqlite::SqliteConnection;

use super::account::refused;
use super::{Error, Lasting, Store, Writer, begin, body, failed, integer, parse};

/// Name of the operation in the errors of transactions that save the states of sandboxes.
const KEEP: &str = "save the state of a sandbox";
/// Maximum number of rows deleted in one transaction, so that other writers do not wait long.
const PRUNED_AT_ONCE: u32 = 1000;

/// A request for a sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The sandbox to create. Its state is stored as `starting`, regardless of the value here.
    pub sandbox: &'a Sandbox,
    /// The project's quota.
    pub quota: &'a Quota,
    /// The caller's idempotency key, and the SHA-256 of the request.
    pub idempotency: Option<(&'a str, [u8; 32])>,
}

/// Result of a request. In both cases, the sandbox is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// The request was recorded, and the caller must start the sandbox.
    New(Sandbox),
    /// The same request was made before; this is the current state of its sandbox.
    Known(Sandbox),
}

impl Store {
    /// Records the request for a sandbox, before any part of the sandbox is created.
    ///
    /// An idempotency key stays in use for as long as the sandbox's row exists, unless the sandbox never ran
    /// (`start_failed`, `interrupted`). If the caller's task is dropped while it waits, it cannot know
    /// whether the row was written. Therefore sandboxes are created in separate tasks, not in the task of the
    /// request.
    ///
    /// # Errors
    /// Returns an error if the idempotency key was used for a different request, the name is taken, the quota
    /// is used up, or the project does not exist.
    pub async fn request(&self, ask: &Request<'_>) -> Result<Requested, Error> {
        const ACT: &str = "save a request for a sandbox";
        let project = &ask.sandbox.project;
        let sandbox = Sandbox {
            state: SandboxState::Starting,
            reason: None,
            error: None,
            ended_at_ms: None,
            ..ask.sandbox.clone()
        };
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        // Usually there is no conflict, and a single statement is enough. Otherwise, the transaction below
        // determines the conflict.
        if insert_if_fits(&mut connection, &sandbox, ask).await? {
            return Ok(Requested::New(sandbox));
        }
        let mut transaction = begin(&mut connection, ACT).await?;
        if let Some((key, hash)) = ask.idempotency {
            let known: Option<(String, Vec<u8>, String)> = sqlx::query_as(
                "SELECT id, request_hash, body FROM sandboxes WHERE project = ? AND idempotency_key = ?",
            )
            .bind(project)
            .bind(key)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
            if let Some((id, known, body)) = known {
                return if known == hash {
                    Ok(Requested::Known(parse(&id, &body)?))
                } else {
                    Err(Error::Conflict)
                };
            }
        }
        fits(&mut transaction, ask).await?;
        insert(&mut transaction, &sandbox, ask.idempotency).await?;
        transaction.commit().await.map_err(failed(ACT))?;
        Ok(Requested::New(sandbox))
    }

    /// Saves changes to a sandbox: its state, the reason why it ended, its idle time. Other parameters stay
    /// as requested. Returns false if the store did not change: the sandbox is unknown, has ended, is
    /// unchanged, or already has a later state in the store.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or the row is damaged.
    pub async fn moved(&self, sandbox: &Sandbox) -> Result<bool, Error> {
        Ok(self.moved_all(std::slice::from_ref(sandbox)).await? == [true])
    }

    /// Like [`Store::moved`], but for several sandboxes in one transaction.
    ///
    /// # Errors
    /// See [`Store::moved`]. After an error, none of the changes is saved.
    pub async fn moved_all(&self, sandboxes: &[Sandbox]) -> Result<Vec<bool>, Error> {
        let mut connection = self.connection(Lasting::Process, KEEP).await?;
        let mut transaction = begin(&mut connection, KEEP).await?;
        let mut moved = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            moved.push(moved_one(&mut transaction, sandbox).await?);
        }
        transaction.commit().await.map_err(failed(KEEP))?;
        Ok(moved)
    }

    /// Deletes the row of a requested sandbox if no part of the sandbox was created. Returns true if the row
    /// existed.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn withdraw(&self, id: &SandboxId) -> Result<bool, Error> {
        const ACT: &str = "withdraw a request for a sandbox";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        let done = sqlx::query("DELETE FROM sandboxes WHERE id = ? AND state = 'starting'")
            .bind(id.as_str())
            .execute(&mut *connection)
            .await
            .map_err(failed(ACT))?;
        Ok(done.rows_affected() > 0)
    }

    /// Adds a sandbox that the node has and the store lacks, because the store was lost or restored from a
    /// copy. The sandbox already exists, so neither quota nor name can prevent this: an unknown project is
    /// created with the default quota, and a name that another live sandbox has is omitted. Returns false if
    /// the store already has the sandbox.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn adopt(&self, sandbox: &Sandbox) -> Result<bool, Error> {
        const ACT: &str = "add a running sandbox";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        let known: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sandboxes WHERE id = ?)")
            .bind(sandbox.id.as_str())
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        if known {
            return Ok(false);
        }
        sqlx::query(
            "INSERT INTO projects (name, quota, created_at_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&sandbox.project)
        .bind(body(&sandbox.project, &Quota::default())?)
        .bind(integer(sandbox.created_at_ms))
        .execute(&mut *transaction)
        .await
        .map_err(failed(ACT))?;
        let mut sandbox = sandbox.clone();
        if let Some(name) = &sandbox.name
            && !sandbox.state.is_terminal()
            && name_is_taken(&mut transaction, &sandbox.project, name.as_str()).await?
        {
            sandbox.name = None;
        }
        insert(&mut transaction, &sandbox, None).await?;
        transaction.commit().await.map_err(failed(ACT))?;
        Ok(true)
    }

    /// Deletes the sandboxes that ended before `ended_before_ms`, and returns their number.
    ///
    /// # Errors
    /// Returns an error if the store does not respond. Rows that were deleted before the failure stay
    /// deleted.
    pub async fn prune(&self, ended_before_ms: u64) -> Result<u64, Error> {
        const ACT: &str = "delete old sandboxes";
        let mut pruned = 0;
        loop {
            let mut connection = self.connection(Lasting::Process, ACT).await?;
            let mut transaction = begin(&mut connection, ACT).await?;
            let done = sqlx::query(
                "DELETE FROM sandboxes WHERE id IN
                     (SELECT id FROM sandboxes WHERE ended_at_ms IS NOT NULL AND ended_at_ms < ? LIMIT ?)",
            )
            .bind(integer(ended_before_ms))
            .bind(PRUNED_AT_ONCE)
            .execute(&mut *transaction)
            .await
            .map_err(failed(ACT))?
            .rows_affected();
            transaction.commit().await.map_err(failed(ACT))?;
            pruned += done;
            if done < u64::from(PRUNED_AT_ONCE) {
                return Ok(pruned);
            }
        }
    }
}

/// Saves the changes of one sandbox.
async fn moved_one(connection: &mut SqliteConnection, sandbox: &Sandbox) -> Result<bool, Error> {
    let id = sandbox.id.as_str();
    let known: Option<String> =
        sqlx::query_scalar("SELECT body FROM live_sandboxes WHERE id = ? AND project = ?")
            .bind(id)
            .bind(&sandbox.project)
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed(KEEP))?;
    let Some(known) = known else { return Ok(false) };
    let known: Sandbox = parse(id, &known)?;
    let Some(after) = next(&known, sandbox) else { return Ok(false) };
    let never_ran = matches!(after.reason, Some(EndReason::StartFailed | EndReason::Interrupted))
        && after.state.is_terminal();
    let done = sqlx::query(
        "UPDATE sandboxes SET state = ?, reason = ?, ended_at_ms = ?, body = ?,
                 idempotency_key = iif(?, NULL, idempotency_key), request_hash = iif(?, NULL, request_hash)
             WHERE id = ? AND state = ?",
    )
    .bind(after.state.name())
    .bind(after.reason.map(EndReason::name))
    .bind(ended_at_ms(&after))
    .bind(body(id, &after)?)
    .bind(never_ran)
    .bind(never_ran)
    .bind(id)
    .bind(known.state.name())
    .execute(&mut *connection)
    .await
    .map_err(failed(KEEP))?;
    Ok(done.rows_affected() > 0)
}

/// Returns the sandbox to save after an update to a live sandbox, or `None` if the update is outdated or
/// changes nothing.
fn next(known: &Sandbox, news: &Sandbox) -> Option<Sandbox> {
    if rank(news.state) < rank(known.state) {
        return None;
    }
    let after = Sandbox {
        state: news.state,
        reason: news.reason,
        error: news.error.clone(),
        ended_at_ms: news.ended_at_ms,
        idle_ms: news.idle_ms,
        start: news.start,
        ..known.clone()
    };
    (after != *known).then_some(after)
}

fn rank(state: SandboxState) -> u8 {
    match state {
        SandboxState::Starting => 0,
        SandboxState::Running | SandboxState::Paused => 1,
        SandboxState::Stopping => 2,
        SandboxState::Ended | SandboxState::Lost => 3,
    }
}

/// Returns the end time that [`Store::prune`] uses, or the creation time if the end time is unknown. Without
/// it, the row would be kept forever.
fn ended_at_ms(sandbox: &Sandbox) -> Option<i64> {
    sandbox.state.is_terminal().then(|| integer(sandbox.ended_at_ms.unwrap_or(sandbox.created_at_ms)))
}

async fn name_is_taken(connection: &mut SqliteConnection, project: &str, name: &str) -> Result<bool, Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM live_sandboxes WHERE project = ? AND name = ?)")
        .bind(project)
        .bind(name)
        .fetch_one(connection)
        .await
        .map_err(failed("look up a name"))
}

/// Checks that a sandbox would not exceed the quota and that its name is not taken.
async fn fits(connection: &mut SqliteConnection, ask: &Request<'_>) -> Result<(), Error> {
    let (count, memory_bytes, disk_bytes, taken): (i64, i64, i64, bool) = sqlx::query_as(
        "SELECT count(*), coalesce(sum(memory_bytes), 0), coalesce(sum(disk_bytes), 0), coalesce(max(name = ?), 0)
         FROM live_sandboxes WHERE project = ?",
    )
    .bind(ask.sandbox.name.as_ref().map(|name| name.as_str()))
    .bind(&ask.sandbox.project)
    .fetch_one(connection)
    .await
    .map_err(failed("add up the usage of a project"))?;
    if let Some(name) = ask.sandbox.name.as_ref().filter(|_| taken) {
        return Err(Error::NameTaken(name.to_string()));
    }
    let (limits, quota) = (&ask.sandbox.limits, ask.quota);
    for (what, used, more, most) in [
        ("sandboxes", count, 1, u64::from(quota.sandboxes)),
        ("memory_bytes", memory_bytes, limits.memory_bytes, quota.memory_bytes),
        ("disk_bytes", disk_bytes, limits.disk_bytes, quota.disk_bytes),
    ] {
        if used.unsigned_abs().saturating_add(more) > most {
            return Err(Error::Quota { what, most });
        }
    }
    Ok(())
}

/// Inserts the row for a request if nothing conflicts: the idempotency key is new, the quota is sufficient,
/// and the name is not taken. If the insert is refused, [`fits`] checks the same conditions again and reports
/// the violated one.
async fn insert_if_fits(writer: &mut Writer, sandbox: &Sandbox, ask: &Request<'_>) -> Result<bool, Error> {
    let (limits, quota, key) = (&sandbox.limits, ask.quota, ask.idempotency);
    let done = sqlx::query(
        "INSERT INTO sandboxes (id, project, name, state, created_at_ms, memory_bytes, disk_bytes, idempotency_key,
             request_hash, body)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
         WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE project = ?2 AND idempotency_key = ?8)
             AND (SELECT count(*) < ?11 AND coalesce(sum(memory_bytes), 0) + ?6 <= ?12
                     AND coalesce(sum(disk_bytes), 0) + ?7 <= ?13 AND coalesce(max(name = ?3), 0) = 0
                  FROM live_sandboxes WHERE project = ?2)",
    )
    .bind(sandbox.id.as_str())
    .bind(&sandbox.project)
    .bind(sandbox.name.as_ref().map(|name| name.as_str()))
    .bind(sandbox.state.name())
    .bind(integer(sandbox.created_at_ms))
    .bind(integer(limits.memory_bytes))
    .bind(integer(limits.disk_bytes))
    .bind(key.map(|(key, _)| key))
    .bind(key.as_ref().map(|(_, hash)| hash.as_slice()))
    .bind(body(sandbox.id.as_str(), sandbox)?)
    .bind(i64::from(quota.sandboxes))
    .bind(integer(quota.memory_bytes))
    .bind(integer(quota.disk_bytes))
    .execute(&mut **writer)
    .await
    .map_err(|error| refused(error, "save a sandbox", &sandbox.project))?;
    writer.had_its_turn();
    Ok(done.rows_affected() > 0)
}

async fn insert(
    connection: &mut SqliteConnection,
    sandbox: &Sandbox,
    idempotency: Option<(&str, [u8; 32])>,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO sandboxes (id, project, name, state, reason, created_at_ms, ended_at_ms, memory_bytes,
             disk_bytes, idempotency_key, request_hash, body)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(sandbox.id.as_str())
    .bind(&sandbox.project)
    .bind(sandbox.name.as_ref().map(|name| name.as_str()))
    .bind(sandbox.state.name())
    .bind(sandbox.reason.map(EndReason::name))
    .bind(integer(sandbox.created_at_ms))
    .bind(ended_at_ms(sandbox))
    .bind(integer(sandbox.limits.memory_bytes))
    .bind(integer(sandbox.limits.disk_bytes))
    .bind(idempotency.map(|(key, _)| key))
    .bind(idempotency.as_ref().map(|(_, hash)| hash.as_slice()))
    .bind(body(sandbox.id.as_str(), sandbox)?)
    .execute(connection)
    .await
    .map_err(|error| refused(error, "save a sandbox", &sandbox.project))?;
    Ok(())
}

//! Projects and keys. Every write here is on the disk when it is answered.

use api::account::{Key, Project, Quota};

use super::{Error, Lasting, Store, begin, body, failed, integer, parse};

impl Store {
    /// Makes a project, or gives it another quota.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn put_project(&self, name: &str, quota: &Quota, now_ms: u64) -> Result<Project, Error> {
        const ACT: &str = "keep a project";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        let created_at_ms: i64 = sqlx::query_scalar(
            "INSERT INTO projects (name, quota, created_at_ms) VALUES (?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET quota = excluded.quota RETURNING created_at_ms",
        )
        .bind(name)
        .bind(body(name, quota)?)
        .bind(integer(now_ms))
        .fetch_one(&mut *transaction)
        .await
        .map_err(failed(ACT))?;
        transaction.commit().await.map_err(failed(ACT))?;
        Ok(Project { name: name.into(), quota: *quota, created_at_ms: created_at_ms.unsigned_abs() })
    }

    /// All projects, by name.
    ///
    /// # Errors
    /// The store does not answer, or a row of it is damaged.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as("SELECT name, quota, created_at_ms FROM projects ORDER BY name")
                .fetch_all(&self.readers)
                .await
                .map_err(failed("list projects"))?;
        rows.into_iter().map(|(name, quota, created_at_ms)| project(name, &quota, created_at_ms)).collect()
    }

    /// A project, if there is one of this name.
    ///
    /// # Errors
    /// The store does not answer, or a row of it is damaged.
    pub async fn project(&self, name: &str) -> Result<Option<Project>, Error> {
        let row: Option<(String, i64)> =
            sqlx::query_as("SELECT quota, created_at_ms FROM projects WHERE name = ?")
                .bind(name)
                .fetch_optional(&self.readers)
                .await
                .map_err(failed("look up a project"))?;
        row.map(|(quota, created_at_ms)| project(name.to_owned(), &quota, created_at_ms)).transpose()
    }

    /// Keeps a key by the SHA-256 of its secret.
    ///
    /// # Errors
    /// Its project is not known, or its id or secret is another key's.
    pub async fn create_key(&self, key: &Key, secret_hash: &[u8; 32]) -> Result<(), Error> {
        const ACT: &str = "keep a key";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        sqlx::query(
            "INSERT INTO keys (id, project, secret_hash, created_at_ms, body) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(&key.id)
        .bind(&key.project)
        .bind(secret_hash.as_slice())
        .bind(integer(key.created_at_ms))
        .bind(body(&key.id, key)?)
        .execute(&mut *transaction)
        .await
        .map_err(|error| refused(error, ACT, &key.project))?;
        transaction.commit().await.map_err(failed(ACT))
    }

    /// All keys that are not revoked, the oldest first.
    ///
    /// # Errors
    /// The store does not answer, or a row of it is damaged.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SELECT id, body FROM keys WHERE revoked_at_ms IS NULL ORDER BY created_at_ms, id",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(failed("list keys"))?;
        rows.iter().map(|(id, body)| parse(id, body)).collect()
    }

    /// Revokes a key, for good. False where there is none that still works.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<bool, Error> {
        const ACT: &str = "revoke a key";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        let done = sqlx::query("UPDATE keys SET revoked_at_ms = ? WHERE id = ? AND revoked_at_ms IS NULL")
            .bind(integer(now_ms))
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        transaction.commit().await.map_err(failed(ACT))?;
        Ok(done.rows_affected() > 0)
    }

    /// The key with this secret, and the project it acts for, unless it is revoked. Whether it has expired is for the caller to
    /// say, who has the time.
    ///
    /// # Errors
    /// The store does not answer, or a row of it is damaged.
    pub async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<(Key, Project)>, Error> {
        let row: Option<(String, String, String, String, i64)> = sqlx::query_as(
            "SELECT keys.id, keys.body, projects.name, projects.quota, projects.created_at_ms
             FROM keys JOIN projects ON projects.name = keys.project
             WHERE keys.secret_hash = ? AND keys.revoked_at_ms IS NULL",
        )
        .bind(hash.as_slice())
        .fetch_optional(&self.readers)
        .await
        .map_err(failed("look up a key"))?;
        let Some((id, body, name, quota, created_at_ms)) = row else { return Ok(None) };
        Ok(Some((parse(&id, &body)?, project(name, &quota, created_at_ms)?)))
    }

    /// Whether there is any key that is not revoked.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn has_keys(&self) -> Result<bool, Error> {
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM keys WHERE revoked_at_ms IS NULL)")
            .fetch_one(&self.readers)
            .await
            .map_err(failed("look for keys"))
    }
}

/// What an insert of something that belongs to a project was refused for.
pub(super) fn refused(error: sqlx::Error, act: &'static str, project: &str) -> Error {
    let (foreign, unique) = error
        .as_database_error()
        .map_or((false, false), |error| (error.is_foreign_key_violation(), error.is_unique_violation()));
    match (foreign, unique) {
        (true, _) => Error::NoProject(project.to_owned()),
        (_, true) => Error::Conflict,
        (false, false) => failed(act)(error),
    }
}

fn project(name: String, quota: &str, created_at_ms: i64) -> Result<Project, Error> {
    let quota = parse(&name, quota)?;
    Ok(Project { name, quota, created_at_ms: created_at_ms.unsigned_abs() })
}

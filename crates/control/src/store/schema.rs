//! Creation, checks and migrations of a store.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnection, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection, SqlSafeStr};

use super::{Error, beside, failed, options};

/// The newest schema that this release supports.
pub(super) const KNOWN: i64 = 7;
/// Maximum number of versions by which a store may be newer than this release. One release can be rolled
/// back, but not two.
const NEWER_MAX: i64 = 1;
const ACT: &str = "be created";

/// Creates the store if it does not exist. The store is created under a temporary name and renamed when it is
/// complete, so a file with the store's own name is always a complete store.
pub(super) async fn create_if_missing(path: &Path) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => return Ok(()),
        Ok(_) => return Err(Error::Damaged(format!("{} is not a file", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_failed(error)),
    }
    if beside(path, "-wal").try_exists().map_err(io_failed)? {
        return Err(Error::Damaged(format!("{} is missing, but its write-ahead log exists", path.display())));
    }
    let fresh = beside(path, ".new");
    for leftover in [fresh.clone(), beside(&fresh, "-wal"), beside(&fresh, "-shm")] {
        match fs::remove_file(leftover) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_failed(error)),
            Ok(()) | Err(_) => {}
        }
    }
    // Only the server may read the hashes of keys. SQLite creates its additional files with the same mode as
    // this file.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(io_failed)?;
    let mut connection =
        options(&fresh).journal_mode(SqliteJournalMode::Wal).connect().await.map_err(failed(ACT))?;
    migrate(&mut connection).await?;
    connection.close().await.map_err(failed(ACT))?;
    file.sync_all().map_err(io_failed)?;
    fs::rename(&fresh, path).map_err(io_failed)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_failed)
}

/// Rejects a file that is damaged, is not a store, or is too new.
pub(super) async fn check(connection: &mut SqliteConnection) -> Result<(), Error> {
    let said: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed("be checked"))?;
    if said != "ok" {
        return Err(Error::Damaged(said));
    }
    let ours: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed("be checked"))?;
    if ours == 0 {
        return Err(Error::Damaged("the file contains none of Bellglass's tables".into()));
    }
    let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
        .map_err(failed("be checked"))?;
    if found > KNOWN + NEWER_MAX {
        return Err(Error::Newer { found, known: KNOWN });
    }
    Ok(())
}

/// Migrates to the newest schema that this release supports. A newer schema is left unchanged.
pub(super) async fn migrate(connection: &mut SqliteConnection) -> Result<(), Error> {
    let steps = [
        (1, "accounts and sandboxes", include_str!("../../migrations/1_accounts_and_sandboxes.sql")),
        (2, "secrets", include_str!("../../migrations/2_secrets.sql")),
        (3, "sessions", include_str!("../../migrations/3_sessions.sql")),
        (4, "clock", include_str!("../../migrations/4_clock.sql")),
        (5, "use of keys", include_str!("../../migrations/5_use_of_keys.sql")),
        // Version 6 is skipped, so that this schema is two steps newer for releases that do not support
        // pausing. They refuse the store, because they cannot read the state `paused`.
        (KNOWN, "pauses", include_str!("../../migrations/7_pauses.sql")),
    ];
    let migrations = steps.map(|(version, name, text)| {
        Migration::new(version, name.into(), MigrationType::Simple, text.into_sql_str(), false)
    });
    let mut migrator = Migrator::with_migrations(migrations.into());
    migrator.set_ignore_missing(true);
    let Err(error) = migrator.run_direct(None, connection, false).await else { return Ok(()) };
    if let MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) = error {
        return Err(failed("be migrated")(source));
    }
    // A migration that was applied to the store differs from the embedded one, or is incomplete.
    Err(Error::Damaged(error.to_string()))
}

fn io_failed(error: io::Error) -> Error {
    failed(ACT)(sqlx::Error::Io(error))
}

//! Stores that are locked, damaged, or from a different release.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use api::account::Quota;
use api::sandbox::SandboxState;
use sqlx::{ConnectOptions, Connection};
use tokio::task::JoinSet;

use crate::credential::KeyHash;

use super::super::read::For;
use super::super::{beside, options};
use super::{Error, Place, Requested, Store, ask, in_state, sandbox};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_store_refuses_writes_soon_and_still_reads() {
    // Attack L-04: another process locks the store.
    const SOON: Duration = Duration::from_millis(1500);
    let place = Place::new().await;
    place.ask(&sandbox("s1")).await.unwrap();
    let mut other = options(&place.path).connect().await.unwrap();
    let lock = other.begin_with("BEGIN EXCLUSIVE").await.unwrap();

    let mut asking = JoinSet::new();
    for number in 0..20 {
        let store = place.store.clone();
        asking.spawn(async move {
            let began = Instant::now();
            let sandbox = sandbox(&format!("n{number}"));
            (ask(&store, &sandbox, &Quota::default(), None).await, began.elapsed())
        });
    }
    // The other connection still holds the lock, so these reads succeed only if they do not need the lock.
    assert!(place.store.sandbox("p", "s1").await.unwrap().is_some());
    assert_eq!(place.store.live().await.unwrap().len(), 1);
    assert_eq!(place.store.sandboxes("p", true, 10, None).await.unwrap().items.len(), 1);
    assert_eq!(place.store.key_by_hash(&KeyHash([1; 32])).await.unwrap(), None);
    while let Some(answer) = asking.join_next().await {
        let (answer, took) = answer.unwrap();
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
        assert!(took < SOON, "{took:?}");
    }
    assert!(matches!(place.store.ping().await, Err(Error::Unavailable { .. })));
    let running = in_state(&sandbox("s1"), SandboxState::Running);
    assert!(matches!(place.store.moved(&running).await, Err(Error::Unavailable { .. })));

    lock.rollback().await.unwrap();
    place.store.ping().await.unwrap();
    assert!(place.store.moved(&running).await.unwrap());
    assert!(
        matches!(place.ask(&sandbox("n0")).await, Ok(Requested::New(_))),
        "nothing came of the refused one"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_at_once_all_have_their_turn() {
    let place = Place::new().await;
    let quota = Quota { sandboxes: 1, ..Quota::default() };
    place.ask(&sandbox("first")).await.unwrap();
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    // Send so many requests that even an optimized build needs longer than `WAIT` to answer them. The quota
    // refuses all of them, so they change nothing.
    for number in 0..if cfg!(debug_assertions) { 2500 } else { 25_000 } {
        let store = place.store.clone();
        asking.spawn(async move { ask(&store, &sandbox(&format!("n{number}")), &quota, None).await });
    }
    while let Some(answer) = asking.join_next().await {
        let answer = answer.unwrap();
        assert!(matches!(answer, Err(Error::Quota { .. })), "{answer:?} after {:?}", begun.elapsed());
    }
    assert!(begun.elapsed() > super::super::WAIT, "there was no queue to speak of");
}

#[tokio::test]
async fn a_full_store_refuses_what_is_new_and_still_reads() {
    // Attack L-04: the store cannot grow, as on a full disk.
    let place = Place::new().await;
    place.ask(&sandbox("s1")).await.unwrap();
    let mut writer = place.store.writer.acquire().await.unwrap();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut *writer).await.unwrap();
    let full = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
    sqlx::query(full).execute(&mut *writer).await.unwrap();
    drop(writer);
    let mut made = 1;
    let refused = loop {
        match place.ask(&sandbox(&format!("n{made}"))).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert_eq!(place.store.live().await.unwrap().len(), made);
    sqlx::query("PRAGMA max_page_count = 100000").execute(&place.store.writer).await.unwrap();
    assert!(matches!(place.ask(&sandbox(&format!("n{made}"))).await, Ok(Requested::New(_))));
}

#[tokio::test]
async fn whoever_stops_waiting_for_a_write_leaves_the_store_usable() {
    let place = Place::new().await;
    for number in 0..200_u64 {
        let sandbox = sandbox(&format!("s{number}"));
        let quota =
            Quota { sandboxes: 1000, memory_bytes: u64::MAX, disk_bytes: u64::MAX, ..Quota::default() };
        let asking = ask(&place.store, &sandbox, &quota, None);
        let _ = tokio::time::timeout(Duration::from_micros(number * 10), asking).await;
    }
    place.store.ping().await.unwrap();
    let live = place.store.live().await.unwrap().len();
    assert_eq!(place.store.sandboxes("p", true, 1000, None).await.unwrap().items.len(), live);
}

#[tokio::test]
async fn what_is_no_store_is_damaged_and_stays_as_it_is() {
    // Attack L-04: the store is replaced by something else.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bellglass.db");
    for content in [&b""[..], b"x", &[0; 4096], &[255; 100_000], b"SQLite format 3\0 and no more"] {
        fs::write(&path, content).unwrap();
        let answer = Store::open(&path).await;
        assert!(matches!(answer, Err(Error::Damaged(_))), "{:?} {answer:?}", content.len());
        assert!(fs::read(&path).unwrap() == content, "nobody wrote to it");
        let _ = fs::remove_file(beside(&path, "-wal"));
    }
}

#[tokio::test]
async fn a_damaged_page_is_found_when_the_store_is_opened() {
    // Attack L-04: pages of the store are overwritten, or the store is truncated.
    let place = Place::new().await;
    for number in 0..100 {
        place.store.adopt(&in_state(&sandbox(&format!("s{number}")), SandboxState::Running)).await.unwrap();
    }
    place.store.close().await;
    let file = fs::OpenOptions::new().write(true).open(&place.path).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    assert!(pages > 20, "{pages}");
    for page in 2..pages {
        file.write_all_at(&[0xaa; 512], page * 4096).unwrap();
    }
    assert!(matches!(Store::open(&place.path).await, Err(Error::Damaged(_))));
    file.set_len(8192).unwrap();
    assert!(matches!(Store::open(&place.path).await, Err(Error::Damaged(_))));
}

#[tokio::test]
async fn a_store_whose_file_is_gone_is_not_begun_anew_over_its_log() {
    // Attack L-04: the store is moved away, but its log is not.
    let place = Place::new().await;
    fs::remove_file(&place.path).unwrap();
    assert!(matches!(Store::open(&place.path).await, Err(Error::Damaged(_))));
    assert!(!place.path.exists());
}

#[tokio::test]
async fn a_copy_made_with_sqlites_own_tools_is_a_store() {
    // Attack L-04: the store is replaced by a copy.
    let place = Place::new().await;
    place.ask(&sandbox("s1")).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bellglass.db");
    sqlx::query("VACUUM INTO ?").bind(path.to_str().unwrap()).execute(&place.store.writer).await.unwrap();
    let copy = Store::open(&path).await.unwrap();
    let mut lock = copy.writer.begin_with("BEGIN EXCLUSIVE").await.unwrap();
    sqlx::query("DELETE FROM sandboxes").execute(&mut *lock).await.unwrap();
    assert_eq!(copy.live().await.unwrap().len(), 1, "readers wait for nobody in the copy either");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_damage_and_not_absence() {
    let place = Place::new().await;
    place.ask(&sandbox("s1")).await.unwrap();
    place.meddle("UPDATE sandboxes SET body = '{}'").await;
    assert!(matches!(place.store.sandbox("p", "s1").await, Err(Error::Damaged(_))));
    assert!(matches!(place.store.live().await, Err(Error::Damaged(_))));
    assert!(matches!(
        place.store.moved(&in_state(&sandbox("s1"), SandboxState::Running)).await,
        Err(Error::Damaged(_))
    ));
}

#[tokio::test]
async fn a_store_that_was_begun_and_not_finished_is_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bellglass.db");
    for suffix in [".new", ".new-wal", ".new-shm"] {
        fs::write(beside(&path, suffix), "half").unwrap();
    }
    Store::open(&path).await.unwrap().ping().await.unwrap();
    assert!(!beside(&path, ".new").exists());
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    let answer = Store::open(&directory.path().join("none/bellglass.db")).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_store_one_step_newer_is_opened_and_one_newer_still_is_refused() {
    // Attack L-07: the store was written by a newer release.
    let place = Place::new().await;
    place.ask(&sandbox("s1")).await.unwrap();
    place.meddle("ALTER TABLE sandboxes ADD COLUMN later TEXT DEFAULT 'x'").await;
    place
        .meddle(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (8, 'later', true, x'00', 0)",
        )
        .await;
    let store = Store::open(&place.path).await.unwrap();
    assert!(matches!(ask(&store, &sandbox("s2"), &Quota::default(), None).await, Ok(Requested::New(_))));
    assert_eq!(store.live().await.unwrap().len(), 2);
    place.meddle("UPDATE _sqlx_migrations SET version = 9 WHERE version = 8").await;
    assert!(matches!(Store::open(&place.path).await, Err(Error::Newer { found: 9, known: 7 })));
}

#[tokio::test]
async fn a_store_of_the_release_before_is_brought_forward_with_all_that_is_in_it() {
    // Attack L-07: the store was written by an older release.
    let place = Place::new().await;
    place.ask(&sandbox("s1")).await.unwrap();
    place.store.put_secret("p", "KEY", b"sealed", 1).await.unwrap();
    for statement in ["DROP TABLE clock", "DELETE FROM _sqlx_migrations WHERE version = 4"] {
        place.meddle(statement).await;
    }
    let store = Store::open(&place.path).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(store.secrets("p").await.unwrap().len(), 1);
    assert_eq!(store.live().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_migration_that_was_changed_after_it_was_applied_is_noticed() {
    let place = Place::new().await;
    place.meddle("UPDATE _sqlx_migrations SET checksum = x'00'").await;
    assert!(matches!(Store::open(&place.path).await, Err(Error::Damaged(_))));
}

#[tokio::test]
async fn queries_that_grow_with_history_use_an_index() {
    let place = Place::new().await;
    for (query, index) in [
        (
            "SELECT count(*), sum(memory_bytes), sum(disk_bytes) FROM live_sandboxes WHERE project = 'p'",
            "sandboxes_by_use",
        ),
        ("SELECT 1 FROM live_sandboxes WHERE project = 'p' AND name = 'n'", "sandboxes_by_live_name"),
        (
            "SELECT 1 FROM sandboxes WHERE project = 'p' AND idempotency_key = 'k'",
            "sandboxes_by_idempotency_key",
        ),
        (
            "SELECT body FROM sandboxes WHERE project = 'p' AND (created_at_ms, id) < (1, 'a') ORDER BY created_at_ms DESC, id DESC",
            "sandboxes_by_age",
        ),
        (
            "SELECT body FROM live_sandboxes WHERE project = 'p' AND (created_at_ms, id) < (1, 'a') ORDER BY created_at_ms DESC, id DESC",
            "sandboxes_by_live_age",
        ),
        (
            "SELECT body FROM sessions WHERE project = 'p' AND (created_at_ms, id) < (1, 'a') ORDER BY created_at_ms DESC, id DESC",
            "sessions_by_age",
        ),
        ("SELECT id, body FROM sessions WHERE changed_at_ms < 5 LIMIT 10", "sessions_by_change"),
        ("SELECT id FROM sandboxes WHERE ended_at_ms IS NOT NULL AND ended_at_ms < 5", "sandboxes_by_end"),
    ] {
        let plan: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {query}")))
                .fetch_all(&mut *place.store.readers.next(For::Server).await.unwrap())
                .await
                .unwrap();
        let plan = plan.into_iter().map(|row| row.3).collect::<Vec<_>>().join("; ");
        assert!(plan.contains(&format!("{index} ")) && !plan.contains("TEMP B-TREE"), "{query}: {plan}");
    }
}

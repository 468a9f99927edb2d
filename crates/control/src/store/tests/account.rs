//! Projects and keys.

use std::os::unix::fs::PermissionsExt;

use api::account::{Key, Quota, Role};

use crate::credential::KeyHash;

use super::{Error, Place, Store};

fn key(id: &str, project: &str) -> Key {
    Key {
        id: id.into(),
        project: project.into(),
        role: Role::Write,
        label: "of a test".into(),
        hint: "beef".into(),
        created_at_ms: 5,
        expires_at_ms: None,
        last_used_at_ms: None,
    }
}

#[tokio::test]
async fn a_key_opens_its_project_until_it_is_revoked() {
    let place = Place::new().await;
    assert!(!place.store.has_keys().await.unwrap());
    place.store.create_key(&key("k1", "p"), &KeyHash([1; 32])).await.unwrap();
    place.store.create_key(&key("k2", "p"), &KeyHash([2; 32])).await.unwrap();
    let (found, project) = place.store.key_by_hash(&KeyHash([1; 32])).await.unwrap().unwrap();
    assert_eq!((found, project.name.as_str()), (key("k1", "p"), "p"));
    assert_eq!(place.store.key_by_hash(&KeyHash([3; 32])).await.unwrap(), None);

    assert!(place.store.revoke_key("k1", 7).await.unwrap());
    assert!(!place.store.revoke_key("k1", 8).await.unwrap(), "it is revoked already");
    assert!(!place.store.revoke_key("k9", 8).await.unwrap());
    assert_eq!(place.store.key_by_hash(&KeyHash([1; 32])).await.unwrap(), None);
    assert_eq!(place.store.keys().await.unwrap(), [key("k2", "p")]);
    assert!(place.store.has_keys().await.unwrap());
    place.store.revoke_key("k2", 8).await.unwrap();
    assert!(!place.store.has_keys().await.unwrap());
    assert!(
        matches!(place.store.create_key(&key("k1", "p"), &KeyHash([4; 32])).await, Err(Error::Conflict)),
        "the id of a revoked key is not given again"
    );
}

#[tokio::test]
async fn a_key_needs_a_project() {
    let place = Place::new().await;
    let refused = place.store.create_key(&key("k1", "nobody"), &KeyHash([1; 32])).await;
    assert!(matches!(refused, Err(Error::NoProject(name)) if name == "nobody"));
}

#[tokio::test]
async fn a_project_keeps_its_age_when_its_quota_changes() {
    let place = Place::new().await;
    let quota = Quota { sandboxes: 3, memory_bytes: u64::MAX, ..Quota::default() };
    let project = place.store.put_project("p", &quota, 99).await.unwrap();
    assert_eq!((project.created_at_ms, project.quota), (1, quota));
    place.store.put_project("a", &quota, 99).await.unwrap();
    let names: Vec<String> =
        place.store.projects().await.unwrap().into_iter().map(|project| project.name).collect();
    assert_eq!(names, ["a", "p"]);
}

#[tokio::test]
async fn accounts_are_there_after_the_store_is_opened_again_and_are_nobody_elses_to_read() {
    let place = Place::new().await;
    place.store.create_key(&key("k1", "p"), &KeyHash([1; 32])).await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let mode = std::fs::metadata(super::super::beside(&place.path, suffix)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{suffix}");
    }
    place.store.close().await;
    let again = Store::open(&place.path).await.unwrap();
    assert_eq!(again.keys().await.unwrap(), [key("k1", "p")]);
    assert_eq!(again.projects().await.unwrap().len(), 1);
}

/// Opens a copy of the files of an open store. These files are in the same state as after the server was
/// killed.
#[tokio::test]
async fn what_was_answered_is_there_after_a_kill() {
    // Attack L-01: the server is killed directly after it has sent its responses.
    let place = Place::new().await;
    place.store.create_key(&key("k1", "p"), &KeyHash([1; 32])).await.unwrap();
    place.ask(&super::sandbox("s1")).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("bellglass.db");
    for suffix in ["", "-wal"] {
        std::fs::copy(super::super::beside(&place.path, suffix), super::super::beside(&path, suffix))
            .unwrap();
    }
    let again = Store::open(&path).await.unwrap();
    assert_eq!(again.keys().await.unwrap().len(), 1);
    assert_eq!(again.live().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_rotated_key_works_until_the_overlap_ends_and_both_are_written_at_once() {
    let place = Place::new().await;
    let (old, new) = (key("k1", "p"), key("k2", "p"));
    place.store.create_key(&old, &KeyHash([1; 32])).await.unwrap();
    assert!(place.store.rotate_key(&old.id, (&new, &KeyHash([2; 32])), 10, 40).await.unwrap());
    let (found, _) = place.store.key_by_hash(&KeyHash([1; 32])).await.unwrap().unwrap();
    assert_eq!(found.expires_at_ms, Some(50));
    assert!(place.store.key_by_hash(&KeyHash([2; 32])).await.unwrap().is_some());
    // After two rotations, the earlier expiry applies. Expired and revoked keys cannot be rotated.
    for (overlap_ms, end) in [(10, 20), (1000, 20)] {
        let hash = KeyHash([100 + overlap_ms as u8; 32]);
        let next = (&key(&format!("k{overlap_ms}"), "p"), &hash);
        assert!(place.store.rotate_key("k1", next, 10, overlap_ms).await.unwrap());
        let (found, _) = place.store.key_by_hash(&KeyHash([1; 32])).await.unwrap().unwrap();
        assert_eq!(found.expires_at_ms, Some(end));
    }
    let fourth = (&key("k4", "p"), &KeyHash([4; 32]));
    assert!(!place.store.rotate_key("k1", fourth, 20, 50).await.unwrap(), "it has expired");
    place.store.revoke_key("k2", 8).await.unwrap();
    assert!(!place.store.rotate_key("k2", fourth, 10, 50).await.unwrap(), "it was revoked");
    assert!(place.store.key_by_hash(&KeyHash([4; 32])).await.unwrap().is_none());
}

#[tokio::test]
async fn the_last_use_of_a_key_is_listed() {
    let place = Place::new().await;
    place.store.create_key(&key("k1", "p"), &KeyHash([1; 32])).await.unwrap();
    assert_eq!(place.store.keys().await.unwrap()[0].last_used_at_ms, None);
    place.store.keys_used(&[("k1".to_owned(), 77)].into()).await.unwrap();
    assert_eq!(place.store.keys().await.unwrap()[0].last_used_at_ms, Some(77));
}

//! Tests that encrypted data can be decrypted only under its own project and name, and with its own key.

use std::os::unix::fs::PermissionsExt as _;

use api::account::Quota;
use node::secrets::Vault as _;
use tempfile::TempDir;

use super::*;

const CANARY: &str = "canary-5f0e9c2b-value";

async fn ground() -> (TempDir, Store, Vault) {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(&data.path().join("bellglass.db")).await.unwrap();
    for project in ["a", "b"] {
        store.put_project(project, &Quota::default(), 1).await.unwrap();
    }
    let vault = Vault::new(store.clone(), data.path());
    (data, store, vault)
}

fn value() -> PutSecret {
    PutSecret { value: CANARY.into() }
}

#[tokio::test]
async fn a_secret_is_had_by_its_project_and_told_without_its_value() {
    let (_data, store, vault) = ground().await;
    vault.put("a", "KEY", value()).await.unwrap();
    assert_eq!(vault.secret("a", "KEY").await.unwrap().unwrap().expose(), CANARY);
    assert!(
        vault.secret("b", "KEY").await.unwrap().is_none()
            && vault.secret("a", "OTHER").await.unwrap().is_none()
    );
    let first = store.secrets("a").await.unwrap();
    vault.put("a", "KEY", PutSecret { value: "another-value".into() }).await.unwrap();
    assert_eq!(vault.secret("a", "KEY").await.unwrap().unwrap().expose(), "another-value");
    let second = store.secrets("a").await.unwrap();
    assert_eq!((second.len(), second[0].created_at_ms), (1, first[0].created_at_ms));
    store.remove_secret("a", "KEY").await.unwrap();
    store.remove_secret("a", "KEY").await.unwrap();
    assert!(vault.secret("a", "KEY").await.unwrap().is_none());
    assert!(matches!(
        vault.put("nobody", "KEY", value()).await,
        Err(Error::Store(store::Error::NoProject(_)))
    ));
}

#[tokio::test]
async fn files_of_the_store_hold_no_value_and_the_key_is_its_owners_alone() {
    // Verifies that attack S-06 fails: no file of the store contains the value of a secret.
    let (data, store, vault) = ground().await;
    vault.put("a", "KEY", value()).await.unwrap();
    vault.authority("a").await.unwrap();
    let key = data.path().join(KEY_FILE);
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    store.close().await;
    for file in fs::read_dir(data.path()).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        for word in [CANARY.as_bytes(), b"PRIVATE KEY"] {
            assert!(!bytes.windows(word.len()).any(|window| window == word));
        }
    }
}

#[tokio::test]
async fn what_is_sealed_for_one_place_does_not_open_at_another() {
    // Attack S-03: a sealed value is copied to a different project or name.
    let (_data, store, vault) = ground().await;
    vault.put("a", "KEY", value()).await.unwrap();
    let sealed = store.sealed_secret("a", "KEY").await.unwrap().unwrap();
    store.put_secret("b", "KEY", &sealed, 1).await.unwrap();
    store.put_secret("a", "OTHER", &sealed, 1).await.unwrap();
    for (project, name) in [("b", "KEY"), ("a", "OTHER")] {
        assert!(matches!(vault.open_secret(project, name).await, Err(Error::KeyForeign(_))));
    }
    let mut broken = sealed.clone();
    *broken.last_mut().unwrap() ^= 1;
    store.put_secret("a", "KEY", &broken, 1).await.unwrap();
    assert!(matches!(vault.open_secret("a", "KEY").await, Err(Error::KeyForeign(_))));
    store.put_secret("a", "KEY", b"short", 1).await.unwrap();
    assert!(matches!(vault.open_secret("a", "KEY").await, Err(Error::KeyForeign(_))));
}

#[tokio::test]
async fn a_key_that_is_missing_or_foreign_is_told_as_such_and_never_made_anew_over_secrets() {
    let (data, store, vault) = ground().await;
    vault.put("a", "KEY", value()).await.unwrap();
    let authority = vault.authority("a").await.unwrap().certificate().to_owned();
    let again = Vault::new(store.clone(), data.path());
    assert_eq!(again.secret("a", "KEY").await.unwrap().unwrap().expose(), CANARY);
    assert_eq!(again.authority("a").await.unwrap().certificate(), authority);
    let key = data.path().join(KEY_FILE);
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let without = Vault::new(store.clone(), data.path());
    assert!(matches!(without.open_secret("a", "KEY").await, Err(Error::KeyMissing)));
    assert!(matches!(without.put("a", "NEW", value()).await, Err(Error::KeyMissing)));
    let told = without.secret("a", "KEY").await.unwrap_err();
    assert!(told.message.contains(KEY_FILE) && !told.message.contains(CANARY), "{told:?}");
    assert!(!key.exists());
    fs::write(&key, b"short").unwrap();
    assert!(matches!(without.open_secret("a", "KEY").await, Err(Error::KeyFile { .. })));
    fs::write(&key, [7; KEY_BYTES]).unwrap();
    let foreign = Vault::new(store.clone(), data.path());
    assert!(matches!(foreign.open_secret("a", "KEY").await, Err(Error::KeyForeign(_))));
    // An authority that cannot be decrypted is replaced by a new one.
    assert_ne!(foreign.authority("a").await.unwrap().certificate(), authority);
    foreign.put("a", "KEY", value()).await.unwrap();
    assert_eq!(foreign.secret("a", "KEY").await.unwrap().unwrap().expose(), CANARY);
    fs::write(&key, kept).unwrap();
    store.remove_secret("a", "KEY").await.unwrap();
    fs::remove_file(&key).unwrap();
    // The store contains no more secrets, so the vault creates a new key in place of the missing one.
    Vault::new(store, data.path()).put("a", "KEY", value()).await.unwrap();
    assert!(key.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn secrets_that_are_set_at_the_same_time_are_sealed_with_one_key() {
    for _ in 0..10 {
        let (data, store, vault) = ground().await;
        let vault = Arc::new(vault);
        let putting = (0..8).map(|number| {
            let vault = Arc::clone(&vault);
            tokio::spawn(async move { vault.put("a", &format!("KEY_{number}"), value()).await })
        });
        for put in putting.collect::<Vec<_>>() {
            put.await.unwrap().unwrap();
        }
        let again = Vault::new(store, data.path());
        for number in 0..8 {
            let secret = again.secret("a", &format!("KEY_{number}")).await.unwrap().unwrap();
            assert_eq!(secret.expose(), CANARY);
        }
    }
}

#[tokio::test]
async fn a_crash_during_the_creation_of_the_key_leaves_no_copy_of_it() {
    let (data, store, vault) = ground().await;
    let (key, fresh) = (data.path().join(KEY_FILE), data.path().join("secrets.key.new"));
    // Crash before the key had its name.
    fs::write(&fresh, b"incomplete").unwrap();
    vault.put("a", "KEY", value()).await.unwrap();
    assert!(!fresh.exists() && fs::read(&key).unwrap().len() == KEY_BYTES);
    // Crash after the key had its name, but before its temporary name was removed.
    fs::hard_link(&key, &fresh).unwrap();
    let again = Vault::new(store, data.path());
    assert_eq!(again.secret("a", "KEY").await.unwrap().unwrap().expose(), CANARY);
    assert!(key.exists() && !fresh.exists());
}

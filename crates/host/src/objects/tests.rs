//! Tests of the object store.

use std::time::SystemTime;

use super::partial::ABANDONED_AFTER;
use super::upload::PIECE_BYTES;
use super::*;
use crate::admission;

#[tokio::test]
async fn an_object_is_there_whole_or_not_at_all_and_half_of_one_is_swept() {
    let data = tempfile::tempdir().unwrap();
    let objects = Objects::open(data.path().join("o"), 0, None).unwrap();
    let at = key(["p", "s", "7"]);
    let mut incoming = objects.begin(&at).await.unwrap();
    incoming.push(&Bytes::from(vec![7; PIECE_BYTES + 1])).await.unwrap();
    assert!(!objects.has(&at).await.unwrap());
    drop(incoming);
    let mut incoming = objects.begin(&at).await.unwrap();
    incoming.push(&Bytes::from_static(b"whole")).await.unwrap();
    assert_eq!(incoming.size_bytes(), 5);
    incoming.finish().await.unwrap();
    let mut outgoing = objects.read(&at).await.unwrap().unwrap();
    assert_eq!(outgoing.size_bytes, 5);
    objects.remove_below(&key(["p"]), None).await.unwrap();
    assert_eq!(outgoing.next().await.unwrap().unwrap(), &b"whole"[..]);
    assert!(objects.read(&at).await.unwrap().is_none());
    let left = data.path().join("o/x#1");
    fs::write(&left, b"half").unwrap();
    objects.sweep().await.unwrap();
    assert!(left.exists(), "a writer may still use it");
    let old = SystemTime::now() - 2 * ABANDONED_AFTER;
    fs::File::options().write(true).open(&left).unwrap().set_modified(old).unwrap();
    objects.sweep().await.unwrap();
    assert!(!left.exists());
}

#[tokio::test]
async fn what_is_replaced_or_removed_stops_counting_however_many_do_so_at_once() {
    // H-40
    let data = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::new(data.path()));
    let tally = LedgerScope { ledger: Arc::clone(&ledger), depth: 0 };
    let objects = Objects::open(data.path().join("datasets"), 0, Some(tally)).unwrap();
    let at = key(["p", "a"]);
    let write = async |length: usize| {
        let mut incoming = objects.begin(&at).await.unwrap();
        incoming.push(&Bytes::from(vec![7; length])).await.unwrap();
        incoming.finish().await.unwrap();
    };
    write(100_000).await;
    futures_util::future::join_all((0..8).map(|_| write(10))).await;
    ledger.set_quota("p", 3 * OBJECT_BYTES + 100);
    let project = ledger.counted("p").await.unwrap();
    assert!(project.has_room(OBJECT_BYTES + 90) && !project.has_room(OBJECT_BYTES + 91), "{project:?}");
    objects.put_json(&key(["p", "b"]), &"x").await.unwrap();
    assert!(project.has_room(0) && !project.has_room(OBJECT_BYTES), "{project:?}");
    let twice = [objects.remove(&at), objects.remove(&at)];
    futures_util::future::join_all(twice).await.into_iter().for_each(Result::unwrap);
    objects.remove(&key(["p", "b"])).await.unwrap();
    let most = 2 * OBJECT_BYTES + 100;
    assert!(project.has_room(most) && !project.has_room(most + 1), "{project:?}");
}

#[tokio::test]
async fn whoever_writes_sees_what_others_are_writing() {
    // H-40
    let data = tempfile::tempdir().unwrap();
    let free = admission::disk_free_bytes(data.path());
    let objects = Objects::open(data.path().join("o"), free - (1 << 30), None).unwrap();
    let first = objects.room.take(1 << 29).unwrap();
    assert!(objects.room.take(3 << 28).is_err(), "together they would reach into the reserve");
    drop(first);
    objects.room.take(3 << 28).unwrap();
}

#[tokio::test]
async fn an_object_of_no_bytes_is_one() {
    let data = tempfile::tempdir().unwrap();
    let objects = Objects::open(data.path().join("o"), 0, None).unwrap();
    objects.begin(&key(["empty"])).await.unwrap().finish().await.unwrap();
    assert_eq!(objects.read(&key(["empty"])).await.unwrap().unwrap().size_bytes, 0);
}

#[test]
fn a_full_disk_is_known_however_deep_it_is_said() {
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    let wrapped = Error::System { act: "x".into(), source: io::Error::other(io::Error::other(full())) };
    assert!(is_full(&wrapped));
    let store = object_store::Error::Generic { store: "x", source: Box::new(full()) };
    assert!(is_full(&failed("write")(store)));
    assert!(!is_full(&Error::Protocol("x".into())));
}

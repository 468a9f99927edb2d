//! Requests for sandboxes: idempotency and quotas.

use std::sync::Arc;

use api::account::Quota;
use api::sandbox::EndReason;
use tokio::task::JoinSet;

use super::{Error, Place, Requested, Store, ask, ended, named, sandbox};

/// Sends a request again while the store is unavailable. This happens if a slow machine must handle many
/// requests.
async fn ask_until_answered(
    store: &Store,
    id: &str,
    quota: &Quota,
    idempotency: Option<(&str, [u8; 32])>,
) -> Result<Requested, Error> {
    loop {
        match ask(store, &sandbox(id), quota, idempotency).await {
            Err(Error::Unavailable { .. }) => {}
            answer => return answer,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_at_once_never_get_more_than_the_quota() {
    // Attack X-08: clients try to exceed the quota with concurrent requests.
    const MOST: u32 = 7;
    let place = Place::new().await;
    let quota = Quota { sandboxes: MOST, ..Quota::default() };
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(Store::open(&place.path).await.unwrap());
    }
    let mut asking = JoinSet::new();
    for number in 0..1000 {
        let store = stores[number % stores.len()].clone();
        asking.spawn(async move { ask_until_answered(&store, &format!("s{number}"), &quota, None).await });
    }
    let mut made = 0;
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap() {
            Ok(Requested::New(_)) => made += 1,
            Err(Error::Quota { what: "sandboxes", most }) if most == u64::from(MOST) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(made, MOST);
    assert_eq!(place.store.live().await.unwrap().len(), MOST as usize);
}

#[tokio::test]
async fn memory_and_disk_are_added_up_and_given_back() {
    // Attack X-08: clients try to exceed the quota of memory or disk space.
    let place = Place::new().await;
    let one = sandbox("s1");
    let memory = Quota { memory_bytes: 2 * one.limits.memory_bytes - 1, ..Quota::default() };
    let disk = Quota { disk_bytes: 2 * one.limits.disk_bytes - 1, ..Quota::default() };
    assert!(matches!(ask(&place.store, &one, &memory, None).await, Ok(Requested::New(_))));
    let second = ask(&place.store, &sandbox("s2"), &memory, None).await;
    assert!(
        matches!(second, Err(Error::Quota { what: "memory_bytes", most }) if most == memory.memory_bytes)
    );
    let second = ask(&place.store, &sandbox("s2"), &disk, None).await;
    assert!(matches!(second, Err(Error::Quota { what: "disk_bytes", .. })));
    assert!(place.store.moved(&ended(&one, EndReason::Stopped)).await.unwrap());
    assert!(matches!(ask(&place.store, &sandbox("s2"), &memory, None).await, Ok(Requested::New(_))));
}

#[tokio::test]
async fn another_projects_sandboxes_do_not_count() {
    let place = Place::new().await;
    let quota = Quota { sandboxes: 1, ..Quota::default() };
    place.store.put_project("q", &quota, 1).await.unwrap();
    ask(&place.store, &named("s1", "one"), &quota, None).await.unwrap();
    let mut other = named("s2", "one");
    other.project = "q".into();
    let answer = ask(&place.store, &other, &quota, Some(("k", [1; 32]))).await.unwrap();
    assert!(matches!(answer, Requested::New(_)), "the name and the quota are those of its project");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_key_a_hundred_times_at_once_makes_one_sandbox() {
    // Attack H-08: the same request is sent many times.
    let place = Place::new().await;
    let mut asking = JoinSet::new();
    let quota = Arc::new(Quota::default());
    for number in 0..100 {
        let (store, quota) = (place.store.clone(), Arc::clone(&quota));
        asking.spawn(async move {
            ask_until_answered(&store, &format!("s{number}"), &quota, Some(("again", [7; 32]))).await
        });
    }
    let (mut new, mut known) = (Vec::new(), Vec::new());
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap().unwrap() {
            Requested::New(sandbox) => new.push(sandbox.id),
            Requested::Known(sandbox) => known.push(sandbox.id),
        }
    }
    assert_eq!((new.len(), known.len()), (1, 99));
    assert!(known.iter().all(|id| *id == new[0]));
    assert_eq!(place.store.live().await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_same_key_for_another_request_is_a_conflict() {
    // Attack H-08: an idempotency key is used for a different request.
    let place = Place::new().await;
    let quota = Quota::default();
    ask(&place.store, &sandbox("s1"), &quota, Some(("k", [1; 32]))).await.unwrap();
    let other = ask(&place.store, &sandbox("s2"), &quota, Some(("k", [2; 32]))).await;
    assert!(matches!(other, Err(Error::Conflict)));
    let same_id = ask(&place.store, &sandbox("s1"), &quota, None).await;
    assert!(matches!(same_id, Err(Error::Conflict)));
}

#[tokio::test]
async fn a_known_request_is_answered_though_the_quota_is_used_up() {
    let place = Place::new().await;
    let quota = Quota { sandboxes: 1, ..Quota::default() };
    ask(&place.store, &named("s1", "one"), &quota, Some(("k", [1; 32]))).await.unwrap();
    let again = ask(&place.store, &named("s2", "one"), &quota, Some(("k", [1; 32]))).await.unwrap();
    assert!(matches!(again, Requested::Known(sandbox) if sandbox.id.as_str() == "s1"));
}

#[tokio::test]
async fn a_key_is_free_again_only_after_a_start_in_which_nothing_ran() {
    // Attack H-08: a request is sent again after its sandbox has ended.
    let place = Place::new().await;
    let quota = Quota::default();
    for (number, (reason, free)) in [
        (EndReason::StartFailed, true),
        (EndReason::Interrupted, true),
        (EndReason::Stopped, false),
        (EndReason::Died, false),
    ]
    .into_iter()
    .enumerate()
    {
        let (first, second) = (sandbox(&format!("a{number}")), sandbox(&format!("b{number}")));
        let key = format!("key {number}");
        ask(&place.store, &first, &quota, Some((&key, [1; 32]))).await.unwrap();
        place.store.moved(&ended(&first, reason)).await.unwrap();
        let again = ask(&place.store, &second, &quota, Some((&key, [1; 32]))).await.unwrap();
        assert_eq!(matches!(again, Requested::New(_)), free, "{reason:?}");
    }
}

#[tokio::test]
async fn a_name_is_taken_while_its_sandbox_lives_and_free_at_once_after() {
    let place = Place::new().await;
    place.ask(&named("s1", "one")).await.unwrap();
    let taken = place.ask(&named("s2", "one")).await;
    assert!(matches!(taken, Err(Error::NameTaken(name)) if name == "one"));
    place.store.moved(&ended(&named("s1", "one"), EndReason::Idle)).await.unwrap();
    place.ask(&named("s2", "one")).await.unwrap();
    let found = place.store.sandbox("p", "one").await.unwrap().unwrap();
    assert_eq!(found.id.as_str(), "s2");
    let old = place.store.sandbox("p", "s1").await.unwrap().unwrap();
    assert_eq!(old.reason, Some(EndReason::Idle));
}

#[tokio::test]
async fn a_request_of_an_unknown_project_is_refused() {
    let place = Place::new().await;
    let mut stranger = sandbox("s1");
    stranger.project = "nobody".into();
    assert!(matches!(place.ask(&stranger).await, Err(Error::NoProject(_))));
}

#[tokio::test]
async fn whatever_is_asked_for_begins_by_starting() {
    let place = Place::new().await;
    let Requested::New(made) = place.ask(&ended(&sandbox("s1"), EndReason::Died)).await.unwrap() else {
        panic!("it is new");
    };
    assert_eq!(made, sandbox("s1"));
    assert_eq!(place.store.sandbox("p", "s1").await.unwrap(), Some(made));
}

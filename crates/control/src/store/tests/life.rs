//! State changes: a sandbox's state only moves forward, and its end is final.

use std::sync::atomic::{AtomicU64, Ordering};

use api::account::Quota;
use api::sandbox::{EndReason, Sandbox, SandboxState};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::{Error, Place, ask, ended, in_state, named, sandbox};

fn news() -> impl Strategy<Value = (SandboxState, Option<EndReason>)> {
    prop_oneof![
        Just((SandboxState::Starting, None)),
        Just((SandboxState::Running, None)),
        Just((SandboxState::Paused, None)),
        Just((SandboxState::Stopping, Some(EndReason::Idle))),
        prop::sample::select(vec![
            EndReason::Stopped,
            EndReason::StartFailed,
            EndReason::Died,
            EndReason::Oom
        ])
        .prop_map(|reason| (reason.state(), Some(reason))),
    ]
}

fn rank(state: SandboxState) -> u8 {
    match state {
        SandboxState::Starting => 0,
        SandboxState::Running | SandboxState::Paused => 1,
        SandboxState::Stopping => 2,
        SandboxState::Ended | SandboxState::Lost => 3,
    }
}

#[test]
fn a_sandbox_never_goes_backwards_and_nothing_comes_after_its_end() {
    let runtime = Runtime::new().unwrap();
    let place = runtime.block_on(Place::new());
    let number = AtomicU64::new(0);
    proptest!(ProptestConfig::with_cases(100), |(story in prop::collection::vec((news(), 0..3_u64), 1..12))| {
        let id = format!("s{}", number.fetch_add(1, Ordering::Relaxed));
        runtime.block_on(async {
            let mut shown = sandbox(&id);
            place.ask(&shown).await.unwrap();
            for ((state, reason), idle_ms) in story {
                let heard = Sandbox { state, reason, idle_ms: 1000 + idle_ms, ..sandbox(&id) };
                let changed = place.store.moved(&heard).await.unwrap();
                let after = place.store.sandbox("p", &id).await.unwrap().unwrap();
                assert!(rank(after.state) >= rank(shown.state), "{shown:?} {heard:?} {after:?}");
                assert_eq!(changed, after != shown);
                assert!(!changed || !shown.state.is_terminal(), "{shown:?} has ended");
                assert!(changed || shown.state.is_terminal() || heard == shown || rank(state) < rank(shown.state));
                shown = after;
            }
            // Release the quota for the next case.
            place.store.moved(&ended(&shown, EndReason::Stopped)).await.unwrap();
        });
    });
}

/// A paused sandbox keeps its memory and its name, so it counts toward the quota.
#[tokio::test]
async fn a_paused_sandbox_is_live() {
    let place = Place::new().await;
    place.ask(&named("s1", "one")).await.unwrap();
    assert!(place.store.moved(&in_state(&sandbox("s1"), SandboxState::Paused)).await.unwrap());
    assert_eq!(place.store.live().await.unwrap().len(), 1);
    let quota = Quota { sandboxes: 1, ..Quota::default() };
    let refused = ask(&place.store, &sandbox("s2"), &quota, None).await;
    assert!(matches!(refused, Err(Error::Quota { .. })));
    let taken = ask(&place.store, &named("s3", "one"), &Quota::default(), None).await;
    assert!(taken.is_err());
}

#[tokio::test]
async fn news_does_not_change_what_was_asked_for_nor_whose_it_is() {
    let place = Place::new().await;
    let asked = named("s1", "one");
    place.ask(&asked).await.unwrap();
    let mut news = in_state(&sandbox("s1"), SandboxState::Running);
    (news.created_at_ms, news.template, news.idle_ms) = (77, "other".into(), 2000);
    assert!(place.store.moved(&news).await.unwrap());
    let expected = Sandbox { idle_ms: 2000, ..in_state(&asked, SandboxState::Running) };
    assert_eq!(place.store.sandbox("p", "s1").await.unwrap(), Some(expected));

    news.project = "q".into();
    news.state = SandboxState::Stopping;
    assert!(!place.store.moved(&news).await.unwrap(), "it is not that project's");
    assert!(!place.store.moved(&in_state(&sandbox("s9"), SandboxState::Running)).await.unwrap());
}

#[tokio::test]
async fn a_sandbox_that_only_the_node_knows_is_taken_in_once() {
    // Attack L-04: the store is lost, so only the node knows which sandboxes exist.
    let place = Place::new().await;
    place.ask(&named("s1", "one")).await.unwrap();
    let mut found = in_state(&named("s2", "one"), SandboxState::Running);
    assert!(place.store.adopt(&found).await.unwrap());
    assert!(!place.store.adopt(&found).await.unwrap());
    let kept = place.store.sandbox("p", "s2").await.unwrap().unwrap();
    assert_eq!((kept.state, kept.name), (SandboxState::Running, None), "the name stays with who has it");

    (found.id, found.project) = ("s3".parse().unwrap(), "forgotten".into());
    assert!(place.store.adopt(&found).await.unwrap());
    assert_eq!(place.store.sandbox("forgotten", "one").await.unwrap(), Some(found));
    let projects = place.store.projects().await.unwrap();
    assert_eq!(projects[0].name, "forgotten");
    assert_eq!(projects[0].quota, api::account::Quota::default());
    assert_eq!(place.store.live().await.unwrap().len(), 3);
}

#[tokio::test]
async fn only_what_ended_long_ago_is_forgotten() {
    let place = Place::new().await;
    for number in 0..2500 {
        let mut old = ended(&sandbox(&format!("s{number}")), EndReason::Stopped);
        old.ended_at_ms = Some(number);
        assert!(place.store.adopt(&old).await.unwrap());
    }
    let mut untimed = ended(&sandbox("untimed"), EndReason::HostReboot);
    untimed.ended_at_ms = None;
    place.store.adopt(&untimed).await.unwrap();
    place.store.adopt(&in_state(&sandbox("alive"), SandboxState::Running)).await.unwrap();
    assert_eq!(place.store.prune(2400).await.unwrap(), 2401, "also the one that has no time of its end");
    assert_eq!(place.store.prune(2400).await.unwrap(), 0);
    let left = place.store.sandboxes("p", false, 1000, None).await.unwrap().items;
    assert_eq!(left.len(), 101);
    assert!(place.store.sandbox("p", "alive").await.unwrap().is_some());
    assert!(place.store.sandbox("p", "s2399").await.unwrap().is_none());
}

//! Lists of sandboxes, and isolation of projects from each other.

use std::collections::HashSet;

use api::account::Quota;
use api::sandbox::{EndReason, Sandbox};

use super::{Error, Place, ask, ended, named, sandbox};

const ROOMY: Quota = Quota {
    sandboxes: u32::MAX,
    memory_bytes: u64::MAX,
    disk_bytes: u64::MAX,
    creates_per_second: 1,
    execs_per_second: 1,
    open: false,
    root: false,
};

async fn add(place: &Place, id: &str, created_at_ms: u64) {
    let sandbox = Sandbox { created_at_ms, ..sandbox(id) };
    ask(&place.store, &sandbox, &ROOMY, None).await.unwrap();
}

#[tokio::test]
async fn pages_are_complete_and_without_repeats_while_sandboxes_are_added() {
    let place = Place::new().await;
    for number in 0..100 {
        // Groups of four have the same creation time.
        add(&place, &format!("s{number}"), 100 + number / 4).await;
    }
    let before: HashSet<String> = (0..100).map(|number| format!("s{number}")).collect();
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0_u64);
    loop {
        let page = place.store.sandboxes("p", false, 7, cursor.as_deref()).await.unwrap();
        assert!(page.items.len() <= 7);
        seen.extend(page.items.into_iter().map(|sandbox| (sandbox.created_at_ms, sandbox.id.to_string())));
        pages += 1;
        add(&place, &format!("n{pages}"), 200 + pages).await;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert!(seen.is_sorted_by(|a, b| a > b), "the newest first");
    let ids: HashSet<String> = seen.into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids, before, "what is added is in front of the first page");
    assert_eq!(pages, 15);
}

#[tokio::test]
async fn a_page_of_large_sandboxes_ends_early_and_the_next_page_continues() {
    let place = Place::new().await;
    let labels = |number| (0..30).map(move |label| (format!("l{label}"), format!("{number}").repeat(500)));
    for number in 0..100 {
        let sandbox = Sandbox {
            created_at_ms: number,
            labels: labels(number % 10).collect(),
            ..sandbox(&format!("s{number}"))
        };
        ask(&place.store, &sandbox, &ROOMY, None).await.unwrap();
    }
    let first = place.store.sandboxes("p", false, 1000, None).await.unwrap();
    let bytes = serde_json::to_vec(&first.items).unwrap().len();
    assert!((1 << 19..=1 << 20).contains(&bytes), "{} items of {bytes} bytes", first.items.len());
    let second = place.store.sandboxes("p", false, 1000, first.next.as_deref()).await.unwrap();
    let ids: HashSet<String> =
        first.items.iter().chain(&second.items).map(|sandbox| sandbox.id.to_string()).collect();
    assert_eq!((ids.len(), first.items.len() + second.items.len(), second.next), (100, 100, None));
}

#[tokio::test]
async fn the_last_page_has_no_next_and_a_page_has_a_bound() {
    let place = Place::new().await;
    for number in 0..5 {
        add(&place, &format!("s{number}"), number).await;
    }
    assert_eq!(place.store.sandboxes("p", false, 5, None).await.unwrap().next, None);
    let page = place.store.sandboxes("p", false, 0, None).await.unwrap();
    assert_eq!(page.items.len(), 1, "no page is empty that has a next one");
    assert!(page.next.is_some());
    assert_eq!(place.store.sandboxes("p", false, u32::MAX, None).await.unwrap().items.len(), 5);
    assert_eq!(place.store.sandboxes("nobody", false, 5, None).await.unwrap().items, []);
}

#[tokio::test]
async fn a_list_of_live_sandboxes_shows_no_ended_one() {
    let place = Place::new().await;
    for number in 0..6 {
        add(&place, &format!("s{number}"), number).await;
    }
    for id in ["s1", "s3", "s5"] {
        place.store.moved(&ended(&sandbox(id), EndReason::Stopped)).await.unwrap();
    }
    let first = place.store.sandboxes("p", true, 2, None).await.unwrap();
    let second = place.store.sandboxes("p", true, 2, first.next.as_deref()).await.unwrap();
    let ids: Vec<&str> = first.items.iter().chain(&second.items).map(|sandbox| sandbox.id.as_str()).collect();
    assert_eq!(ids, ["s4", "s2", "s0"]);
    assert_eq!(second.next, None);
}

#[tokio::test]
async fn a_cursor_that_no_page_gave_is_refused() {
    let place = Place::new().await;
    for cursor in ["", "-", "5", "5-", "-s1", "x-s1", "5-S1", "05-s1", "+5-s1", "5-s1-", "5-' OR 1=1", "A-s1"]
    {
        let answer = place.store.sandboxes("p", false, 5, Some(cursor)).await;
        assert!(matches!(answer, Err(Error::Cursor)), "{cursor:?}");
    }
    assert!(place.store.sandboxes("p", false, 5, Some("a-s1")).await.is_ok());
    assert!(place.store.sandboxes("p", false, 5, Some("ffffffffffffffff-s1")).await.is_ok());
}

#[tokio::test]
async fn another_projects_sandbox_is_not_there() {
    // Attack X-01: a project tries to access a sandbox of another project.
    let place = Place::new().await;
    place.store.put_project("q", &ROOMY, 1).await.unwrap();
    place.ask(&named("s1", "one")).await.unwrap();
    assert!(place.store.sandbox("p", "s1").await.unwrap().is_some());
    for asked in ["s1", "one", "", "%", "s_"] {
        assert_eq!(place.store.sandbox("q", asked).await.unwrap(), None, "{asked}");
    }
    assert_eq!(place.store.sandboxes("q", false, 10, Some("ff-s9")).await.unwrap().items, []);
}

#[tokio::test]
async fn an_id_wins_over_a_name_that_looks_like_it() {
    let place = Place::new().await;
    place.ask(&named("s1", "s2")).await.unwrap();
    assert_eq!(place.store.sandbox("p", "s2").await.unwrap().unwrap().id.as_str(), "s1");
    place.ask(&sandbox("s2")).await.unwrap();
    assert_eq!(place.store.sandbox("p", "s2").await.unwrap().unwrap().id.as_str(), "s2");
}

//! File events: streamed to clients, or stored until a client polls for them.
//!
//! The synchronous Python SDK polls; all other clients stream. The number and total size of the events stored
//! for a watcher are limited. A watcher that is not polled for a while is removed.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use api::SandboxId;
use api::files::{Change, FileAsk, FileEvent, FilePath};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use node::Watching;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use control::audit::hex;

use super::connect::{Called, Code, ConnectMessage, Failed, alive_every, last, message, streamed};
use super::shown::put;
use super::who::Inside;

/// Time without a poll after which a watcher is removed. Clients poll more often than this.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Limits on the events stored for one watcher: their number and their total size.
const EVENTS_MAX: usize = 10_000;
const BYTES_MAX: usize = 1 << 20;
/// Memory that a stored event uses in addition to its text.
const EVENT_BYTES: usize = 64;
/// Memory budget that all watchers of a project share. Memory is reserved in steps of this size, up to
/// `PROJECT_STEPS` steps, which is enough for sixteen watchers at their limit.
const STEP_BYTES: usize = 64 << 10;
const PROJECT_STEPS: usize = 256;
/// Maximum number of polled watchers per sandbox.
const WATCHERS_MAX: usize = 64;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatchRequest {
    path: String,
    recursive: bool,
    include_entry: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Watcher {
    watcher_id: String,
}

/// Watchers of clients that poll.
#[derive(Default)]
pub struct Watchers {
    all: Arc<Mutex<HashMap<(SandboxId, String), PolledWatcher>>>,
    /// Memory budget of each project that has watchers, as permits for steps of `STEP_BYTES`.
    rooms: Mutex<HashMap<String, Weak<Semaphore>>>,
}

struct PolledWatcher {
    events: Events,
    /// Error that ended the watch, after which no more events follow.
    ended: Option<Failed>,
    asked: Instant,
    task: AbortHandle,
}

/// Stored events as JSON texts, within the memory budget of their project.
struct Events {
    texts: VecDeque<Box<str>>,
    bytes: usize,
    project: Arc<Semaphore>,
    room: Vec<OwnedSemaphorePermit>,
}

impl Watchers {
    /// Returns the memory budget that the watchers of a project share.
    fn room(&self, project: &str) -> Arc<Semaphore> {
        let mut rooms = locked(&self.rooms);
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = rooms.get(project).and_then(Weak::upgrade);
        room.unwrap_or_else(|| {
            let fresh = Arc::new(Semaphore::new(PROJECT_STEPS));
            rooms.insert(project.to_owned(), Arc::downgrade(&fresh));
            fresh
        })
    }
}

impl Events {
    fn within(project: Arc<Semaphore>) -> Self {
        Self { texts: VecDeque::new(), bytes: 0, project, room: Vec::new() }
    }

    /// Stores an event. If no memory is left for the event, replaces all stored events with an overflow
    /// event, which tells the client to list the directory again. A list with missing events would mislead
    /// the client.
    fn push(&mut self, event: &Value) {
        let text = event.to_string();
        if !self.has_room(text.len()) {
            self.take();
            self.texts.push_back(overflow().to_string().into());
            if !self.has_room(text.len()) {
                return;
            }
        }
        self.bytes += text.len() + EVENT_BYTES;
        self.texts.push_back(text.into());
    }

    fn has_room(&mut self, length: usize) -> bool {
        if api::defence::is_off("H-38") {
            return self.texts.len() < EVENTS_MAX;
        }
        let bytes = self.bytes + length + EVENT_BYTES;
        while self.room.len() * STEP_BYTES < bytes.min(BYTES_MAX) {
            match Arc::clone(&self.project).try_acquire_owned() {
                Ok(step) => self.room.push(step),
                Err(_) => return false,
            }
        }
        bytes <= BYTES_MAX && self.texts.len() < EVENTS_MAX
    }

    /// Removes all events, and returns them as the items of a JSON list.
    fn take(&mut self) -> String {
        let list: Vec<Box<str>> = self.texts.drain(..).collect();
        self.texts.shrink_to_fit();
        (self.bytes, self.room) = (0, Vec::new());
        list.join(",")
    }
}

impl Drop for PolledWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A directory that the server watches for one client.
struct DirectoryWatch {
    inside: Inside,
    _place: OwnedSemaphorePermit,
    watching: Watching,
    root: String,
    entries: bool,
}

/// Streams file events that occur from now on.
pub async fn stream(
    inside: Inside,
    headers: HeaderMap,
    ConnectMessage(ask): ConnectMessage<WatchRequest>,
) -> Called<Response> {
    let every = alive_every(&headers);
    let listener = DirectoryWatch::of(inside, &ask).await?;
    let first = message(&json!({ "start": {} }));
    let body = stream::unfold(Some((listener, Some(first))), move |state| async move {
        let (mut listener, first) = state?;
        if let Some(first) = first {
            return Some((Ok::<Bytes, Infallible>(first), Some((listener, None))));
        }
        Some(match listener.next(every).await {
            Ok(None) => (Ok(message(&json!({ "keepalive": {} }))), Some((listener, None))),
            Ok(Some(event)) => (Ok(message(&json!({ "filesystem": event }))), Some((listener, None))),
            Err(failed) => (Ok(last(Some(&failed))), None),
        })
    });
    Ok(streamed(Body::from_stream(body)))
}

/// Creates a watcher, which stores file events until the client polls for them.
pub async fn create(
    inside: Inside,
    ConnectMessage(ask): ConnectMessage<WatchRequest>,
) -> Called<Json<Value>> {
    let watchers = &inside.clients.watchers;
    let (all, sandbox) = (Arc::clone(&watchers.all), inside.sandbox.clone());
    let events = Events::within(watchers.room(&inside.caller.key.project));
    let id = hex(&node::machine::random::<16>()?);
    {
        let mut all = locked(&all);
        all.retain(|_, kept| kept.asked.elapsed() < FORGOTTEN_AFTER);
        if all.keys().filter(|(of, _)| *of == sandbox).count() >= WATCHERS_MAX {
            let told = format!("the sandbox already has {WATCHERS_MAX} open watchers, the maximum");
            return Err(Failed::of(Code::ResourceExhausted, told));
        }
    }
    let mut listener = DirectoryWatch::of(inside, &ask).await?;
    let key = (sandbox, id.clone());
    let (of, others) = (key.clone(), Arc::clone(&all));
    // Hold the lock, so that the task cannot handle an event before the watcher is registered.
    let mut places = locked(&all);
    let task = tokio::spawn(async move {
        loop {
            let heard = listener.next(FORGOTTEN_AFTER).await;
            let mut all = locked(&others);
            let Some(kept) = all.get_mut(&of).filter(|kept| kept.asked.elapsed() < FORGOTTEN_AFTER) else {
                all.remove(&of);
                return;
            };
            match heard {
                Ok(None) => {}
                Ok(Some(event)) => kept.events.push(&event),
                Err(failed) => {
                    kept.ended = Some(failed);
                    return;
                }
            }
        }
    });
    let task = task.abort_handle();
    places.insert(key, PolledWatcher { events, ended: None, asked: Instant::now(), task });
    drop(places);
    Ok(Json(json!({ "watcherId": id })))
}

/// Returns the events since the last poll.
pub async fn events(inside: Inside, ConnectMessage(ask): ConnectMessage<Watcher>) -> Called<Response> {
    let mut all = locked(&inside.clients.watchers.all);
    let kept = all.get_mut(&(inside.sandbox.clone(), ask.watcher_id.clone())).ok_or_else(|| missing(&ask))?;
    kept.asked = Instant::now();
    if let Some(failed) = kept.ended.as_ref().filter(|_| kept.events.texts.is_empty()) {
        return Err(failed.clone());
    }
    let text = format!(r#"{{"events":[{}]}}"#, kept.events.take());
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Removes a watcher.
pub async fn remove(inside: Inside, ConnectMessage(ask): ConnectMessage<Watcher>) -> Called<Json<Value>> {
    let key = (inside.sandbox.clone(), ask.watcher_id.clone());
    match locked(&inside.clients.watchers.all).remove(&key) {
        Some(_) => Ok(Json(json!({}))),
        None => Err(missing(&ask)),
    }
}

impl DirectoryWatch {
    async fn of(inside: Inside, ask: &WatchRequest) -> Called<Self> {
        let place = inside.caller.share.stream()?;
        let path = inside.path(&ask.path)?;
        let root = path.text();
        let there = inside.entry(path.clone()).await?;
        if there.get("type").is_none_or(|kind| kind != "FILE_TYPE_DIRECTORY") {
            return Err(Failed::of(Code::InvalidArgument, format!("path {root} is not a directory")));
        }
        let watching = inside.call.files().watch(&FileAsk::Watch { path, deep: ask.recursive }).await?;
        Ok(Self { inside, _place: place, watching, root, entries: ask.include_entry })
    }

    /// Returns the next event, or `None` if no event occurs within this time.
    async fn next(&mut self, within: Duration) -> Called<Option<Value>> {
        let Ok(event) = timeout(within, self.watching.next()).await else { return Ok(None) };
        let event = event?;
        let mut told = shown(&event, &self.root);
        let there = matches!(event.event, Change::Created | Change::Modified);
        if let Some(path) = event.path.as_deref().filter(|_| self.entries && there)
            // The file may have been removed already.
            && let Ok(path) = FilePath::new(path)
            && let Ok(entry) = self.inside.entry(path).await
        {
            put(&mut told, "entry", entry);
        }
        Ok(Some(told))
    }
}

/// Converts an event into E2B's representation. An overflow becomes a write to the directory itself.
fn shown(event: &FileEvent, root: &str) -> Value {
    let kind = match event.event {
        Change::Created => "EVENT_TYPE_CREATE",
        Change::Modified | Change::Overflow => "EVENT_TYPE_WRITE",
        Change::Removed => "EVENT_TYPE_REMOVE",
    };
    let path = event.path.as_deref().unwrap_or(root);
    let name = path.strip_prefix(root).map_or(path, |name| name.trim_start_matches('/'));
    json!({ "name": name, "type": kind })
}

/// Returns the event that reports an overflow.
fn overflow() -> Value {
    shown(&FileEvent { event: Change::Overflow, path: None, path_encoded: None }, "")
}

fn missing(ask: &Watcher) -> Failed {
    let shown: String = ask.watcher_id.chars().take(64).collect();
    Failed::of(Code::NotFound, format!("watcher with id {shown} not found"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_what_is_watched() {
        let event = |event, path: Option<&str>| FileEvent {
            event,
            path: path.map(str::to_owned),
            path_encoded: None,
        };
        let shown = |change, path| super::shown(&event(change, path), "/home/user/w");
        let created = shown(Change::Created, Some("/home/user/w/a/b"));
        assert_eq!(created, json!({ "name": "a/b", "type": "EVENT_TYPE_CREATE" }));
        assert_eq!(shown(Change::Overflow, None)["name"], "");
        assert_eq!(shown(Change::Removed, Some("/home/user/w/a"))["type"], "EVENT_TYPE_REMOVE");
    }

    #[test]
    fn events_are_kept_within_their_room() {
        let room = Arc::new(Semaphore::new(PROJECT_STEPS));
        let (short, long) = (json!({ "name": "a" }), json!({ "name": "x".repeat(4000) }));
        let mut one = Events::within(Arc::clone(&room));
        (0..20_000).for_each(|_| one.push(&short));
        assert!(one.texts.len() <= EVENTS_MAX + 1 && one.texts[0].contains("EVENT_TYPE_WRITE"));
        (0..1000).for_each(|_| one.push(&long));
        assert!(one.bytes <= BYTES_MAX, "{}", one.bytes);
        let mut all: Vec<Events> = (0..64).map(|_| Events::within(Arc::clone(&room))).collect();
        for _ in 0..250 {
            all.iter_mut().for_each(|one| one.push(&long));
        }
        let bytes: usize = all.iter().map(|one| one.bytes).sum();
        assert!(bytes <= PROJECT_STEPS * STEP_BYTES, "{bytes}");
        assert!(all.iter().all(|one| !one.texts.is_empty()), "each is told at least to look again");
        let told: Value = serde_json::from_str(&format!("[{}]", one.take())).unwrap();
        assert!(told.as_array().is_some_and(|all| all.len() > 1));
        drop((one, all));
        assert_eq!(room.available_permits(), PROJECT_STEPS);
    }
}

//! Time limits for idle connections, and for responses that the client does not read.
//!
//! Clients keep idle connections open for minutes, and a request fails if the server closes the connection at
//! the same moment. A connection that has presented a key or a token may therefore be idle for longer than
//! clients keep idle connections. Every other connection must make progress.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use crate::rejection::Answer;
use control::account::Account;

use super::answer::Taking;
use super::guests::ConnectionSlot;

/// Maximum idle time of an authenticated connection. E2B's SDKs keep idle connections for 300 s, other
/// clients for 90 s.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(330);
/// Maximum number of concurrent requests on an unauthenticated connection. Clients send only one or two
/// requests before they present a key.
const STRANGER_STREAMS_MAX: usize = 16;
/// Maximum number of concurrent requests on a connection of a public port's visitor. This is more than a
/// browser loads concurrently over HTTP/1.
const VISITOR_STREAMS_MAX: usize = 64;

const STRANGER: u8 = 0;
const VISITOR: u8 = 1;
const KNOWN: u8 = 2;

/// Handle with which a request authenticates its connection.
#[derive(Clone)]
pub struct AuthenticationHandle {
    idle: Idle,
    place: Arc<ConnectionSlot>,
    /// Account for which the request acts, and the slot that the request occupies in the project.
    shown: Arc<OnceLock<(Arc<Account>, OwnedSemaphorePermit)>>,
}

/// State that decides when a connection is closed.
#[derive(Clone)]
pub(super) struct Idle(Arc<ConnectionState>);

struct ConnectionState {
    who: AtomicU8,
    shown: Notify,
    now: Mutex<Now>,
}

struct Now {
    next: u64,
    under_way: HashMap<u64, (Taking, Protocol)>,
    /// Time at which the last request ended, or at which the connection began if there was none.
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// A request in progress. It ends with the last byte of its response.
pub(super) struct UnderWay {
    idle: Idle,
    number: u64,
    /// True if this request exceeds the connection's limit of concurrent requests.
    pub(super) crowded: bool,
    pub(super) taking: Taking,
}

impl AuthenticationHandle {
    pub(super) fn new(idle: &Idle, place: &Arc<ConnectionSlot>) -> Self {
        Self { idle: idle.clone(), place: Arc::clone(place), shown: Arc::default() }
    }

    /// Records that the request presented a key or a token of this account. Until its response has been sent,
    /// the request occupies one of the project's slots.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project has too many concurrent requests.
    pub fn show(&self, account: &Arc<Account>) -> Answer<()> {
        if self.idle.0.who.swap(KNOWN, Ordering::AcqRel) != KNOWN {
            self.place.known();
            self.idle.0.shown.notify_waiters();
        }
        if self.shown.get().is_none() {
            let _ = self.shown.set((Arc::clone(account), account.share.request()?));
        }
        Ok(())
    }

    /// Records that the client of the connection visits a public port.
    pub fn visits(&self) {
        let _ = self.idle.0.who.compare_exchange(STRANGER, VISITOR, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the account for which the request acts, if the request presented a credential.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.shown.get().map(|(account, _)| account)
    }
}

impl Idle {
    /// Creates the state of a new connection.
    pub(super) fn new() -> Self {
        let now = Now { next: 0, under_way: HashMap::new(), since: Instant::now() };
        Self(Arc::new(ConnectionState {
            who: AtomicU8::new(STRANGER),
            shown: Notify::new(),
            now: Mutex::new(now),
        }))
    }

    /// Registers a new request on the connection.
    pub(super) fn begin(&self, is_http2: bool) -> UnderWay {
        let most = match self.who() {
            STRANGER => STRANGER_STREAMS_MAX,
            VISITOR => VISITOR_STREAMS_MAX,
            _ => usize::MAX,
        };
        let taking = Taking::default();
        let mut now = self.lock();
        now.next += 1;
        let (number, protocol) = (now.next, if is_http2 { Protocol::Http2 } else { Protocol::Http1 });
        now.under_way.insert(number, (taking.clone(), protocol));
        let crowded = now.under_way.len() > most && !api::defence::is_off("H-36");
        UnderWay { idle: self.clone(), number, crowded, taking }
    }

    /// Returns the time until the connection must close, or `None` if there is currently no limit.
    pub(super) fn left(&self, within: Duration) -> Option<Duration> {
        let (now, known) = (self.lock(), self.who() == KNOWN);
        if now.under_way.is_empty() {
            return (!known).then(|| within.saturating_sub(now.since.elapsed()));
        }
        // On HTTP/2, an unread response to an authenticated client ends only its own stream, not the
        // connection.
        let ends = now.under_way.values().filter(|(_, protocol)| !known || *protocol == Protocol::Http1);
        ends.filter_map(|(taking, _)| taking.left()).min()
    }

    /// Returns true if the connection is unauthenticated and has no request in progress.
    pub(super) fn waits(&self) -> bool {
        self.who() != KNOWN && self.lock().under_way.is_empty()
    }

    /// Waits until the connection is authenticated.
    pub(super) async fn until_known(&self) {
        loop {
            let shown = self.0.shown.notified();
            if self.who() == KNOWN {
                return;
            }
            shown.await;
        }
    }

    fn who(&self) -> u8 {
        self.0.who.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut now = self.idle.lock();
        now.under_way.remove(&self.number);
        now.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn who_is_not_known_is_waited_for_between_requests_only() {
        let idle = Idle::new();
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(idle.left(WITHIN), Some(Duration::from_secs(10)), "from the connection on");
        let (one, other) = (idle.begin(true), idle.begin(true));
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(idle.left(WITHIN), None, "an answer takes as long as it takes");
        drop(one);
        assert_eq!(idle.left(WITHIN), None);
        drop(other);
        assert_eq!(idle.left(WITHIN), Some(WITHIN));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(idle.left(WITHIN), Some(Duration::ZERO));
        idle.0.who.store(KNOWN, Ordering::Release);
        assert_eq!(idle.left(WITHIN), None, "whoever is known may stay");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_ends_the_connection_of_a_stranger() {
        let idle = Idle::new();
        let (slow, quick) = (idle.begin(true), idle.begin(true));
        slow.taking.handed();
        quick.taking.handed();
        tokio::time::advance(Duration::from_secs(29)).await;
        quick.taking.taken();
        assert_eq!(idle.left(WITHIN), Some(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(idle.left(WITHIN), Some(Duration::ZERO));
        idle.0.who.store(KNOWN, Ordering::Release);
        assert_eq!(idle.left(WITHIN), None, "the stream ends alone");
        let alone = idle.begin(false);
        alone.taking.handed();
        assert_eq!(idle.left(WITHIN), Some(WITHIN), "HTTP/1 has no streams");
    }

    #[tokio::test]
    async fn a_stranger_has_few_requests_under_way() {
        let idle = Idle::new();
        let all: Vec<UnderWay> = (0..STRANGER_STREAMS_MAX).map(|_| idle.begin(true)).collect();
        assert!(all.iter().all(|one| !one.crowded));
        assert!(idle.begin(true).crowded);
        idle.0.who.store(VISITOR, Ordering::Release);
        assert!(!idle.begin(true).crowded);
        idle.0.who.store(KNOWN, Ordering::Release);
        assert!((0..1000).map(|_| idle.begin(true)).collect::<Vec<_>>().iter().all(|one| !one.crowded));
    }
}

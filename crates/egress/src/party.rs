//! One sandbox from the broker's point of view: its policy, its usage, and the receiver of its reports.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::host::Host;
use api::policy::{Installed, Policy};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::decide::{RequestKind, shortened};
use crate::place::{ConnectionPermit, Projects, sandbox_max};
use crate::secret::Keyring;
use crate::tally::DecisionReporter;
use crate::{Refusal, RefusalKind};

/// Maximum number of requests from a sandbox per second, and in a burst after a pause. The burst is twice the
/// sandbox's connection limit.
const ASKS_PER_SECOND: u32 = 100;
const ASKS_AT_ONCE: u32 = 1024;
/// Maximum number of lookups of new names per second, and in a burst. Few programs need more, and each lookup
/// can leak data, because the name is sent to the servers of its domain's owner.
const NAMES_PER_SECOND: u32 = 5;
const NAMES_AT_ONCE: u32 = 200;
/// Maximum number of rejected connections that receive an explanation at the same time. Further connections
/// are closed without one.
const TURNED_AWAY_MAX: usize = 64;
/// Maximum number of names that are remembered. Lookups of remembered names are not limited.
const NAMES_KNOWN_MAX: usize = 512;
/// Shortest delay that is enforced, and longest delay before the backlog is recomputed, in seconds.
const SHORTEST_WAIT: f64 = 0.002;
const LONGEST_WAIT: f64 = 0.5;
/// Interval between reports of the number of requests that exceeded a rate or connection limit.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The decision on one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The host and port in canonical form, or the escaped text that was sent instead of a host.
    pub target: String,
    /// `tunnel`, or the method and the path.
    pub ask: String,
    /// The rule that allows the request, or the reason for the refusal.
    pub verdict: Result<String, String>,
}

/// A report from the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerReport {
    /// A request was decided.
    Decided(Decision),
    /// The sandbox received a package.
    Installed(Installed),
}

/// The callback that receives all reports. It must not block.
pub type Tell = Box<dyn Fn(BrokerReport) + Send + Sync>;

/// One sandbox from the broker's point of view.
pub struct Party {
    policy: watch::Receiver<Policy>,
    tally: Arc<DecisionReporter>,
    /// The project, whose sandboxes share a connection limit.
    project: String,
    keyring: Option<Keyring>,
    places: Arc<Semaphore>,
    asks: DefaultDirectRateLimiter,
    names: DefaultDirectRateLimiter,
    known: Mutex<Recent>,
    refused: Mutex<Flood>,
    used: AtomicU64,
    turned_away: Arc<Semaphore>,
    owed: Mutex<Owed>,
    /// Permit to fetch a package index. A sandbox fetches one index at a time.
    pub(crate) index: Semaphore,
}

/// The backlog: bytes that were carried faster than the policy's rate allows.
struct Owed {
    bytes: f64,
    at: Instant,
}

/// A request for a destination.
#[derive(Clone, Debug)]
pub(crate) struct OutboundRequest {
    pub host: Host,
    pub port: u16,
    pub ask: RequestKind,
    /// Names of the secrets that are sent with the request.
    pub secrets: Vec<String>,
}

#[derive(Default)]
struct Recent {
    order: VecDeque<String>,
    names: HashSet<String>,
}

struct Flood {
    count: u64,
    told: Option<Instant>,
}

impl Party {
    /// Creates a party with this policy, whose reports are passed to `tell`.
    pub fn new(policy: watch::Receiver<Policy>, tell: Tell) -> Self {
        Self {
            policy,
            tally: DecisionReporter::new(tell),
            project: String::new(),
            keyring: None,
            places: Arc::new(Semaphore::new(sandbox_max())),
            asks: rate(ASKS_PER_SECOND, ASKS_AT_ONCE),
            names: rate(NAMES_PER_SECOND, NAMES_AT_ONCE),
            known: Mutex::default(),
            refused: Mutex::new(Flood { count: 0, told: None }),
            used: AtomicU64::new(0),
            turned_away: Arc::new(Semaphore::new(TURNED_AWAY_MAX)),
            owed: Mutex::new(Owed { bytes: 0.0, at: Instant::now() }),
            index: Semaphore::new(1),
        }
    }

    /// Sets the project, whose sandboxes share a connection limit.
    #[must_use]
    pub fn of(self, project: &str) -> Self {
        Self { project: project.to_owned(), ..self }
    }

    /// Sets the secrets that the sandbox's policy may bind.
    #[must_use]
    pub fn holding(self, keyring: Keyring) -> Self {
        Self { keyring: Some(keyring), ..self }
    }

    pub(crate) fn keyring(&self) -> Option<&Keyring> {
        self.keyring.as_ref()
    }

    /// Returns the number of bytes that the sandbox's connections have carried in both directions.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn policy(&self) -> watch::Receiver<Policy> {
        let mut policy = self.policy.clone();
        policy.mark_unchanged();
        policy
    }

    /// Takes a slot for one more connection, if the limits of the sandbox and its project allow it.
    pub(crate) fn place(&self, projects: &Projects) -> Option<ConnectionPermit> {
        let Ok(own) = Arc::clone(&self.places).try_acquire_owned() else {
            self.too_much("concurrent connections");
            return None;
        };
        let Some(shared) = projects.take(&self.project) else {
            self.too_much("concurrent connections, counted together with the other sandboxes of its project");
            return None;
        };
        Some(ConnectionPermit::of([own, shared]))
    }

    /// Takes a permit to explain to a program that its connection was rejected.
    pub(crate) fn turned_away(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turned_away).try_acquire_owned().ok()
    }

    /// Counts a request, and refuses it if it exceeds the rate limit.
    pub(crate) fn pace(&self) -> Result<(), Refusal> {
        self.asks.check().map_err(|_| self.too_much("requests per second"))
    }

    /// Counts the lookup of a new name, and refuses it if it exceeds the rate limit. Known names are always
    /// allowed.
    pub(crate) fn name(&self, name: &str) -> Result<(), Refusal> {
        let mut known = locked(&self.known);
        if known.names.contains(name) {
            return Ok(());
        }
        self.names.check().map_err(|_| self.too_much("new host name lookups per second"))?;
        if known.order.len() >= NAMES_KNOWN_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.names.remove(&oldest);
        }
        known.order.push_back(name.to_owned());
        known.names.insert(name.to_owned());
        Ok(())
    }

    /// Adds carried bytes to the usage and the backlog.
    pub(crate) fn carried(&self, bytes: usize, policy: &Policy) {
        self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut owed = locked(&self.owed);
        owed.pay(policy);
        #[expect(clippy::cast_precision_loss, reason = "an approximate rate is sufficient")]
        let more = bytes as f64;
        owed.bytes += more;
    }

    /// Returns the delay before more bytes may be carried on any connection, or `None` if the byte limit is
    /// reached.
    pub(crate) fn wait(&self, policy: &Policy) -> Option<Duration> {
        if self.used_bytes() >= policy.bytes_max {
            return None;
        }
        let mut owed = locked(&self.owed);
        owed.pay(policy);
        #[expect(clippy::cast_precision_loss, reason = "an approximate rate is sufficient")]
        let seconds = owed.bytes / policy.bytes_per_second as f64;
        Some(if seconds < SHORTEST_WAIT {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(seconds.min(LONGEST_WAIT))
        })
    }

    pub(crate) fn tell(&self, asked: &OutboundRequest, verdict: Result<&str, &str>) {
        let mut ask = match &asked.ask {
            RequestKind::Tunnel => "tunnel".to_owned(),
            RequestKind::Request { method, path } => format!("{} {}", shortened(method), shortened(path)),
        };
        if !asked.secrets.is_empty() {
            ask = format!("{ask} with {}", asked.secrets.join(", "));
        }
        self.decided(asked.authority(), ask, verdict);
    }

    /// Reports an invalid request, whose target may not even be a host.
    pub(crate) fn tell_wrong(&self, target: &str, why: &str) {
        self.decided(shortened(target), "none".into(), Err(why));
    }

    /// Reports the decision on a request to the gate.
    pub(crate) fn tell_package(&self, path: &str, verdict: Result<&str, &str>) {
        self.decided(crate::gate::HOST.into(), shortened(path), verdict);
    }

    fn decided(&self, target: String, ask: String, verdict: Result<&str, &str>) {
        let verdict = verdict.map(str::to_owned).map_err(str::to_owned);
        self.tally.decided(Decision { target, ask, verdict });
    }

    /// Reports a package that the sandbox received.
    pub(crate) fn tell_installed(&self, installed: Installed) {
        self.tally.tell(BrokerReport::Installed(installed));
    }

    /// Returns the refusal for a request that exceeds a limit. Such refusals are counted, and the count is
    /// reported periodically.
    fn too_much(&self, what: &str) -> Refusal {
        self.count(&format!("refused: too many {what}"));
        Refusal {
            kind: RefusalKind::Busy,
            why: format!("this sandbox makes too many {what}; wait and try again"),
        }
    }

    fn count(&self, what: &str) {
        let mut refused = locked(&self.refused);
        refused.count += 1;
        let now = Instant::now();
        if refused.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY) {
            let verdict = Err(format!("{} {what}", refused.count));
            *refused = Flood { count: 0, told: Some(now) };
            let decision = Decision { target: "any".into(), ask: "any".into(), verdict };
            self.tally.tell(BrokerReport::Decided(decision));
        }
    }
}

impl Owed {
    fn pay(&mut self, policy: &Policy) {
        let now = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "an approximate rate is sufficient")]
        let paid = now.duration_since(self.at).as_secs_f64() * policy.bytes_per_second as f64;
        (self.bytes, self.at) = ((self.bytes - paid).max(0.0), now);
    }
}

impl OutboundRequest {
    pub fn new(host: Host, port: u16, ask: RequestKind) -> Self {
        Self { host, port, ask, secrets: Vec::new() }
    }

    pub fn authority(&self) -> String {
        self.host.authority(self.port)
    }
}

/// Creates a rate limiter with a rate per second and a burst size.
pub(crate) fn rate(per_second: u32, at_once: u32) -> DefaultDirectRateLimiter {
    let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(at_once));
    RateLimiter::direct(quota)
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(policy: Policy) -> (watch::Sender<Policy>, Arc<Mutex<Vec<BrokerReport>>>, Party) {
        let (sender, receiver) = watch::channel(policy);
        let told = Arc::<Mutex<Vec<BrokerReport>>>::default();
        let heard = Arc::clone(&told);
        (sender, told, Party::new(receiver, Box::new(move |decision| locked(&heard).push(decision))))
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_carried_at_the_rate_of_the_policy_and_no_more_than_it_says() {
        let policy = Policy { bytes_per_second: 1000, bytes_max: 2500, ..Policy::default() };
        let (_sender, _, party) = party(policy.clone());
        let wait = |party: &Party| party.wait(&policy);
        assert_eq!(wait(&party), Some(Duration::ZERO));
        party.carried(200, &policy);
        assert_eq!(wait(&party), Some(Duration::from_millis(200)));
        // The backlog is counted in bytes: after a change to a faster policy, it is paid off at the faster
        // rate.
        assert_eq!(party.wait(&Policy { bytes_per_second: 1 << 30, ..policy.clone() }), Some(Duration::ZERO));
        party.carried(1000, &policy);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(wait(&party), Some(Duration::ZERO));
        party.carried(1300, &policy);
        assert_eq!((wait(&party), party.used_bytes()), (None, 2500));
    }

    #[tokio::test]
    async fn names_that_were_asked_for_before_cost_nothing() {
        // Covers attack N-10.
        let (_sender, told, party) = party(Policy::default());
        for _ in 0..2000 {
            party.name("a.org").unwrap();
        }
        let refused = (0..2000).filter(|n| party.name(&format!("{n}.a.org")).is_err()).count();
        assert!(refused > 1700, "{refused}");
        let told = locked(&told).len();
        assert!((1..10).contains(&told), "a flood is told as a number, not as {told} lines");
    }
}

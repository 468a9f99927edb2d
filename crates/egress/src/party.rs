//! One sandbox as the broker knows it: its policy, what it has used, and who is told what was decided.

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

use crate::decide::{Ask, shortened};
use crate::place::{Place, Projects, SANDBOX_MAX};
use crate::secret::Keyring;
use crate::tally::Tally;
use crate::{Refusal, RefusalKind};

/// What a sandbox may ask for in a second, and at once after a pause: all its connections twice.
const ASKS_PER_SECOND: u32 = 100;
const ASKS_AT_ONCE: u32 = 1024;
/// Names that were not asked for before, likewise: few programs need more, and each is a message to whoever owns the name.
const NAMES_PER_SECOND: u32 = 5;
const NAMES_AT_ONCE: u32 = 200;
/// Connections that are told that there are too many, at once; the others are closed.
const TURNED_AWAY_MAX: usize = 64;
/// Names that are remembered to have been asked for.
const NAMES_KNOWN_MAX: usize = 512;
/// What is owed for less is not waited for, and no wait is longer before it is looked again, in seconds.
const SHORTEST_WAIT: f64 = 0.002;
const LONGEST_WAIT: f64 = 0.5;
/// What was refused for coming too fast is told this often, as a number.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What was decided about one thing that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The host and the port, in their one form; what was sent instead of a host, escaped.
    pub target: String,
    /// `tunnel`, or the method and the path.
    pub ask: String,
    /// The rule that allows it, or why it was refused.
    pub verdict: Result<String, String>,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Something was decided.
    Decided(Decision),
    /// A package was let in.
    Installed(Installed),
}

/// Is told of everything. Must not wait.
pub type Tell = Box<dyn Fn(Told) + Send + Sync>;

/// One sandbox as the broker knows it.
pub struct Party {
    policy: watch::Receiver<Policy>,
    tally: Arc<Tally>,
    /// Whose connections are counted together.
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
    /// Indexes of packages are asked for one by one.
    pub(crate) index: Semaphore,
}

/// What was carried faster than the policy's rate.
struct Owed {
    bytes: f64,
    at: Instant,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub host: Host,
    pub port: u16,
    pub ask: Ask,
    /// The secrets that go out with it, by name.
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
    /// A sandbox with this policy, whose decisions are told to `tell`.
    pub fn new(policy: watch::Receiver<Policy>, tell: Tell) -> Self {
        Self {
            policy,
            tally: Tally::new(tell),
            project: String::new(),
            keyring: None,
            places: Arc::new(Semaphore::new(SANDBOX_MAX)),
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

    /// The same, of a project, whose sandboxes share a bound on connections.
    #[must_use]
    pub fn of(self, project: &str) -> Self {
        Self { project: project.to_owned(), ..self }
    }

    /// The same, with secrets that its policy may bind.
    #[must_use]
    pub fn holding(self, keyring: Keyring) -> Self {
        Self { keyring: Some(keyring), ..self }
    }

    pub(crate) fn keyring(&self) -> Option<&Keyring> {
        self.keyring.as_ref()
    }

    /// What its connections have carried, both ways.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn policy(&self) -> watch::Receiver<Policy> {
        let mut policy = self.policy.clone();
        policy.mark_unchanged();
        policy
    }

    /// A place for one more connection, if there is one.
    pub(crate) fn place(&self, projects: &Projects) -> Option<Place> {
        let Ok(own) = Arc::clone(&self.places).try_acquire_owned() else {
            self.too_much("concurrent connections");
            return None;
        };
        let Some(shared) = projects.take(&self.project) else {
            self.too_much("concurrent connections, counted together with the other sandboxes of its project");
            return None;
        };
        Some(Place::of([own, shared]))
    }

    /// A place to be told that there is none.
    pub(crate) fn turned_away(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turned_away).try_acquire_owned().ok()
    }

    /// Refuses what is asked too fast.
    pub(crate) fn pace(&self) -> Result<(), Refusal> {
        self.asks.check().map_err(|_| self.too_much("requests per second"))
    }

    /// Refuses too many names that were not asked for before.
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

    /// Counts what was carried.
    pub(crate) fn carried(&self, bytes: usize, policy: &Policy) {
        self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut owed = locked(&self.owed);
        owed.pay(policy);
        #[expect(clippy::cast_precision_loss, reason = "an approximate rate is sufficient")]
        let more = bytes as f64;
        owed.bytes += more;
    }

    /// How long to wait before more is carried, whoever carries it. None when there may be no more.
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

    pub(crate) fn tell(&self, asked: &Asked, verdict: Result<&str, &str>) {
        let mut ask = match &asked.ask {
            Ask::Tunnel => "tunnel".to_owned(),
            Ask::Request { method, path } => format!("{} {}", shortened(method), shortened(path)),
        };
        if !asked.secrets.is_empty() {
            ask = format!("{ask} with {}", asked.secrets.join(", "));
        }
        self.decided(asked.authority(), ask, verdict);
    }

    /// Something that is no host was asked for.
    pub(crate) fn tell_wrong(&self, target: &str, why: &str) {
        self.decided(shortened(target), "none".into(), Err(why));
    }

    /// Something was asked of the gate.
    pub(crate) fn tell_package(&self, path: &str, verdict: Result<&str, &str>) {
        self.decided(crate::gate::HOST.into(), shortened(path), verdict);
    }

    fn decided(&self, target: String, ask: String, verdict: Result<&str, &str>) {
        let verdict = verdict.map(str::to_owned).map_err(str::to_owned);
        self.tally.decided(Decision { target, ask, verdict });
    }

    /// A package was let in.
    pub(crate) fn tell_installed(&self, installed: Installed) {
        self.tally.tell(Told::Installed(installed));
    }

    /// Refuses what came too fast, which is told as a number now and then.
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
            self.tally.tell(Told::Decided(Decision { target: "any".into(), ask: "any".into(), verdict }));
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

impl Asked {
    pub fn new(host: Host, port: u16, ask: Ask) -> Self {
        Self { host, port, ask, secrets: Vec::new() }
    }

    pub fn authority(&self) -> String {
        self.host.authority(self.port)
    }
}

/// Lets so many pass in a second, and so many at once after a pause.
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

    fn party(policy: Policy) -> (watch::Sender<Policy>, Arc<Mutex<Vec<Told>>>, Party) {
        let (sender, receiver) = watch::channel(policy);
        let told = Arc::<Mutex<Vec<Told>>>::default();
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
        // What is owed is bytes: a faster policy is not slowed by what a slower one left.
        assert_eq!(party.wait(&Policy { bytes_per_second: 1 << 30, ..policy.clone() }), Some(Duration::ZERO));
        party.carried(1000, &policy);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(wait(&party), Some(Duration::ZERO));
        party.carried(1300, &policy);
        assert_eq!((wait(&party), party.used_bytes()), (None, 2500));
    }

    #[tokio::test]
    async fn names_that_were_asked_for_before_cost_nothing() {
        // N-10
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

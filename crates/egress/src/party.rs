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
use crate::{Refusal, RefusalKind};

/// Connections of one sandbox at once.
pub const CONNECTIONS_MAX: usize = 512;
/// What a sandbox may ask for in a second, and at once after a pause: all its connections twice.
const ASKS_PER_SECOND: u32 = 200;
const ASKS_AT_ONCE: u32 = 1024;
/// Names that were not asked for before, likewise: few programs need more, and each is a message to whoever owns the name.
const NAMES_PER_SECOND: u32 = 5;
const NAMES_AT_ONCE: u32 = 200;
/// Names that are remembered to have been asked for.
const NAMES_KNOWN_MAX: usize = 512;
/// What was refused for coming too fast is told this often, as a number.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What was decided about one thing that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    tell: Tell,
    places: Arc<Semaphore>,
    asks: DefaultDirectRateLimiter,
    names: DefaultDirectRateLimiter,
    known: Mutex<Recent>,
    refused: Mutex<Flood>,
    used: AtomicU64,
    /// When what was carried so far will have been, at the policy's rate.
    paid_until: Mutex<Instant>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub host: Host,
    pub port: u16,
    pub ask: Ask,
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
        let rate = |per_second: u32, at_once: u32| {
            let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(at_once));
            RateLimiter::direct(quota)
        };
        Self {
            policy,
            tell,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            asks: rate(ASKS_PER_SECOND, ASKS_AT_ONCE),
            names: rate(NAMES_PER_SECOND, NAMES_AT_ONCE),
            known: Mutex::default(),
            refused: Mutex::new(Flood { count: 0, told: None }),
            used: AtomicU64::new(0),
            paid_until: Mutex::new(Instant::now()),
        }
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
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            self.too_much("connections at once");
        }
        place
    }

    /// Refuses what is asked too fast.
    pub(crate) fn pace(&self) -> Result<(), Refusal> {
        self.asks.check().map_err(|_| self.too_much("requests in a second"))
    }

    /// Refuses too many names that were not asked for before.
    pub(crate) fn name(&self, name: &str) -> Result<(), Refusal> {
        let mut known = locked(&self.known);
        if known.names.contains(name) {
            return Ok(());
        }
        self.names.check().map_err(|_| self.too_much("new names in a second"))?;
        if known.order.len() >= NAMES_KNOWN_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.names.remove(&oldest);
        }
        known.order.push_back(name.to_owned());
        known.names.insert(name.to_owned());
        Ok(())
    }

    /// Counts what was carried, and says how long to wait before more is. None when there may be no more.
    pub(crate) fn carried(&self, bytes: usize, policy: &Policy) -> Option<Duration> {
        let used = self.used.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if used > policy.bytes_max {
            return None;
        }
        let now = Instant::now();
        let mut paid_until = locked(&self.paid_until);
        #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let cost = Duration::from_secs_f64(bytes as f64 / policy.bytes_per_second as f64);
        *paid_until = (*paid_until).max(now) + cost;
        Some(paid_until.duration_since(now))
    }

    pub(crate) fn tell(&self, asked: &Asked, verdict: Result<&str, &str>) {
        let ask = match &asked.ask {
            Ask::Tunnel => "tunnel".to_owned(),
            Ask::Request { method, path } => format!("{method} {}", shortened(path)),
        };
        let verdict = verdict.map(str::to_owned).map_err(str::to_owned);
        (self.tell)(Told::Decided(Decision { target: asked.authority(), ask, verdict }));
    }

    /// Something that is no host was asked for.
    pub(crate) fn tell_wrong(&self, target: &str, why: &str) {
        let (target, ask) = (shortened(target), "none".to_owned());
        (self.tell)(Told::Decided(Decision { target, ask, verdict: Err(why.to_owned()) }));
    }

    /// Something was asked of the gate.
    pub(crate) fn tell_package(&self, path: &str, verdict: Result<&str, &str>) {
        let (target, ask) = (crate::gate::HOST.to_owned(), format!("GET {}", shortened(path)));
        let verdict = verdict.map(str::to_owned).map_err(str::to_owned);
        (self.tell)(Told::Decided(Decision { target, ask, verdict }));
    }

    /// A package was let in.
    pub(crate) fn tell_installed(&self, installed: Installed) {
        (self.tell)(Told::Installed(installed));
    }

    /// Counts what came too fast; a flood of it is told as a number now and then.
    fn too_much(&self, what: &str) -> Refusal {
        let mut refused = locked(&self.refused);
        refused.count += 1;
        let now = Instant::now();
        if refused.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY) {
            let verdict = Err(format!("{} refused: too many {what}", refused.count));
            *refused = Flood { count: 0, told: Some(now) };
            (self.tell)(Told::Decided(Decision { target: "any".into(), ask: "any".into(), verdict }));
        }
        Refusal {
            kind: RefusalKind::Busy,
            why: format!("this sandbox makes too many {what}; wait and try again"),
        }
    }
}

impl Asked {
    pub fn authority(&self) -> String {
        self.host.authority(self.port)
    }
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
        assert_eq!(party.carried(1000, &policy), Some(Duration::from_secs(1)));
        assert_eq!(party.carried(1000, &policy), Some(Duration::from_secs(2)));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(party.carried(500, &policy), Some(Duration::from_millis(500)));
        assert_eq!(party.carried(1, &policy), None);
        assert_eq!(party.used_bytes(), 2501);
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

//! Keys: how they are made, and how one that comes with a request is known.
//!
//! A secret is 32 random bytes in lower-case hexadecimal, with or without `e2b_` in front. Its SHA-256 is kept, the secret
//! is not: with that much entropy a slow hash would protect nothing more. Unknown, revoked, expired and malformed keys take
//! the same work and get the same answer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::account::{CreateKey, Key, NewKey, Project, Quota, Role};
use api::{Error, ErrorCode, Layer, Ran, Retry};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, RateLimiter};
use node::machine::random;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::audit::hex;
use crate::fault::{Answer, Fault};
use crate::store::{self, Store};

/// Keys known in memory. A server with more asks the store again now and then.
const KNOWN_MAX: usize = 10_000;
/// Wrong keys from one address in a minute, before they are refused without a look.
const WRONG_PER_MINUTE: u32 = 30;
/// Addresses whose wrong keys are counted.
const ADDRESSES_MAX: usize = 10_000;
/// Bodies of one project that are held at once, in KiB: a hundred pieces of standard input that nobody reads, or eight of
/// the largest execs. Whoever sends more is told to wait.
const BODIES_KIB_MAX: usize = 128 << 10;
/// Open streams of one project: each may hold a megabyte of unread output here.
pub const STREAMS_MAX: usize = 512;
/// Execs of one project that are being started at once.
const LAUNCHES_MAX: usize = 256;

/// A key that was shown, and the project it acts for.
pub struct Account {
    /// The key.
    pub key: Key,
    /// The project's quota.
    pub quota: Quota,
    /// What its project shares.
    pub share: Arc<Share>,
}

/// What all keys of a project share: rates, and places for what is under way.
pub struct Share {
    creates: DefaultDirectRateLimiter,
    execs: DefaultDirectRateLimiter,
    /// Places for open streams.
    pub streams: Arc<Semaphore>,
    /// Places for execs being started.
    launches: Arc<Semaphore>,
    /// Room for bodies, in KiB.
    bodies: Arc<Semaphore>,
}

/// What is known of keys in memory. This process alone writes the store, so what is known here is true.
#[derive(Default)]
pub struct Accounts {
    known: Mutex<Known>,
    wrong: Mutex<HashMap<IpAddr, Arc<DefaultDirectRateLimiter>>>,
}

#[derive(Default)]
struct Known {
    accounts: HashMap<[u8; 32], Arc<Account>>,
    shares: HashMap<String, Arc<Share>>,
    /// How often keys or quotas have changed. What was read from the store before a change is not kept after it.
    changes: u64,
}

/// Which of a project's rates.
#[derive(Clone, Copy)]
pub enum Rate {
    /// Creating sandboxes.
    Create,
    /// Starting execs.
    Exec,
}

impl Accounts {
    /// The account of whoever shows this secret.
    ///
    /// # Errors
    /// `unauthorized`, always with the same words; `rate_limited` for an address that tries too many.
    pub async fn authenticate(
        &self,
        store: &Store,
        secret: Option<&str>,
        from: Option<IpAddr>,
        now_ms: u64,
    ) -> Answer<Arc<Account>> {
        let shown = secret.unwrap_or_default();
        let hash = hash(shown.strip_prefix("e2b_").unwrap_or(shown));
        let (known, changes) = self.look(&hash);
        let account = match known {
            Some(account) => Some(account),
            None if secret.is_none() => None,
            None => {
                store.key_by_hash(&hash).await?.map(|(key, project)| self.learn(hash, key, &project, changes))
            }
        };
        match account.filter(|account| account.key.expires_at_ms.is_none_or(|end| end > now_ms)) {
            Some(account) => Ok(account),
            None => Err(self.refuse(from)),
        }
    }

    /// The account of whoever holds what opens one sandbox of a project: a writer without a key.
    ///
    /// # Errors
    /// The store does not answer, or there is no such project.
    pub async fn acting_for(&self, store: &Store, project: &str) -> Answer<Arc<Account>> {
        // No secret has this hash: secrets are hexadecimal.
        let hash = hash(&format!("of project {project}"));
        let (known, changes) = self.look(&hash);
        if let Some(account) = known {
            return Ok(account);
        }
        let project =
            store.project(project).await?.ok_or_else(|| store::Error::NoProject(project.to_owned()))?;
        let key = Key {
            id: "sandbox".into(),
            project: project.name.clone(),
            role: Role::Write,
            label: String::new(),
            hint: String::new(),
            created_at_ms: project.created_at_ms,
            expires_at_ms: None,
        };
        Ok(self.learn(hash, key, &project, changes))
    }

    /// Forgets all keys: some have changed. What projects share stays, so that nobody gets a second share this way.
    pub fn forget(&self) {
        let mut known = locked(&self.known);
        known.accounts.clear();
        known.changes += 1;
    }

    /// Forgets what the keys of a project share too: its quota has changed.
    pub fn forget_share(&self, project: &str) {
        self.forget();
        locked(&self.known).shares.remove(project);
    }

    fn look(&self, hash: &[u8; 32]) -> (Option<Arc<Account>>, u64) {
        let known = locked(&self.known);
        (known.accounts.get(hash).cloned(), known.changes)
    }

    /// Remembers what the store said, unless something has changed since: a key that was looked up while it was being revoked
    /// would else be valid until the server ends.
    fn learn(&self, hash: [u8; 32], key: Key, project: &Project, changes: u64) -> Arc<Account> {
        let mut known = locked(&self.known);
        let fresh = || Arc::new(Share::of(&project.quota));
        if known.changes != changes {
            let share = known.shares.get(&key.project).cloned().unwrap_or_else(fresh);
            return Arc::new(Account { key, quota: project.quota, share });
        }
        let share = Arc::clone(known.shares.entry(key.project.clone()).or_insert_with(fresh));
        let account = Arc::new(Account { key, quota: project.quota, share });
        if known.accounts.len() >= KNOWN_MAX {
            known.accounts.clear();
        }
        known.accounts.insert(hash, Arc::clone(&account));
        account
    }

    /// The refusal for whoever shows nothing that is valid: after too many from one address, one that costs less.
    pub fn refuse(&self, from: Option<IpAddr>) -> Fault {
        let mut wrong = locked(&self.wrong);
        if wrong.len() >= ADDRESSES_MAX {
            wrong.clear();
        }
        let per_minute = governor::Quota::per_minute(at_least_one(WRONG_PER_MINUTE));
        let limiter = from.map(|from| {
            Arc::clone(wrong.entry(from).or_insert_with(|| Arc::new(RateLimiter::direct(per_minute))))
        });
        drop(wrong);
        if let Some(wait) = limiter.and_then(|limiter| wait(&limiter)) {
            return Fault::from(Error {
                code: ErrorCode::RateLimited,
                message: "too many requests without a valid key came from this address".into(),
                layer: Layer::Policy,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Wait, and then send a valid key.".into(),
            })
            .after(wait);
        }
        Error {
            code: ErrorCode::Unauthorized,
            message: "the request carries no valid key".into(),
            layer: Layer::Policy,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "Use a key made by `belljar key create`: in BELLJAR_KEY, or as `Authorization: Bearer KEY`."
                .into(),
        }
        .into()
    }
}

impl Account {
    /// Refuses a key whose role is less than this.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn require(&self, role: Role) -> Answer<()> {
        if self.key.role >= role {
            return Ok(());
        }
        Err(Error {
            code: ErrorCode::Forbidden,
            message: format!("this needs a key of role {}", name(role)),
            layer: Layer::Policy,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "Use a key with that role; an administrator can make one with `belljar key create`.".into(),
        }
        .into())
    }

    /// Refuses what comes faster than the project's quota allows.
    ///
    /// # Errors
    /// `rate_limited`, with when to ask again.
    pub fn pace(&self, rate: Rate) -> Answer<()> {
        let (limiter, what, most) = match rate {
            Rate::Create => (&self.share.creates, "creates_per_second", self.quota.creates_per_second),
            Rate::Exec => (&self.share.execs, "execs_per_second", self.quota.execs_per_second),
        };
        match wait(limiter) {
            None => Ok(()),
            Some(wait) => Err(busy(format!("the project's quota of {what} is {most}")).after(wait)),
        }
    }
}

impl Share {
    fn of(quota: &Quota) -> Self {
        let rate = |per_second: u32, burst: u32| {
            let quota = governor::Quota::per_second(at_least_one(per_second));
            RateLimiter::direct(quota.allow_burst(at_least_one(per_second.saturating_mul(burst))))
        };
        Self {
            creates: rate(quota.creates_per_second, 10),
            execs: rate(quota.execs_per_second, 2),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            launches: Arc::new(Semaphore::new(LAUNCHES_MAX)),
            bodies: Arc::new(Semaphore::new(BODIES_KIB_MAX)),
        }
    }

    /// A place for an exec that is being started.
    ///
    /// # Errors
    /// `rate_limited`: the project has as many as it may.
    pub fn launch(&self) -> Answer<OwnedSemaphorePermit> {
        Arc::clone(&self.launches).try_acquire_owned().map_err(|_| {
            busy(format!("{LAUNCHES_MAX} execs of the project are being started, the most at once"))
        })
    }

    /// Room for a body of so many bytes, as long as what is returned is held.
    ///
    /// # Errors
    /// `rate_limited`: the project's bodies that are being read or waited with take all of it.
    pub fn room(&self, bytes: usize) -> Answer<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        let bodies = Arc::clone(&self.bodies);
        bodies.try_acquire_many_owned(kib).map_err(|_| {
            busy(format!("bodies of the project hold {} MiB, the most at once", BODIES_KIB_MAX >> 10))
        })
    }
}

/// A fresh key, and the hash under which it is kept.
///
/// # Errors
/// The kernel has no random bytes.
pub fn mint(ask: &CreateKey, now_ms: u64) -> Answer<(NewKey, [u8; 32])> {
    let secret = hex(&random::<32>()?);
    let hint = secret.get(secret.len() - 4..).unwrap_or_default().to_owned();
    let id = format!("k{}", hex(&random::<8>()?));
    let key = Key {
        id,
        project: ask.project.clone(),
        role: ask.role,
        label: ask.label.clone(),
        hint,
        created_at_ms: now_ms,
        expires_at_ms: ask.valid_ms.map(|valid| now_ms.saturating_add(valid)),
    };
    let hash = hash(&secret);
    Ok((NewKey { key, secret }, hash))
}

/// The error for what cannot be taken right now.
pub fn busy(message: String) -> Fault {
    Error {
        code: ErrorCode::RateLimited,
        message,
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Ask again after the time in Retry-After, or ask an administrator for a larger quota.".into(),
    }
    .into()
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Write => "write",
        Role::Admin => "admin",
    }
}

fn wait(limiter: &DefaultDirectRateLimiter) -> Option<Duration> {
    limiter.check().err().map(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(project: &str) -> ([u8; 32], Key, Project) {
        let ask =
            CreateKey { project: project.into(), role: Role::Write, label: String::new(), valid_ms: None };
        let (new, hash) = mint(&ask, 0).unwrap();
        (hash, new.key, Project { name: project.into(), quota: Quota::default(), created_at_ms: 0 })
    }

    #[test]
    fn a_key_that_was_read_before_it_was_revoked_is_not_remembered() {
        let accounts = Accounts::default();
        let (hash, key, project) = asked("one");
        let (_, before) = accounts.look(&hash);
        accounts.forget();
        accounts.learn(hash, key.clone(), &project, before);
        assert!(accounts.look(&hash).0.is_none());
        let (_, after) = accounts.look(&hash);
        accounts.learn(hash, key, &project, after);
        assert!(accounts.look(&hash).0.is_some());
    }

    #[test]
    fn nobody_gets_a_second_share_because_a_key_or_another_project_changed() {
        let accounts = Accounts::default();
        let (hash, key, project) = asked("one");
        let learned = |changes| accounts.learn(hash, key.clone(), &project, changes).share.clone();
        let first = learned(0);
        accounts.forget();
        accounts.forget_share("two");
        assert!(Arc::ptr_eq(&first, &learned(2)));
        accounts.forget_share("one");
        assert!(!Arc::ptr_eq(&first, &learned(3)));
    }
}

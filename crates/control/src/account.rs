//! Accounts: look up the key of each request, and enforce the limits that all requests of a project share.
//!
//! Unknown, revoked, expired and malformed keys take the same amount of work and get the same response, so a
//! client cannot tell them apart.

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::audit::hex;
use crate::authority::Credential;
use crate::authority::failures::Failures;
use crate::authority::lookups::Lookups;
use crate::credential::{ApiKey, KeyHash};
use crate::fault::{Answer, Fault};
use crate::store::{self, Store};

/// Maximum number of keys cached in memory. When the cache is full, it is cleared, and keys are read from the
/// store again.
const KNOWN_MAX: usize = 10_000;
/// Maximum number of requests without a valid key that one address may send per minute. Further requests get
/// `rate_limited` and are not recorded in the audit log.
const WRONG_PER_MINUTE: u32 = 30;
/// Maximum number of addresses for which invalid keys are counted. At the limit, all counters are cleared.
const ADDRESSES_MAX: usize = 10_000;
/// Maximum memory for a project's request bodies, in KiB. This is enough for 80 unread chunks of standard
/// input, or for five exec requests of the maximum size. Together with the memory of its connections, a
/// project uses less than 128 MiB (attack H-41).
const BODIES_KIB_MAX: usize = 80 << 10;
/// Maximum number of open streams per project. The server may buffer up to a megabyte of unread output per
/// stream.
const STREAMS_MAX: usize = 512;
/// Maximum memory for a project's pending responses, in KiB. Each response counts as its size plus
/// `ANSWER_KIB`, which covers all other memory that its request uses.
const ANSWERS_KIB_MAX: usize = 32 << 10;
const ANSWER_KIB: usize = 8;
/// Maximum number of concurrent requests of one project, including open streams. With a higher limit, one
/// project could block the store for all others.
const REQUESTS_MAX: usize = 1024;
/// Maximum number of execs of one project that are starting at the same time.
const LAUNCHES_MAX: usize = 256;

/// Maximum number of key lookups per request. A lookup is repeated if any key changes while it is in
/// progress.
const LOOKS_MAX: usize = 8;

/// The key that a request presented, and the limits of the key's project.
pub struct Account {
    /// Key that the request presented or, if it presented a sandbox token, a synthetic key.
    pub key: Key,
    /// Token that is cancelled when the key is revoked. The cancellation ends the streams that were opened
    /// with the key.
    pub revoked: CancellationToken,
    /// The project's quota.
    pub quota: Quota,
    /// Limits that all keys of the project share.
    pub share: Arc<Share>,
}

/// Limits that all keys of a project share: rates, and permits for work in progress.
pub struct Share {
    creates: DefaultDirectRateLimiter,
    execs: DefaultDirectRateLimiter,
    /// Permits for open streams.
    streams: Arc<Semaphore>,
    /// Permits for execs that are starting.
    launches: Arc<Semaphore>,
    /// Memory for request bodies, in KiB.
    bodies: Arc<Semaphore>,
    /// Memory for pending responses, in KiB.
    answers: Arc<Semaphore>,
    /// Permits for concurrent requests.
    requests: Arc<Semaphore>,
}

/// In-memory cache of keys. Only this process writes to the store, so cached entries are never stale.
#[derive(Default)]
pub struct Accounts {
    known: Mutex<AccountCache>,
    wrong: Mutex<HashMap<IpAddr, Arc<DefaultDirectRateLimiter>>>,
    /// Rate limiter for audit log entries about invalid keys.
    pub failures: Failures,
    lookups: Lookups,
}

#[derive(Default)]
struct AccountCache {
    /// Accounts by the hash of their key. Entries are looked up only by a hash that the server computed,
    /// never by text from a request.
    accounts: HashMap<KeyHash, Arc<Account>>,
    /// Accounts by project and kind of credential, for requests that present a token of one of the project's
    /// sandboxes. Entries are never looked up by text from a request.
    acting: HashMap<(String, Credential), Arc<Account>>,
    /// Cancellation token of each key, by key ID, kept until the key is revoked. The map needs no limit,
    /// because only administrators create keys.
    ends: HashMap<String, CancellationToken>,
    /// Time at which each key was last used, by key ID. Contains only times that are not in the store yet.
    used_ms: HashMap<String, u64>,
    shares: HashMap<String, Arc<Share>>,
    /// Number of changes to keys or quotas so far. If it changes during a lookup, the data that the lookup
    /// read is not cached.
    changes: u64,
}

/// Rate limit of a project.
#[derive(Clone, Copy)]
pub enum Rate {
    /// Rate at which sandboxes are created.
    Create,
    /// Rate at which execs are started.
    Exec,
}

impl Accounts {
    /// Returns the account for the key with this secret.
    ///
    /// # Errors
    /// Returns `unauthorized`, always with the same message, if the request has no valid key, `rate_limited`
    /// if its address has sent too many such requests or too many key lookups are in progress, and
    /// `store_unavailable` if the store does not respond.
    pub async fn authenticate(
        &self,
        store: &Store,
        secret: Option<&str>,
        from: Option<IpAddr>,
        now_ms: u64,
    ) -> Answer<Arc<Account>> {
        // The store's time never goes back, so an expired key stays expired even if the system clock is set
        // back.
        let now_ms = store.now_ms(now_ms);
        let shown = secret.unwrap_or_default();
        let account = match ApiKey::parse(shown) {
            Some(key) => self.by_key(store, key.hash()).await?,
            // A request without a secret does not query the store.
            None if secret.is_none() => None,
            // A malformed key takes as much work as an unknown key.
            None => {
                self.look_for_no_key(store).await?;
                self.without_defence(shown)
            }
        };
        match account {
            Some(account) if account.works(now_ms) => {
                locked(&self.known).used_ms.insert(account.key.id.clone(), now_ms);
                Ok(account)
            }
            Some(_) => {
                // An expired key may be in the cache. Query the store anyway, so that the response takes as
                // long as for an unknown key.
                self.look_for_no_key(store).await?;
                Err(self.refuse(from))
            }
            None => Err(self.refuse(from)),
        }
    }

    /// Queries the store for a hash that matches no key. This takes as long as the lookup of an unknown key.
    async fn look_for_no_key(&self, store: &Store) -> Answer<()> {
        let _place = self.lookups.place()?;
        store.key_by_hash(&KeyHash::of_no_key()).await?;
        Ok(())
    }

    async fn by_key(&self, store: &Store, hash: KeyHash) -> Answer<Option<Arc<Account>>> {
        for _ in 0..LOOKS_MAX {
            let (known, changes) = self.look(&hash);
            if known.is_some() {
                return Ok(known);
            }
            let place = self.lookups.place()?;
            let Some((key, project)) = store.key_by_hash(&hash).await? else { return Ok(None) };
            drop(place);
            if let Some(account) = self.learn(hash, key, &project, changes) {
                return Ok(Some(account));
            }
        }
        Err(busy("the key could not be looked up because keys are being changed".into()))
    }

    /// Returns the account for a request that presents a token of one of the project's sandboxes. The account
    /// has a synthetic key with the role `write`.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or the project does not exist.
    pub async fn acting_for(
        &self,
        store: &Store,
        project: &str,
        credential: Credential,
    ) -> Answer<Arc<Account>> {
        let place = (project.to_owned(), credential);
        if let Some(account) = locked(&self.known).acting.get(&place) {
            return Ok(Arc::clone(account));
        }
        let project =
            store.project(project).await?.ok_or_else(|| store::Error::NoProject(project.to_owned()))?;
        let key = Key {
            id: credential.name().into(),
            project: project.name.clone(),
            role: Role::Write,
            label: String::new(),
            hint: String::new(),
            created_at_ms: project.created_at_ms,
            expires_at_ms: None,
            last_used_at_ms: None,
        };
        let mut known = locked(&self.known);
        let share = known.share(&project);
        let revoked = CancellationToken::new();
        let account = Arc::new(Account { key, revoked, quota: project.quota, share });
        known.make_room();
        known.acting.insert(place, Arc::clone(&account));
        Ok(account)
    }

    /// Returns the account of the named project without authentication if the defence against attack H-22 is
    /// off. Only a test build can turn it off, to prove that the attack succeeds without the defence.
    fn without_defence(&self, shown: &str) -> Option<Arc<Account>> {
        let project = api::defence::is_off("H-22").then(|| shown.strip_prefix("of project "))??;
        locked(&self.known).acting.get(&(project.to_owned(), Credential::Agent)).cloned()
    }

    /// Removes a revoked key from the cache, and ends the streams that were opened with the key.
    pub fn revoke(&self, id: &str) {
        self.forget();
        let ends = locked(&self.known).ends.remove(id);
        if let Some(ends) = ends {
            ends.cancel();
        }
    }

    /// Removes and returns the last-use times that are not in the store yet, in milliseconds since 1970, by
    /// key ID.
    pub fn take_used(&self) -> HashMap<String, u64> {
        std::mem::take(&mut locked(&self.known).used_ms)
    }

    /// Puts back last-use times that the store could not save, except for keys that have been used again
    /// since.
    pub fn put_back_used(&self, used_ms: HashMap<String, u64>) {
        let mut known = locked(&self.known);
        for (id, at_ms) in used_ms {
            known.used_ms.entry(id).or_insert(at_ms);
        }
    }

    /// Returns the time at which a key was last used, if this time is not in the store yet.
    pub fn used_ms(&self, id: &str) -> Option<u64> {
        locked(&self.known).used_ms.get(id).copied()
    }

    /// Clears the cached keys after a change. Keeps the shared limits, so that no project's limits start
    /// over.
    pub fn forget(&self) {
        let mut known = locked(&self.known);
        known.accounts.clear();
        known.acting.clear();
        known.changes += 1;
    }

    /// Clears the cache and the shared limits of a project after a change to its quota.
    pub fn forget_share(&self, project: &str) {
        self.forget();
        locked(&self.known).shares.remove(project);
    }

    fn look(&self, hash: &KeyHash) -> (Option<Arc<Account>>, u64) {
        let known = locked(&self.known);
        (known.accounts.get(hash).cloned(), known.changes)
    }

    /// Caches a key that was read from the store. If any key has changed since the read, caches nothing and
    /// returns `None`. Without this check, a key that was read while it was being revoked would stay valid
    /// until the server stops.
    fn learn(&self, hash: KeyHash, key: Key, project: &Project, changes: u64) -> Option<Arc<Account>> {
        let mut known = locked(&self.known);
        if known.changes != changes {
            return None;
        }
        let share = known.share(project);
        let revoked = known.ends.entry(key.id.clone()).or_default().clone();
        let account = Arc::new(Account { key, revoked, quota: project.quota, share });
        known.make_room();
        known.accounts.insert(hash, Arc::clone(&account));
        Some(account)
    }

    /// Counts a request without a valid key against its address, and returns the error for it:
    /// `unauthorized`, or `rate_limited` after too many such requests.
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
                message: "too many requests without a valid key from this address".into(),
                layer: Layer::Policy,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Wait, then send a valid key.".into(),
            })
            .after(wait);
        }
        Error {
            code: ErrorCode::Unauthorized,
            message: "the request has no key, or its key is unknown, revoked or expired".into(),
            layer: Layer::Policy,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "Set BELLGLASS_API_KEY, or send `Authorization: Bearer KEY`, with a complete key of this server. An administrator creates keys: `bellglass key create --project PROJECT`."
                .into(),
        }
        .into()
    }
}

impl AccountCache {
    fn share(&mut self, project: &Project) -> Arc<Share> {
        let fresh = || Arc::new(Share::new(&project.quota));
        Arc::clone(self.shares.entry(project.name.clone()).or_insert_with(fresh))
    }

    fn make_room(&mut self) {
        if self.accounts.len() + self.acting.len() >= KNOWN_MAX {
            self.accounts.clear();
            self.acting.clear();
        }
    }
}

impl Account {
    /// Returns true if the key is neither revoked nor expired.
    pub fn works(&self, now_ms: u64) -> bool {
        !self.revoked.is_cancelled() && self.key.expires_at_ms.is_none_or(|end| end > now_ms)
    }

    /// Checks that the key has at least this role.
    ///
    /// # Errors
    /// Returns `forbidden` if the key's role is too low.
    pub fn require(&self, role: Role) -> Answer<()> {
        if self.key.role >= role {
            return Ok(());
        }
        Err(Error {
            code: ErrorCode::Forbidden,
            message: format!("this request requires a key with role {}", name(role)),
            layer: Layer::Policy,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "Use a key with the required role. An administrator can create such a key with `bellglass key create`."
                .into(),
        }
        .into())
    }

    /// Counts a request against this rate, and checks that the project has not exceeded the rate.
    ///
    /// # Errors
    /// Returns `rate_limited`, with the delay before a retry, if the project has exceeded the rate.
    pub fn pace(&self, rate: Rate) -> Answer<()> {
        let (limiter, what, most) = match rate {
            Rate::Create => (&self.share.creates, "creates_per_second", self.quota.creates_per_second),
            Rate::Exec => (&self.share.execs, "execs_per_second", self.quota.execs_per_second),
        };
        match wait(limiter) {
            None => Ok(()),
            Some(wait) => {
                Err(busy(format!("the request exceeds the project's quota: {what} is {most}")).after(wait))
            }
        }
    }
}

impl Share {
    /// Creates the rate limiters and permits for a project with this quota.
    pub fn new(quota: &Quota) -> Self {
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
            answers: Arc::new(Semaphore::new(ANSWERS_KIB_MAX)),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }
    }

    /// Acquires a permit for an exec that is starting.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project is at its limit.
    pub fn launch(&self) -> Answer<OwnedSemaphorePermit> {
        Arc::clone(&self.launches)
            .try_acquire_owned()
            .map_err(|_| busy(format!("the project is already starting {LAUNCHES_MAX} execs, the maximum")))
    }

    /// Acquires a permit for an open stream.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project has the maximum number of open streams.
    pub fn stream(&self) -> Answer<OwnedSemaphorePermit> {
        Arc::clone(&self.streams)
            .try_acquire_owned()
            .map_err(|_| busy(format!("the project already has {STREAMS_MAX} open streams, the maximum")))
    }

    /// Acquires a permit for a request, held until its response has been sent.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project is at its limit.
    pub fn request(&self) -> Answer<OwnedSemaphorePermit> {
        let requests = Arc::clone(&self.requests);
        requests.try_acquire_owned().map_err(|_| {
            busy(format!("the project already has {REQUESTS_MAX} requests in progress, the maximum"))
        })
    }

    /// Reserves memory for a response of this many bytes until the returned permit is dropped, which must be
    /// after the response has been sent. Returns `None` if the project's pending responses leave too little
    /// memory.
    pub fn answer(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024) + ANSWER_KIB).unwrap_or(u32::MAX);
        Arc::clone(&self.answers).try_acquire_many_owned(kib).ok()
    }

    /// Reserves memory for a body of this many bytes until the returned permit is dropped.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project's other bodies leave too little memory.
    pub fn room(&self, bytes: usize) -> Answer<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        let bodies = Arc::clone(&self.bodies);
        bodies.try_acquire_many_owned(kib).map_err(|_| {
            busy(format!(
                "request bodies of the project would take more than {} MiB of memory",
                BODIES_KIB_MAX >> 10
            ))
        })
    }
}

/// Creates a key, and returns it with the hash under which it is stored.
///
/// # Errors
/// Returns an error if the kernel's random number generator is unavailable.
pub fn mint(ask: &CreateKey, now_ms: u64) -> Answer<(NewKey, KeyHash)> {
    let secret = ApiKey::fresh()?;
    let key = Key {
        id: format!("k{}", hex(&random::<8>()?)),
        project: ask.project.clone(),
        role: ask.role,
        label: ask.label.clone(),
        hint: secret.hint(),
        created_at_ms: now_ms,
        expires_at_ms: ask.valid_ms.map(|valid| now_ms.saturating_add(valid)),
        last_used_at_ms: None,
    };
    Ok((NewKey { key, secret: secret.reveal() }, secret.hash()))
}

/// Builds the error for a request that currently exceeds a limit.
pub fn busy(message: String) -> Fault {
    Error {
        code: ErrorCode::RateLimited,
        message,
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Retry after the time in Retry-After, or ask an administrator for a larger quota.".into(),
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(project: &str) -> (KeyHash, Key, Project) {
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
        assert!(accounts.learn(hash, key.clone(), &project, before).is_none());
        assert!(accounts.look(&hash).0.is_none());
        let (_, after) = accounts.look(&hash);
        assert!(accounts.learn(hash, key, &project, after).is_some());
        assert!(accounts.look(&hash).0.is_some());
    }

    #[test]
    fn nobody_gets_a_second_share_because_a_key_or_another_project_changed() {
        let accounts = Accounts::default();
        let (hash, key, project) = asked("one");
        let learned = |changes| accounts.learn(hash, key.clone(), &project, changes).unwrap().share.clone();
        let first = learned(0);
        accounts.forget();
        accounts.forget_share("two");
        assert!(Arc::ptr_eq(&first, &learned(2)));
        accounts.forget_share("one");
        assert!(!Arc::ptr_eq(&first, &learned(3)));
    }

    #[test]
    fn revoking_a_key_ends_what_was_opened_with_it_and_no_other() {
        let accounts = Accounts::default();
        let [one, other] = ["one", "two"].map(|project| {
            let (hash, key, project) = asked(project);
            accounts.learn(hash, key, &project, 0).unwrap()
        });
        // Simulate a change to a different key. Accounts that are cached again after the change keep their
        // cancellation tokens.
        accounts.forget();
        accounts.revoke(&one.key.id);
        assert!(one.revoked.is_cancelled() && !other.revoked.is_cancelled());
    }
}

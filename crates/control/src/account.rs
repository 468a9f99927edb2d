//! Accounts: look up the key of each request, and enforce the limits that all requests of a project share.
//!
//! | module | contents |
//! |---|---|
//! | `cache` | the cached keys |
//! | `refusal` | the response to requests without a valid key |
//! | `share` | the limits of a project |
//!
//! Unknown, revoked, expired and malformed keys take the same amount of work and get the same response, so a
//! client cannot tell them apart.

mod cache;
mod refusal;
mod share;

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::account::{CreateKey, Key, NewKey, Quota, Role};
use api::{Error, ErrorCode, Layer, Ran, Retry};
use governor::DefaultDirectRateLimiter;
use governor::clock::{Clock, DefaultClock};
use node::machine::random;
use tokio_util::sync::CancellationToken;

use crate::audit::hex;
use crate::authority::Credential;
use crate::authority::failures::Failures;
use crate::authority::lookups::Lookups;
use crate::credential::{ApiKey, KeyHash};
use crate::fault::{Answer, Fault};
use crate::store::{self, Store};
use cache::AccountCache;
use refusal::Refusals;
pub use share::{Rate, Share};

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

/// In-memory cache of keys. Only this process writes to the store, so cached entries are never stale.
#[derive(Default)]
pub struct Accounts {
    known: Mutex<AccountCache>,
    refusals: Refusals,
    /// Rate limiter for audit log entries about invalid keys.
    pub failures: Failures,
    lookups: Lookups,
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
            let (known, changes) = locked(&self.known).look(&hash);
            if known.is_some() {
                return Ok(known);
            }
            let place = self.lookups.place()?;
            let Some((key, project)) = store.key_by_hash(&hash).await? else { return Ok(None) };
            drop(place);
            if let Some(account) = locked(&self.known).learn(hash, key, &project, changes) {
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
        let known = locked(&self.known).look_acting(&place);
        if let Some(account) = known {
            return Ok(account);
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
        Ok(locked(&self.known).learn_acting(place, key, &project))
    }

    /// Returns the account of the named project without authentication if the defence against attack H-22 is
    /// off. Only a test build can turn it off, to prove that the attack succeeds without the defence.
    fn without_defence(&self, shown: &str) -> Option<Arc<Account>> {
        let project = api::defence::is_off("H-22").then(|| shown.strip_prefix("of project "))??;
        locked(&self.known).look_acting(&(project.to_owned(), Credential::Agent))
    }

    /// Removes a revoked key from the cache, and ends the streams that were opened with the key.
    pub fn revoke(&self, id: &str) {
        self.forget();
        let ends = locked(&self.known).take_end(id);
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
        locked(&self.known).forget();
    }

    /// Clears the cache and the shared limits of a project after a change to its quota.
    pub fn forget_share(&self, project: &str) {
        self.forget();
        locked(&self.known).forget_share(project);
    }

    /// Counts a request without a valid key against its address, and returns the error for it:
    /// `unauthorized`, or `rate_limited` after too many such requests.
    pub fn refuse(&self, from: Option<IpAddr>) -> Fault {
        self.refusals.refuse(from)
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
        if self.key.role >= role || api::defence::is_off("H-25") {
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
        let (what, most) = match rate {
            Rate::Create => ("creates_per_second", self.quota.creates_per_second),
            Rate::Exec => ("execs_per_second", self.quota.execs_per_second),
        };
        match self.share.pace(rate).filter(|_| !api::defence::is_off("A-14")) {
            None => Ok(()),
            Some(wait) => {
                Err(busy(format!("the request exceeds the project's quota: {what} is {most}")).after(wait))
            }
        }
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

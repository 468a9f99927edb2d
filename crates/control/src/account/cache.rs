//! In-memory cache of keys, so that most requests do not query the store.

use std::collections::HashMap;
use std::sync::Arc;

use api::account::{Key, Project};
use tokio_util::sync::CancellationToken;

use super::{Account, Share};
use crate::authority::Credential;
use crate::credential::KeyHash;

/// Maximum number of keys cached in memory. When the cache is full, it is cleared, and keys are read from the
/// store again.
const KNOWN_MAX: usize = 10_000;

/// Cached accounts, and the state of each key and project that must not start over when the cache is cleared.
#[derive(Default)]
pub(super) struct AccountCache {
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
    pub(super) used_ms: HashMap<String, u64>,
    shares: HashMap<String, Arc<Share>>,
    /// Number of changes to keys or quotas so far. If it changes during a lookup, the data that the lookup
    /// read is not cached.
    changes: u64,
}

impl AccountCache {
    /// Returns the cached account for a key, and the number of changes so far.
    pub(super) fn look(&self, hash: &KeyHash) -> (Option<Arc<Account>>, u64) {
        (self.accounts.get(hash).cloned(), self.changes)
    }

    /// Caches a key that was read from the store. If any key has changed since the read, caches nothing and
    /// returns `None`. Without this check, a key that was read while it was being revoked would stay valid
    /// until the server stops.
    pub(super) fn learn(
        &mut self,
        hash: KeyHash,
        key: Key,
        project: &Project,
        changes: u64,
    ) -> Option<Arc<Account>> {
        if self.changes != changes {
            return None;
        }
        let share = self.share(project);
        let revoked = self.ends.entry(key.id.clone()).or_default().clone();
        let account = Arc::new(Account { key, revoked, quota: project.quota, share });
        self.make_room();
        self.accounts.insert(hash, Arc::clone(&account));
        Some(account)
    }

    /// Returns the cached account for requests that present this kind of token of a sandbox of this project.
    pub(super) fn look_acting(&self, place: &(String, Credential)) -> Option<Arc<Account>> {
        self.acting.get(place).cloned()
    }

    /// Caches the account for requests that present this kind of token of a sandbox of this project.
    pub(super) fn learn_acting(
        &mut self,
        place: (String, Credential),
        key: Key,
        project: &Project,
    ) -> Arc<Account> {
        let share = self.share(project);
        let revoked = CancellationToken::new();
        let account = Arc::new(Account { key, revoked, quota: project.quota, share });
        self.make_room();
        self.acting.insert(place, Arc::clone(&account));
        account
    }

    /// Removes and returns the cancellation token of a key.
    pub(super) fn take_end(&mut self, id: &str) -> Option<CancellationToken> {
        self.ends.remove(id)
    }

    /// Clears the accounts after a change. Keeps the shared limits, so that no project's limits start over.
    pub(super) fn forget(&mut self) {
        self.accounts.clear();
        self.acting.clear();
        self.changes += 1;
    }

    /// Removes the shared limits of a project.
    pub(super) fn forget_share(&mut self, project: &str) {
        self.shares.remove(project);
    }

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

#[cfg(test)]
mod tests {
    use api::account::{CreateKey, Quota, Role};

    use super::*;
    use crate::account::{Accounts, locked, mint};

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
        let (_, before) = locked(&accounts.known).look(&hash);
        accounts.forget();
        assert!(locked(&accounts.known).learn(hash, key.clone(), &project, before).is_none());
        assert!(locked(&accounts.known).look(&hash).0.is_none());
        let (_, after) = locked(&accounts.known).look(&hash);
        assert!(locked(&accounts.known).learn(hash, key, &project, after).is_some());
        assert!(locked(&accounts.known).look(&hash).0.is_some());
    }

    #[test]
    fn nobody_gets_a_second_share_because_a_key_or_another_project_changed() {
        let accounts = Accounts::default();
        let (hash, key, project) = asked("one");
        let learned = |changes| {
            locked(&accounts.known).learn(hash, key.clone(), &project, changes).unwrap().share.clone()
        };
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
            locked(&accounts.known).learn(hash, key, &project, 0).unwrap()
        });
        // Simulate a change to a different key. Accounts that are cached again after the change keep their
        // cancellation tokens.
        accounts.forget();
        accounts.revoke(&one.key.id);
        assert!(one.revoked.is_cancelled() && !other.revoked.is_cancelled());
    }
}

//! Connections, counted per address. Connections with a valid key are counted separately.
//!
//! A connection is unauthenticated until it presents a key or a token. Unauthenticated connections have
//! separate slots, so they cannot take the slots of clients with keys. If all of their slots are taken, the
//! connection that has waited longest is closed. A client with a key presents its key within milliseconds. It
//! therefore gets a slot even behind a proxy, where all clients share one address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::rejection::Answer;
use control::account::busy;

use super::idle::Idle;

/// Maximum number of authenticated connections. This is enough for twice the sandboxes of a full machine,
/// with one stream and one call each.
pub(super) const KNOWN_MAX: usize = 4096;
/// Maximum number of authenticated connections from one address. Behind a proxy or on one machine, all
/// clients share an address.
const KNOWN_OF_ADDRESS_MAX: usize = 2048;
/// Maximum number of unauthenticated connections.
const STRANGERS_MAX: usize = 2048;
/// Maximum number of unauthenticated connections from one address. If each buffers a full request head, they
/// take 96 MiB.
const STRANGERS_OF_ADDRESS_MAX: usize = 1536;
/// Maximum memory for request bodies from one address, in KiB. This is more than the budgets of five
/// projects.
const BODIES_KIB_MAX: usize = 512 << 10;
/// Maximum number of refused bodies from one address that are received and dropped at the same time.
const DISCARDS_MAX: usize = 32;
/// Maximum number of requests on unauthenticated connections that wait for a credential. If each has a full
/// head, they take 32 MiB.
const WAITING_MAX: usize = 512;

/// All current connections.
pub(super) struct Guests {
    all: Mutex<All>,
    waiting: Arc<Semaphore>,
}

impl Default for Guests {
    fn default() -> Self {
        Self { all: Mutex::default(), waiting: Arc::new(Semaphore::new(WAITING_MAX)) }
    }
}

#[derive(Default)]
struct All {
    next: u64,
    known: usize,
    strangers: usize,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Default)]
struct Address {
    known: usize,
    /// Unauthenticated connections, in order of arrival.
    strangers: BTreeMap<u64, Stranger>,
    origin: Origin,
}

struct Stranger {
    idle: Idle,
    leave: Arc<Notify>,
}

/// A connection's slot. Dropping it frees the slot.
pub(super) struct ConnectionSlot {
    guests: Arc<Guests>,
    address: IpAddr,
    number: u64,
    leave: Arc<Notify>,
    origin: Origin,
    is_known: AtomicBool,
}

/// Limits that all requests from one address share.
#[derive(Clone)]
pub struct Origin {
    /// Memory budget for bodies, in KiB.
    bodies: Arc<Semaphore>,
    discards: Arc<Semaphore>,
}

impl Default for Origin {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { bodies: places(BODIES_KIB_MAX), discards: places(DISCARDS_MAX) }
    }
}

impl Origin {
    /// Reserves memory for a body of this many bytes until the returned permit is dropped.
    ///
    /// # Errors
    /// Returns `rate_limited` if the bodies of other requests from this address leave too little memory.
    pub fn room(&self, bytes: usize) -> Answer<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        let full = |_| {
            busy(format!(
                "request bodies from this address would take more than {} MiB of memory",
                BODIES_KIB_MAX >> 10
            ))
        };
        Ok(Arc::clone(&self.bodies).try_acquire_many_owned(kib).map_err(full)?)
    }

    /// Returns a permit to receive and drop a refused body, or `None` if too many are being dropped already.
    pub fn discards(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.discards).try_acquire_owned().ok()
    }
}

impl Guests {
    /// Returns a slot for a new, unauthenticated connection from this address. If all slots are taken, closes
    /// a different connection to free one.
    pub(super) fn welcome(guests: &Arc<Self>, address: IpAddr, idle: &Idle) -> ConnectionSlot {
        let mut all = guests.lock();
        all.next += 1;
        let number = all.next;
        if all.strangers >= STRANGERS_MAX {
            let fullest = all.addresses.iter().max_by_key(|(_, one)| one.strangers.len());
            if let Some(fullest) = fullest.map(|(address, _)| *address) {
                all.send_away(fullest);
            }
        }
        if all.addresses.get(&address).is_some_and(|own| own.strangers.len() >= STRANGERS_OF_ADDRESS_MAX) {
            all.send_away(address);
        }
        let leave = Arc::new(Notify::new());
        let own = all.addresses.entry(address).or_default();
        let stranger = Stranger { idle: idle.clone(), leave: Arc::clone(&leave) };
        own.strangers.insert(number, stranger);
        let origin = own.origin.clone();
        all.strangers += 1;
        ConnectionSlot {
            guests: Arc::clone(guests),
            address,
            number,
            leave,
            origin,
            is_known: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Closes one unauthenticated connection from this address: the oldest one without a request in progress
    /// or, if there is none, the oldest one.
    fn send_away(&mut self, address: IpAddr) {
        let Some(own) = self.addresses.get_mut(&address) else { return };
        let waits = own.strangers.iter().find(|(_, stranger)| stranger.idle.waits());
        let Some(number) = waits.or_else(|| own.strangers.iter().next()).map(|(number, _)| *number) else {
            return;
        };
        if let Some(stranger) = own.strangers.remove(&number) {
            self.strangers -= 1;
            stranger.leave.notify_one();
        }
    }
}

impl ConnectionSlot {
    /// Marks the connection as authenticated, unless all slots for authenticated connections are taken.
    pub(super) fn known(&self) {
        let mut all = self.guests.lock();
        let All { known, strangers, addresses, .. } = &mut *all;
        let Some(own) = addresses.get_mut(&self.address) else { return };
        if *known < KNOWN_MAX
            && own.known < KNOWN_OF_ADDRESS_MAX
            && own.strangers.remove(&self.number).is_some()
        {
            *strangers -= 1;
            *known += 1;
            own.known += 1;
            self.is_known.store(true, Ordering::Release);
        }
    }

    /// Closes the connection.
    pub(super) fn send_away(&self) {
        self.leave.notify_one();
    }

    /// Waits until the connection must close, for example to make room for a different connection.
    pub(super) async fn sent_away(&self) {
        self.leave.notified().await;
    }

    /// Returns the limits that all requests from this connection's address share.
    pub(super) fn origin(&self) -> Origin {
        self.origin.clone()
    }
}

impl ConnectionSlot {
    /// Returns a permit to wait for a credential, or `None` if too many requests already wait.
    pub(super) fn may_wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.guests.waiting).try_acquire_owned().ok()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut all = self.guests.lock();
        let All { known, strangers, addresses, .. } = &mut *all;
        let Some(own) = addresses.get_mut(&self.address) else { return };
        if own.strangers.remove(&self.number).is_some() {
            *strangers -= 1;
        }
        if self.is_known.load(Ordering::Acquire) {
            *known -= 1;
            own.known -= 1;
        }
        if own.known == 0 && own.strangers.is_empty() {
            addresses.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn the_oldest_stranger_that_waits_makes_room_and_nobody_who_is_known() {
        let guests = Arc::new(Guests::default());
        let first = Idle::new();
        let busy = first.begin(true);
        let known = Guests::welcome(&guests, HERE, &Idle::new());
        known.known();
        let mut all = vec![Guests::welcome(&guests, HERE, &first)];
        all.extend((1..STRANGERS_OF_ADDRESS_MAX).map(|_| Guests::welcome(&guests, HERE, &Idle::new())));
        assert!(all.iter().all(|place| place.sent_away().now_or_never().is_none()));
        all.push(Guests::welcome(&guests, HERE, &Idle::new()));
        let gone: Vec<usize> =
            (0..all.len()).filter(|at| all[*at].sent_away().now_or_never().is_some()).collect();
        assert_eq!(gone, [1], "the first has a request under way");
        assert!(known.sent_away().now_or_never().is_none());
        drop((busy, known));
        all.clear();
        let left = guests.lock();
        assert_eq!((left.known, left.strangers, left.addresses.len()), (0, 0, 0));
    }
}

//! Who is connected: counted by address, and connections without a key apart from those with one.
//!
//! A connection is a stranger's until a key or a token was shown on it. Strangers have places of their own, so they cannot take those of
//! clients with keys. Where all of them are taken, the stranger that has waited longest makes room: a client with a key shows it within
//! milliseconds, so it gets in, also through a proxy whose address all clients share.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::account::busy;
use crate::fault::Answer;

use super::idle::Idle;

/// Connections on which a key was shown: twice the sandboxes of a full machine, each with a stream and a call.
pub(super) const KNOWN_MAX: usize = 4096;
/// The same of one address. Behind a proxy, and on one machine, that is everybody.
const KNOWN_OF_ADDRESS_MAX: usize = 2048;
/// Connections without a key.
const STRANGERS_MAX: usize = 2048;
/// The same of one address: with a full head each, they hold 96 MiB.
const STRANGERS_OF_ADDRESS_MAX: usize = 1536;
/// Bodies from one address that are held at once, in KiB: as much as five projects may have.
const BODIES_KIB_MAX: usize = 512 << 10;
/// Refused bodies from one address that are received and dropped at once.
const DISCARDS_MAX: usize = 32;
/// Requests of all strangers that wait for a place on their connection: with a full head each, they hold 32 MiB.
const WAITING_MAX: usize = 512;

/// Who is connected.
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
    /// In the order in which they came.
    strangers: BTreeMap<u64, Stranger>,
    origin: Origin,
}

struct Stranger {
    idle: Idle,
    leave: Arc<Notify>,
}

/// A place among the connections, returned when dropped.
pub(super) struct Place {
    guests: Arc<Guests>,
    address: IpAddr,
    number: u64,
    leave: Arc<Notify>,
    origin: Origin,
    is_known: AtomicBool,
}

/// What all requests from one address share.
#[derive(Clone)]
pub struct Origin {
    /// Room for bodies, in KiB.
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
    /// Room for a body of so many bytes, for as long as what is returned is held.
    ///
    /// # Errors
    /// `rate_limited`: bodies from this address take all of it.
    pub fn room(&self, bytes: usize) -> Answer<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        Arc::clone(&self.bodies).try_acquire_many_owned(kib).map_err(|_| {
            busy(format!(
                "request bodies from this address would take more than {} MiB of memory",
                BODIES_KIB_MAX >> 10
            ))
        })
    }

    /// A turn to send a body that was refused.
    pub fn discards(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.discards).try_acquire_owned().ok()
    }
}

impl Guests {
    /// A place for a connection from this address, on which nobody is known yet.
    pub(super) fn welcome(guests: &Arc<Self>, address: IpAddr, idle: &Idle) -> Place {
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
        Place { guests: Arc::clone(guests), address, number, leave, origin, is_known: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Ends the connection of one stranger: the oldest of which no request is under way, or the oldest.
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

impl Place {
    /// Somebody on it is known from now on. Where those have no place left, it stays a stranger's.
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

    /// Ends the connection.
    pub(super) fn send_away(&self) {
        self.leave.notify_one();
    }

    /// Returns when the connection has to end, or to make room for another.
    pub(super) async fn sent_away(&self) {
        self.leave.notified().await;
    }

    /// What its requests share with others.
    pub(super) fn origin(&self) -> Origin {
        self.origin.clone()
    }
}

impl Place {
    /// A turn to wait, unless too many do.
    pub(super) fn may_wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.guests.waiting).try_acquire_owned().ok()
    }
}

impl Drop for Place {
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

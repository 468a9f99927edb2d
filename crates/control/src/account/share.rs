//! Limits that all keys of a project share. A request that exceeds a limit is rejected at once instead of
//! waiting. Only lists wait for each other, for a limited time.

use std::sync::Arc;
use std::time::Duration;

use api::account::Quota;
use governor::{DefaultDirectRateLimiter, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{at_least_one, busy, wait};
use crate::fault::{Answer, Fault};

/// Maximum memory for a project's request bodies, in KiB. This is enough for 80 unread chunks of standard
/// input, or for five exec requests of the maximum size. Together with the memory of its connections, a
/// project uses less than 128 MiB (attack H-41).
const BODIES_KIB_MAX: usize = 80 << 10;
/// Maximum number of open streams per project. The server may buffer up to a megabyte of unread output per
/// stream.
const STREAMS_MAX: usize = 512;
/// Maximum memory for a project's pending responses, in KiB: for lists, and for all other responses, so that
/// unread lists do not cause the response to a create request to be refused. Each response counts as its size
/// plus `ANSWER_KIB`, which covers all other memory that its request uses.
const LISTS_KIB_MAX: usize = 8 << 10;
const ANSWERS_KIB_MAX: usize = 24 << 10;
const ANSWER_KIB: usize = 8;
/// Size of a list of one full page, in KiB.
const LIST_KIB: usize = 1 << 10;
/// Maximum number of lists of a project that are read and encoded at the same time. The size of a list is only
/// known afterwards; until then, it takes several times the size of one page.
const LISTS_MAX: usize = 2;
/// The same for lists that are read from a sandbox. They have permits of their own, because a sandbox can respond
/// late.
const GUEST_LISTS_MAX: usize = 3;
/// Timeout for a list that waits for others. A list takes milliseconds, so only a project that requests a
/// thousand at once reaches this timeout.
const LIST_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests of one project, including open streams. With a higher limit, one
/// project could block the store for all others.
const REQUESTS_MAX: usize = 1024;
/// Maximum number of execs of one project that are starting at the same time.
const LAUNCHES_MAX: usize = 256;

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
    /// Memory for pending responses other than lists, in KiB.
    answers: Arc<Semaphore>,
    /// Memory for pending lists, in KiB.
    lists: Arc<Semaphore>,
    /// Permits for lists that are being read from the machine.
    listing: Arc<Semaphore>,
    /// Permits for lists that are being read from a sandbox.
    guest_listing: Arc<Semaphore>,
    /// Permits for concurrent requests.
    requests: Arc<Semaphore>,
}

/// Rate limit of a project.
#[derive(Clone, Copy)]
pub enum Rate {
    /// Rate at which sandboxes are created.
    Create,
    /// Rate at which execs are started.
    Exec,
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
            lists: Arc::new(Semaphore::new(LISTS_KIB_MAX)),
            listing: Arc::new(Semaphore::new(LISTS_MAX)),
            guest_listing: Arc::new(Semaphore::new(GUEST_LISTS_MAX)),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }
    }

    /// Counts a request against this rate. If the rate is exceeded, returns the delay before a retry.
    pub(super) fn pace(&self, rate: Rate) -> Option<Duration> {
        match rate {
            Rate::Create => wait(&self.creates),
            Rate::Exec => wait(&self.execs),
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
        Arc::clone(&self.answers).try_acquire_many_owned(kib_of_answer(bytes)).ok()
    }

    /// Waits for a permit to read a list from the machine, held until the list is encoded.
    ///
    /// # Errors
    /// Returns `rate_limited` if other lists of the project take too long, or if too many are unread.
    pub async fn listing(&self) -> Answer<Option<OwnedSemaphorePermit>> {
        self.turn(&self.listing).await
    }

    /// Does the same as [`Share::listing`] for a list that is read from a sandbox.
    ///
    /// # Errors
    /// Returns the same errors.
    pub async fn guest_listing(&self) -> Answer<Option<OwnedSemaphorePermit>> {
        self.turn(&self.guest_listing).await
    }

    async fn turn(&self, turns: &Arc<Semaphore>) -> Answer<Option<OwnedSemaphorePermit>> {
        if api::defence::is_off("H-41") {
            return Ok(None);
        }
        // Refuse a list before it is read if it would probably be refused afterwards.
        let has_room = || self.lists.available_permits() >= LIST_KIB;
        if !has_room() {
            return Err(unread());
        }
        let turn = tokio::time::timeout(LIST_WITHIN, Arc::clone(turns).acquire_owned()).await;
        match turn.ok().and_then(Result::ok) {
            Some(_) if !has_room() => Err(unread()),
            Some(turn) => Ok(Some(turn)),
            None => Err(busy("the project is already reading as many lists as it may".into())),
        }
    }

    /// Reserves memory for an encoded list of this many bytes until the returned permit is dropped, which must be
    /// after the list has been sent. A list that is larger than the maximum takes all of it.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project's pending lists leave too little memory.
    pub fn list(&self, bytes: usize) -> Answer<OwnedSemaphorePermit> {
        let kib = kib_of_answer(bytes).min(u32::try_from(LISTS_KIB_MAX).unwrap_or(u32::MAX));
        Arc::clone(&self.lists).try_acquire_many_owned(kib).map_err(|_| unread())
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

fn unread() -> Fault {
    busy(format!(
        "lists that the project's clients have not read yet take {} MiB of memory, the maximum",
        LISTS_KIB_MAX >> 10
    ))
}

fn kib_of_answer(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024) + ANSWER_KIB).unwrap_or(u32::MAX)
}

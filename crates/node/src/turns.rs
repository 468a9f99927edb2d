//! The scheduler of sandbox starts and command launches. Only a few run at a time, projects are served
//! round-robin, and a queue that does not empty may not grow.
//!
//! Bursts are queued. For [`TurnLimits::burst`] after a queue forms, a request is accepted if its turn is
//! expected within `longest`. This burst credit is used up while requests wait, and refills while the queue
//! is empty. Once the credit is used up, the load is too high: only requests whose turn is expected within
//! `soon` are accepted. All others are refused at once, so that clients can retry them. Because projects take
//! turns, a project with few requests waits for only one start of each other project, however many requests
//! the others have.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// Limits for starts of sandboxes. Two run per core: one computes while the other waits for a disk or a
/// device. Running more at a time would not be faster; every start would only finish later.
pub(crate) const STARTS: TurnLimits = TurnLimits {
    for_each_core: 2,
    least: 4,
    burst: Duration::from_millis(1500),
    longest: Duration::from_secs(3),
    soon: Duration::from_millis(500),
    unknown: Duration::from_millis(50),
};
/// Limits for launches of commands. More launches than starts run per core, because a launch is mostly kernel
/// work inside the sandbox, and half of its remaining time is spent waiting for a response.
pub(crate) const LAUNCHES: TurnLimits = TurnLimits {
    for_each_core: 4,
    least: 8,
    burst: Duration::from_millis(500),
    longest: Duration::from_secs(1),
    soon: Duration::from_millis(50),
    unknown: Duration::from_millis(5),
};
/// Maximum time for which a launch waits for its turn, even if a shorter wait was estimated.
pub(crate) const LAUNCH_WITHIN: Duration = Duration::from_secs(10);
/// Maximum length of the queue across all projects.
const WAITING_MAX: usize = 1024;
/// Inverse weight of the newest turn in the moving average of durations: the newest counts one eighth.
const PARTS: u32 = 8;

/// Limits for one kind of work: sandbox starts or command launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimits {
    for_each_core: usize,
    /// Minimum number of concurrent turns, for machines with few cores.
    least: usize,
    /// Time for which a queue may exist before it counts as overload.
    burst: Duration,
    /// Maximum estimated wait of a request during a burst.
    longest: Duration,
    /// Maximum estimated wait of a request during overload.
    soon: Duration,
    /// Assumed duration of a turn until one has been measured.
    unknown: Duration,
}

/// The scheduler of one kind of work on this machine.
#[derive(Debug)]
pub(crate) struct Turns {
    kind: TurnLimits,
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    running: usize,
    waiting: usize,
    /// Projects with waiting requests, in the order in which they are served.
    projects: VecDeque<(String, VecDeque<oneshot::Sender<TurnPermit>>)>,
    /// Time at which the queue last formed or became empty.
    since: Instant,
    /// Time from `since` until a queue counts as overload. It shrinks while requests wait, and refills while
    /// the queue is empty.
    credit: Duration,
    /// Average duration of a turn.
    each: Duration,
}

/// Permission to do one piece of work. Dropping the permit ends the turn.
#[derive(Debug)]
pub(crate) struct TurnPermit {
    /// `None` if the turn was never used.
    turns: Option<Arc<Turns>>,
    begun: Instant,
}

impl Turns {
    /// Creates a scheduler that allows as many turns at a time as this machine can use.
    pub fn new(kind: TurnLimits) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Arc::new(Self::of(kind, (kind.for_each_core * cores).max(kind.least)))
    }

    fn of(kind: TurnLimits, most: usize) -> Self {
        let (projects, since, credit, each) = (VecDeque::new(), Instant::now(), kind.burst, kind.unknown);
        let queue = Queue { running: 0, waiting: 0, projects, since, credit, each };
        Self { kind, most, queue: Mutex::new(queue) }
    }

    /// Returns a turn if one is available without waiting.
    pub fn try_turn(self: &Arc<Self>) -> Option<TurnPermit> {
        self.free(&mut self.queue())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that a request of this project, received at `asked`, may wait for a turn.
    ///
    /// # Errors
    /// The request may not wait. The error is the number of waiting requests.
    pub fn may_wait(&self, project: &str, asked: Instant) -> Result<(), usize> {
        let queue = self.queue();
        let own = queue.projects.iter().find(|(name, _)| name == project);
        let own = own.map_or(0, |(_, waiting)| waiting.len());
        let projects = queue.projects.len().max(1);
        // Each project gets one turn in each round.
        let before =
            u32::try_from((own + 1).saturating_mul(projects).min(queue.waiting + 1)).unwrap_or(u32::MAX);
        let wait = queue.each.saturating_mul(before) / u32::try_from(self.most).unwrap_or(1).max(1);
        let burst = queue.waiting == 0 || asked.saturating_duration_since(queue.since) < queue.credit;
        let longest = if burst { self.kind.longest } else { self.kind.soon };
        if queue.waiting < WAITING_MAX && wait <= longest { Ok(()) } else { Err(queue.waiting) }
    }

    /// Takes a free turn if the queue is empty.
    fn free(self: &Arc<Self>, queue: &mut Queue) -> Option<TurnPermit> {
        let is_free = queue.running < self.most && queue.waiting == 0;
        is_free.then(|| {
            queue.running += 1;
            self.begin()
        })
    }

    /// Waits for a turn of this project.
    pub async fn turn(self: &Arc<Self>, project: &str) -> TurnPermit {
        let waiting = {
            let mut queue = self.queue();
            if let Some(turn) = self.free(&mut queue) {
                return turn;
            }
            let (sender, waiting) = oneshot::channel();
            queue.push(project, sender, self.kind.burst);
            waiting
        };
        match waiting.await {
            Ok(turn) => turn,
            // Unreachable: senders are only dropped after they have sent a turn.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns true if the load is so high that work without a waiting client should be postponed.
    pub fn are_scarce(&self) -> bool {
        let queue = self.queue();
        queue.waiting > 0 || queue.running > self.most / 2
    }

    fn begin(self: &Arc<Self>) -> TurnPermit {
        TurnPermit { turns: Some(Arc::clone(self)), begun: Instant::now() }
    }

    /// Hands free turns to waiting requests, one project after another.
    fn pass_on(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        while queue.running < self.most
            && let Some(next) = queue.pop()
        {
            // If the request has been cancelled, its turn is not counted. If the request is cancelled later,
            // the turn is dropped with the channel.
            match next.send(self.begin()) {
                Ok(()) => queue.running += 1,
                Err(turn) => turn.forget(),
            }
        }
    }
}

impl Queue {
    fn push(&mut self, project: &str, sender: oneshot::Sender<TurnPermit>, burst: Duration) {
        if self.waiting == 0 {
            self.credit = (self.credit + self.since.elapsed()).min(burst);
            self.since = Instant::now();
        }
        self.waiting += 1;
        match self.projects.iter_mut().find(|(name, _)| name == project) {
            Some((_, waiting)) => waiting.push_back(sender),
            None => self.projects.push_back((project.to_owned(), VecDeque::from([sender]))),
        }
    }

    fn pop(&mut self) -> Option<oneshot::Sender<TurnPermit>> {
        let (project, mut waiting) = self.projects.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.projects.push_back((project, waiting));
        }
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.credit = self.credit.saturating_sub(self.since.elapsed());
            self.since = Instant::now();
        }
        next
    }
}

impl TurnPermit {
    fn forget(mut self) {
        self.turns = None;
    }
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        let Some(turns) = self.turns.take() else { return };
        let mut queue = turns.queue();
        queue.running = queue.running.saturating_sub(1);
        queue.each = (queue.each * (PARTS - 1) + self.begun.elapsed()) / PARTS;
        turns.pass_on(queue);
    }
}

#[cfg(test)]
impl Turns {
    /// Takes all turns and simulates an overloaded queue, until the returned turns are dropped.
    pub fn overload(self: &Arc<Self>) -> Vec<TurnPermit> {
        let held: Vec<_> = std::iter::from_fn(|| self.try_turn()).collect();
        assert_eq!(held.len(), self.most);
        let mut queue = self.queue();
        queue.push("p", oneshot::channel().0, Duration::ZERO);
        (queue.credit, queue.each) = (Duration::ZERO, Duration::from_secs(1));
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn projects_take_turns_however_much_one_of_them_asks_for() {
        let turns = Arc::new(Turns::of(STARTS, 1));
        let held = turns.turn("busy").await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for project in ["busy", "busy", "busy", "modest", "busy", "other"] {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _turn = turns.turn(project).await;
                order.lock().unwrap().push(project);
            }));
            tokio::task::yield_now().await;
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["busy", "modest", "other", "busy", "busy", "busy"]);
        assert_eq!(turns.queue().running, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_waits_and_a_queue_that_stands_is_not_made_longer() {
        let turns = Arc::new(Turns::of(STARTS, 4));
        let held = [(); 4].map(|()| turns.free(&mut turns.queue()).unwrap());
        let waiting: Vec<_> = (0..200)
            .map(|_| {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move {
                    assert_eq!(turns.may_wait("p", Instant::now()), Ok(()));
                    drop(turns.turn("p").await);
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(1400)).await;
        assert_eq!(turns.may_wait("p", Instant::now()), Ok(()), "still a burst");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(turns.may_wait("p", Instant::now()), Err(200));
        assert_eq!(turns.may_wait("q", Instant::now()), Ok(()), "who asks for little waits for little");
        drop(held);
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(turns.may_wait("p", Instant::now()), Ok(()), "and when it is empty, all is as before");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_burst_is_earned_again_while_nobody_waits() {
        let kind = TurnLimits { soon: Duration::from_millis(150), ..STARTS };
        let turns = Arc::new(Turns::of(kind, 1));
        for (calm, longest) in [(0, 1500), (100, 100), (700, 700), (9000, 1500)] {
            tokio::time::sleep(Duration::from_millis(calm)).await;
            let held = turns.turn("p").await;
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let turns = Arc::clone(&turns);
                    tokio::spawn(async move { drop(turns.turn("p").await) })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(longest - 1)).await;
            assert_eq!(turns.may_wait("p", Instant::now()), Ok(()), "after {calm} ms");
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(turns.may_wait("p", Instant::now()), Err(3), "after {calm} ms");
            drop(held);
            for task in waiting {
                task.await.unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_that_nobody_would_wait_for_ends_before_its_time() {
        let turns = Arc::new(Turns::of(STARTS, 1));
        let _held = turns.turn("p").await;
        let mut waiting = Vec::new();
        while turns.may_wait("p", Instant::now()).is_ok() {
            let turns = Arc::clone(&turns);
            waiting.push(tokio::spawn(async move { drop(turns.turn("p").await) }));
            tokio::task::yield_now().await;
        }
        let most = STARTS.longest.as_millis() / STARTS.unknown.as_millis();
        assert_eq!(waiting.len() as u128, most);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_of_somebody_who_is_gone_is_the_next_ones() {
        let turns = Arc::new(Turns::of(STARTS, 1));
        let held = turns.turn("p").await;
        let gone = {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { drop(turns.turn("p").await) })
        };
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        let next = {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { drop(turns.turn("q").await) })
        };
        tokio::task::yield_now().await;
        drop(held);
        tokio::time::timeout(Duration::from_secs(1), next).await.unwrap().unwrap();
        assert_eq!(turns.queue().running, 0);
        assert!(!turns.are_scarce());
    }
}

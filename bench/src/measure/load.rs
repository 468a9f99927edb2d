//! Everything at once: lives, execs, cells and files that arrive at random times, at shares of what the machine can do.
//!
//! ```text
//! calibrate: so many workers, each with the next job when one is done   ──▶ capacity: jobs in a second, of the second half:
//!            the first uses up what was made ahead, which a machine has once and not every second
//! rest:      what a machine does after it had all it can do is not measured
//! load:      jobs arrive at percent × capacity, whether others are done or not (open loop)
//! after it:  if it was more than 100 %: a create and exec, again and again, until one takes as long as it does normally
//! ```
//!
//! A client that waits for an answer before it asks again hides how long others would have waited; arrivals here do not wait. What a
//! server refuses is counted by its code and timed apart from what it admits. One target at a time.

mod job;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::job::{Done, Jobs};
use super::{Shared, make, stop, timed};
use crate::figure::{Figure, Unit};
use crate::random::Sequence;
use crate::samples::Tally;
use crate::scenario::Load;
use crate::target::{Failure, Image};

const CAPACITY: &str = "capacity, all kinds of jobs";
const ARRIVED: &str = "jobs that arrived";
const DONE: &str = "jobs that were completed";
const ADMITTED: &str = "all admitted steps";
const REFUSED: &str = "all refusals, until the response";
const RECOVERED: &str = "time until a normal create works again";
/// More under way, and it is a server's bound on connections of one address that is measured (Bellglass's is 2048): then jobs are not
/// sent, and counted as `not_sent`.
const UNDER_WAY_MAX: usize = 2000;
/// A server that is not well by then has not recovered.
const RECOVERS_WITHIN: Duration = Duration::from_secs(120);
/// Between two looks whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a create may take where nothing was measured before.
const NORMAL: Duration = Duration::from_secs(1);
/// Between finding out what a machine can do and the first load.
const REST: Duration = Duration::from_secs(20);
/// The same jobs in the same order in every run.
const SEED: u64 = 97;

/// How jobs arrive.
struct Arrivals {
    per_second: f64,
    duration: Duration,
    /// If it is to be seen when it is well again: what a create and its first exec take then.
    recovers_to: Option<Duration>,
}

/// How long it took until it was well again.
type Recovery = Result<Duration, Failure>;

/// What came of one load.
#[derive(Default)]
struct Taken {
    steps: BTreeMap<&'static str, Tally>,
    arrived: u64,
    done: u64,
    /// From the first arrival to the last.
    arriving: Duration,
    /// And to the end of the last job.
    busy: Duration,
}

pub(super) async fn run(work: &Load, targets: &[Shared]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for target in targets {
        let (standing, made) = make(target, Image::Data, work.standing).await;
        let jobs = Arc::new(Jobs::new(Arc::clone(target), standing, work.mix));
        jobs.warm().await;
        let capacity = calibrate(work, &jobs).await;
        let mut figure = Figure::value(CAPACITY, None, target.name(), (capacity, Unit::PerSecond));
        figure.failures = made.failures;
        figures.push(figure);
        tokio::time::sleep(REST).await;
        let mut normal = None;
        for percent in &work.percent {
            let arrivals = Arrivals {
                per_second: capacity * (*percent as f64) / 100.0,
                duration: Duration::from_secs(work.seconds),
                // What is normal is known only after a load that was.
                recovers_to: (*percent > 100).then(|| normal.unwrap_or(NORMAL)),
            };
            let (taken, recovered) = arrive(&arrivals, &jobs).await;
            let create = taken.steps.get(job::CREATE).and_then(|tally| tally.times.summary());
            normal = normal.or(create.map(|create| Duration::from_secs_f64(2e-3 * create.p95_ms)));
            figures.extend(taken.figures(*percent, target.name()));
            if let Some(recovered) = recovered {
                let mut tally = Tally::default();
                tally.note(recovered.map_err(|failure| (failure, RECOVERS_WITHIN)));
                figures.push(Figure::times(RECOVERED, Some(*percent), target.name(), &tally));
            }
        }
        stop(target, &jobs.standing).await;
    }
    figures
}

/// Jobs in a second that so many workers get done, and go on getting done: of the first half of the time nothing is counted.
async fn calibrate(work: &Load, jobs: &Arc<Jobs>) -> f64 {
    let until = Instant::now() + Duration::from_secs(work.calibrate_s);
    let counted_from = until - Duration::from_secs(work.calibrate_s) / 2;
    let mut workers = JoinSet::new();
    for worker in 0..work.workers {
        let jobs = Arc::clone(jobs);
        workers.spawn(async move {
            let mut sequence = Sequence::new(SEED + worker as u64);
            let mut done = 0_u64;
            while Instant::now() < until {
                let steps = jobs.run(jobs.pick(&mut sequence)).await;
                let counts = Instant::now() >= counted_from && steps.iter().all(|(_, step)| step.is_ok());
                done += u64::from(counts);
            }
            done
        });
    }
    let mut done = 0;
    while let Some(counted) = workers.join_next().await {
        done += counted.unwrap_or(0);
    }
    // A machine that gets nothing done is asked for one job a second, and shown to fail.
    (done as f64 / counted_from.elapsed().as_secs_f64()).max(1.0)
}

/// Jobs that arrive by themselves; and, if more came than could be done, how long after the last it was well again.
async fn arrive(arrivals: &Arrivals, jobs: &Arc<Jobs>) -> (Taken, Option<Recovery>) {
    let mut sequence = Sequence::new(SEED);
    let mut under_way: JoinSet<Vec<Done>> = JoinSet::new();
    let mut taken = Taken::default();
    // Those of the calibration, or of the load before, are not of this one.
    jobs.take_starts();
    let began = Instant::now();
    let until = began + arrivals.duration;
    let mut next = began;
    loop {
        next += sequence.pause(arrivals.per_second);
        if next >= until {
            break;
        }
        tokio::time::sleep_until(next.into()).await;
        taken.arrived += 1;
        if under_way.len() >= UNDER_WAY_MAX {
            taken.count(vec![(
                job::NOT_SENT,
                Err((Failure::new("not_sent", "too many jobs are in progress"), NORMAL)),
            )]);
        } else {
            let (job, jobs) = (jobs.pick(&mut sequence), Arc::clone(jobs));
            under_way.spawn(async move { jobs.run(job).await });
        }
        while let Some(done) = under_way.try_join_next() {
            taken.count(done.unwrap_or_default());
        }
    }
    taken.arriving = began.elapsed();
    let recovering = async {
        match arrivals.recovers_to {
            Some(normal) => Some(recover(&jobs.target, normal).await),
            None => None,
        }
    };
    let draining = async {
        while let Some(done) = under_way.join_next().await {
            taken.count(done.unwrap_or_default());
        }
    };
    let (recovered, ()) = tokio::join!(recovering, draining);
    taken.busy = began.elapsed();
    taken.steps.entry(job::CREATE).or_default().merge(jobs.take_starts());
    (taken, recovered)
}

/// How long it takes until a create and its first exec take no longer than normal.
async fn recover(target: &Shared, normal: Duration) -> Recovery {
    let began = Instant::now();
    while began.elapsed() < RECOVERS_WITHIN {
        let tried = timed(async {
            let made = target.create(Image::Plain).await?;
            let answered = match target.execs() {
                Some(execs) => execs.exec(&made.handle).await,
                None => Ok(()),
            };
            answered.map(|()| made.handle)
        });
        if let Ok((handle, took)) = tried.await {
            let after = began.elapsed();
            let _ = target.stop(&handle).await;
            if took <= normal {
                return Ok(after);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(Failure::new("not_recovered", format!("no recovery within {} s", RECOVERS_WITHIN.as_secs())))
}

impl Taken {
    fn count(&mut self, steps: Vec<Done>) {
        self.done += u64::from(!steps.is_empty() && steps.iter().all(|(_, step)| step.is_ok()));
        for (what, step) in steps {
            self.steps.entry(what).or_default().note(step);
        }
    }

    fn figures(self, percent: u64, target: &'static str) -> Vec<Figure> {
        let at = Some(percent);
        let mut all = Tally::default();
        self.steps.values().for_each(|tally| all.merge(tally.clone()));
        let refusals = Tally { times: all.refusals.clone(), ..Tally::default() };
        let rate = |count: u64, time: Duration| {
            (count as f64 / time.as_secs_f64().max(f64::EPSILON), Unit::PerSecond)
        };
        let mut figures = vec![
            Figure::value(ARRIVED, at, target, rate(self.arrived, self.arriving)),
            Figure::value(DONE, at, target, rate(self.done, self.busy)),
            Figure::times(ADMITTED, at, target, &all),
            Figure::times(REFUSED, at, target, &refusals),
        ];
        figures.extend(self.steps.iter().map(|(what, tally)| Figure::times(what, at, target, tally)));
        figures
    }
}

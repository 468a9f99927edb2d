//! Runs a mix of lifecycles, execs, cells and file transfers. The jobs arrive at random times, at rates that
//! are percentages of the machine's capacity.
//!
//! ```text
//! calibrate: each worker starts the next job when one is done            ──▶ capacity: jobs per second in the second half;
//!            the first half uses up the pre-warmed pool, which would otherwise inflate the rate
//! rest:      a pause, so that the aftermath of full load is not measured
//! load:      jobs arrive at percent × capacity, whether earlier jobs are done or not (open loop)
//! recovery:  after more than 100 %: create and exec, repeated until one attempt is as fast as under normal load
//! ```
//!
//! A client that waits for a response before it sends the next request hides the time that other requests
//! would have waited (coordinated omission). Here, arrivals do not wait for responses. Refusals are counted
//! by code, and their times are recorded separately from the times of admitted requests. Targets are measured
//! one at a time.

mod job;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::job::{Jobs, StepResult};
use super::{SharedTarget, make, stop, timed};
use crate::figure::{Figure, Unit};
use crate::random::Sequence;
use crate::samples::AttemptTally;
use crate::scenario::LoadParameters;
use crate::target::{Image, TargetFailure};

const CAPACITY: &str = "capacity, all kinds of jobs";
const ARRIVED: &str = "jobs that arrived";
const DONE: &str = "jobs that were completed";
const ADMITTED: &str = "all admitted steps";
const REFUSED: &str = "all refusals, until the response";
const RECOVERED: &str = "time until a normal create works again";
/// Maximum number of jobs in progress. With more jobs, the bench would reach the server's limit on
/// connections from one address (2048 for Bellglass). The bench does not send jobs beyond this number, and
/// counts them as `not_sent`.
const UNDER_WAY_MAX: usize = 2000;
/// Timeout for the recovery of a server after overload.
const RECOVERS_WITHIN: Duration = Duration::from_secs(120);
/// Pause between two attempts during the recovery.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Assumed normal duration of a create request, if no load was measured before.
const NORMAL: Duration = Duration::from_secs(1);
/// Pause between the calibration and the first load.
const REST: Duration = Duration::from_secs(20);
/// Fixed seed, so that every run picks the same jobs in the same order.
const SEED: u64 = 97;

/// Parameters for the arrival of jobs.
struct Arrivals {
    per_second: f64,
    duration: Duration,
    /// Duration that a create request and its first exec may take after recovery, if the recovery is
    /// measured.
    recovers_to: Option<Duration>,
}

/// Time until the target has recovered, or the failure to recover.
type Recovery = Result<Duration, TargetFailure>;

/// Results at one arrival rate.
#[derive(Default)]
struct LoadTallies {
    steps: BTreeMap<&'static str, AttemptTally>,
    arrived: u64,
    done: u64,
    /// Time from the first arrival to the last.
    arriving: Duration,
    /// Time from the first arrival to the end of the last job.
    busy: Duration,
}

pub(super) async fn run(work: &LoadParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for target in targets {
        let (standing, made) = make(target, Image::Data, work.standing).await;
        let jobs = Arc::new(Jobs::new(Arc::clone(target), standing, work.mix));
        jobs.warm().await;
        let capacity = calibrate(work, &jobs).await;
        let mut figure = Figure::value(CAPACITY, None, target.name(), capacity, Unit::PerSecond);
        figure.failures = made.failures;
        figures.push(figure);
        tokio::time::sleep(REST).await;
        let mut normal = None;
        for percent in &work.percent {
            let arrivals = Arrivals {
                per_second: capacity * (*percent as f64) / 100.0,
                duration: Duration::from_secs(work.seconds),
                // The normal duration is known only after the first load.
                recovers_to: (*percent > 100).then(|| normal.unwrap_or(NORMAL)),
            };
            let (taken, recovered) = arrive(&arrivals, &jobs).await;
            let create = taken.steps.get(job::CREATE).and_then(|tally| tally.times.summary());
            normal = normal.or(create.map(|create| Duration::from_secs_f64(2e-3 * create.p95_ms)));
            figures.extend(taken.figures(*percent, target.name()));
            if let Some(recovered) = recovered {
                let mut tally = AttemptTally::default();
                tally.note(recovered.map_err(|failure| (failure, RECOVERS_WITHIN)));
                figures.push(Figure::times(RECOVERED, Some(*percent), target.name(), &tally));
            }
        }
        stop(target, &jobs.standing).await;
    }
    figures
}

/// Measures the rate at which the workers complete jobs, in the second half of the calibration time.
async fn calibrate(work: &LoadParameters, jobs: &Arc<Jobs>) -> f64 {
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
    // If no job was completed, assume 1 job per second, so that the report shows the failures under load.
    (done as f64 / counted_from.elapsed().as_secs_f64()).max(1.0)
}

/// Starts jobs when they arrive, without waiting for earlier jobs. After an overload, also measures the time
/// from the last arrival until the target has recovered.
async fn arrive(arrivals: &Arrivals, jobs: &Arc<Jobs>) -> (LoadTallies, Option<Recovery>) {
    let mut sequence = Sequence::new(SEED);
    let mut under_way: JoinSet<Vec<StepResult>> = JoinSet::new();
    let mut taken = LoadTallies::default();
    // Discard the starts counted during the calibration or the previous load.
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
                Err((TargetFailure::new("not_sent", "too many jobs are in progress"), NORMAL)),
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

/// Returns the time until a create request and its first exec together are again as fast as normal.
async fn recover(target: &SharedTarget, normal: Duration) -> Recovery {
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
    Err(TargetFailure::new("not_recovered", format!("no recovery within {} s", RECOVERS_WITHIN.as_secs())))
}

impl LoadTallies {
    fn count(&mut self, steps: Vec<StepResult>) {
        self.done += u64::from(!steps.is_empty() && steps.iter().all(|(_, step)| step.is_ok()));
        for (what, step) in steps {
            self.steps.entry(what).or_default().note(step);
        }
    }

    fn figures(self, percent: u64, target: &'static str) -> Vec<Figure> {
        let at = Some(percent);
        let mut all = AttemptTally::default();
        self.steps.values().for_each(|tally| all.merge(tally.clone()));
        let refusals = AttemptTally { times: all.refusals.clone(), ..AttemptTally::default() };
        let rate = |count: u64, time: Duration| count as f64 / time.as_secs_f64().max(f64::EPSILON);
        let mut figures = vec![
            Figure::value(ARRIVED, at, target, rate(self.arrived, self.arriving), Unit::PerSecond),
            Figure::value(DONE, at, target, rate(self.done, self.busy), Unit::PerSecond),
            Figure::times(ADMITTED, at, target, &all),
            Figure::times(REFUSED, at, target, &refusals),
        ];
        figures.extend(self.steps.iter().map(|(what, tally)| Figure::times(what, at, target, tally)));
        figures
    }
}

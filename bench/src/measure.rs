//! The measurements, one module for each kind of work.
//!
//! Targets alternate in rounds, and each round begins with a different target. Other load on the machine
//! therefore affects all targets alike, and the kernel's cleanup after one target does not always slow down
//! the same next target. Scenarios with many live sandboxes and load tests run on one target at a time.

mod code;
mod create;
mod density;
mod exec;
mod files;
mod load;
mod sustained;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;

use crate::figure::{Figure, Outcome};
use crate::machine;
use crate::samples::AttemptTally;
use crate::scenario::{Scenario, Workload};
use crate::target::{Image, Made, Target, TargetFailure};

/// Number of sandboxes that setup and cleanup create or stop concurrently, outside of any measurement.
const AT_ONCE: usize = 8;
/// Maximum number of retries of a refused create request.
const TRIES: usize = 100;
/// Pause before a retry.
const AGAIN: Duration = Duration::from_millis(200);

/// Target that concurrent tasks share.
pub type SharedTarget = Arc<dyn Target>;

/// Runs one scenario on all participating targets.
pub async fn run(scenario: &Scenario, targets: &[SharedTarget]) -> Outcome {
    let targets: Vec<SharedTarget> =
        targets.iter().filter(|target| scenario.wants(target.name())).cloned().collect();
    let (load_before, began) = (machine::load(), Instant::now());
    let (scale, figures) = match &scenario.work {
        Workload::Create(work) => (Some("at once"), create::run(work, &targets).await),
        Workload::Exec(work) => (Some("at once"), exec::run(work, &targets).await),
        Workload::Code(work) => (None, code::run(work, &targets).await),
        Workload::Files(work) => (Some("bytes"), files::run(work, &targets).await),
        Workload::Density(work) => (Some("live"), density::run(work, &targets).await),
        Workload::Sustained(work) => (None, sustained::run(work, &targets).await),
        Workload::Load(work) => (Some("% of capacity"), load::run(work, &targets).await),
    };
    Outcome {
        name: scenario.name.clone(),
        about: scenario.about.clone(),
        scale,
        load_before,
        load_after: machine::load(),
        took_s: began.elapsed().as_secs_f64(),
        figures,
    }
}

/// Returns the order of the targets in a round. Each round begins with the next target.
fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (round + step) % count)
}

/// Measures the duration of an operation, whether it succeeds or fails.
async fn timed<T>(
    act: impl Future<Output = Result<T, TargetFailure>>,
) -> Result<(T, Duration), (TargetFailure, Duration)> {
    let began = Instant::now();
    match act.await {
        Ok(done) => Ok((done, began.elapsed())),
        Err(failure) => Err((failure, began.elapsed())),
    }
}

/// Creates sandboxes with limited concurrency, and counts failures. Retries refused requests, because
/// creating these sandboxes is the setup of a scenario and not its measurement.
async fn make(target: &SharedTarget, image: Image, count: usize) -> (Vec<String>, AttemptTally) {
    let mut tally = AttemptTally::default();
    let mut handles = Vec::new();
    let creates = (0..count).map(|_| patiently(target, image));
    let mut creates = futures_util::stream::iter(creates).buffer_unordered(AT_ONCE);
    while let Some(made) = creates.next().await {
        match made {
            Ok((made, took)) => {
                handles.push(made.handle);
                tally.started(made.start);
                tally.note(Ok(took));
            }
            Err(failed) => tally.note(Err(failed)),
        }
    }
    (handles, tally)
}

async fn patiently(
    target: &SharedTarget,
    image: Image,
) -> Result<(Made, Duration), (TargetFailure, Duration)> {
    let mut tries = 0..TRIES;
    loop {
        match timed(target.create(image)).await {
            Err((failure, _)) if failure.refused && tries.next().is_some() => tokio::time::sleep(AGAIN).await,
            answered => return answered,
        }
    }
}

/// Stops sandboxes with limited concurrency.
async fn stop(target: &SharedTarget, handles: &[String]) -> AttemptTally {
    let mut tally = AttemptTally::default();
    let stops = handles.iter().map(|handle| timed(target.stop(handle)));
    let mut stops = futures_util::stream::iter(stops).buffer_unordered(AT_ONCE);
    while let Some(stopped) = stops.next().await {
        tally.note(stopped.map(|((), took)| took));
    }
    tally
}

/// Adds the failures of the setup to the results of the measurement that depends on it.
fn blame(tallies: &mut [Option<AttemptTally>], places: &[(Vec<String>, AttemptTally)]) {
    for (tally, (_, made)) in tallies.iter_mut().zip(places) {
        if let Some(tally) = tally {
            tally.merge(AttemptTally {
                failures: made.failures.clone(),
                said: made.said.clone(),
                ..AttemptTally::default()
            });
        }
    }
}

/// Converts tallies to figures. A missing tally means that the target does not support the operation.
fn told(
    what: &'static str,
    at: Option<u64>,
    targets: &[SharedTarget],
    tallies: &[Option<AttemptTally>],
) -> Vec<Figure> {
    let each = targets.iter().zip(tallies);
    each.map(|(target, tally)| match tally {
        Some(tally) => Figure::times(what, at, target.name(), tally),
        None => Figure::unsupported(what, at, target.name()),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_everybodys_and_begins_with_another_one() {
        assert_eq!(turns(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(4, 3).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(turns(5, 0).count(), 0);
    }
}

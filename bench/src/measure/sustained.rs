//! Several workers create a sandbox, run `true` and stop the sandbox, in a loop at full speed. Targets
//! alternate in short turns.
//!
//! If a target has a single command for a whole lifecycle (`runc run`, `docker run --rm`), that command is
//! measured, because people use it in loops.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{SharedTarget, timed, turns};
use crate::figure::{Figure, Unit};
use crate::samples::AttemptTally;
use crate::scenario::SustainedParameters;
use crate::target::{Image, TargetFailure};

const RATE: &str = "lifecycles per second";
const LIFE: &str = "one life, among others";

pub(super) async fn run(work: &SustainedParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let turn_for = Duration::from_secs(work.seconds).div_f64(work.turns as f64);
    let mut taken = vec![(AttemptTally::default(), Duration::ZERO); targets.len()];
    for round in 0..usize::try_from(work.turns).unwrap_or(1) {
        for turn in turns(round, targets.len()) {
            if let (Some(target), Some((tally, busy))) = (targets.get(turn), taken.get_mut(turn)) {
                let began = Instant::now();
                let workers = (0..work.workers).map(|_| repeat(target, began + turn_for));
                join_all(workers).await.into_iter().for_each(|counted| tally.merge(counted));
                // Lifecycles still in progress at the end of the turn count, and so does their remaining
                // time.
                *busy += began.elapsed();
            }
        }
    }
    let each = || targets.iter().zip(&taken);
    let rates = each().map(|(target, (tally, busy))| {
        let rate = tally.times.len() as f64 / busy.as_secs_f64().max(f64::EPSILON);
        Figure::value(RATE, None, target.name(), rate, Unit::PerSecond)
    });
    rates.chain(each().map(|(target, (tally, _))| Figure::times(LIFE, None, target.name(), tally))).collect()
}

async fn repeat(target: &SharedTarget, until: Instant) -> AttemptTally {
    let mut tally = AttemptTally::default();
    while Instant::now() < until {
        tally.note(timed(live(target)).await.map(|((), took)| took));
    }
    tally
}

async fn live(target: &SharedTarget) -> Result<(), TargetFailure> {
    if let Some(lives) = target.lives() {
        return lives.live().await;
    }
    let made = target.create(Image::Plain).await?;
    let answered = match target.execs() {
        Some(execs) => execs.exec(&made.handle).await,
        None => Ok(()),
    };
    target.stop(&made.handle).await?;
    answered
}

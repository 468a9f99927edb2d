//! Measures many idle sandboxes on one machine: the memory per sandbox, and the time that one more start and
//! one exec take.
//!
//! Targets are measured one at a time. `MemAvailable` is read before the sandboxes are created, while they
//! are live, and after they are stopped. The memory per sandbox is the decrease from the mean of the readings
//! without sandboxes to the reading with them, divided by the number of sandboxes. It includes the pages of
//! processes in the sandboxes, of the kernel, and of the processes that serve the sandboxes, but not
//! reclaimable file pages. The report also shows the memory charged to the sandboxes' cgroups. That figure
//! includes the pages of files that a sandbox was the first to read, but not the processes that serve the
//! sandboxes.
//!
//! After the response to a stop request, the kernel continues to clean up, which takes longer if more
//! sandboxes are live. One more start is therefore measured twice: after the cleanup has finished, and
//! immediately after a stop.

use std::time::Duration;

use super::{SharedTarget, make, stop, timed};
use crate::figure::{Figure, Unit};
use crate::machine::available_bytes;
use crate::random::Sequence;
use crate::samples::AttemptTally;
use crate::scenario::DensityParameters;
use crate::target::Image;

const START: &str = "another create and first exec";
const AFTER_A_STOP: &str = "another create, right after a stop";
const EXEC: &str = "exec in any live sandbox";
const FELL: &str = "memory per sandbox, by MemAvailable";
const CHARGED: &str = "memory per sandbox, as counted by its cgroup";
const CREATES: &str = "create, while filling up";
/// Time to wait until the background work after starting sandboxes is complete.
const SETTLES: Duration = Duration::from_secs(3);
/// Time to wait until the background work after stopping one sandbox is complete.
const RESTS: Duration = Duration::from_millis(200);
/// Fixed seed, so that every run chooses the same sandboxes.
const SEED: u64 = 41;

pub(super) async fn run(work: &DensityParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for target in targets {
        // The first start creates resources that all sandboxes share, so it happens before the first memory
        // reading.
        let (handles, _) = make(target, Image::Plain, 1).await;
        stop(target, &handles).await;
        tokio::time::sleep(SETTLES).await;
        let before = available_bytes();
        let (mut live, mut seen) = (Vec::new(), Vec::new());
        for wanted in &work.live {
            let (more, creates) = make(target, Image::Plain, wanted.saturating_sub(live.len())).await;
            live.extend(more);
            figures.push(Figure::times(CREATES, Some(*wanted as u64), target.name(), &creates));
            tokio::time::sleep(SETTLES).await;
            seen.push((*wanted, live.len(), available_bytes()));
            figures.push(charged(target, *wanted, &live));
            figures.extend(look(work, target, *wanted, &live).await);
            if live.len() < *wanted {
                // Further create requests would be refused as well.
                break;
            }
        }
        stop(target, &live).await;
        tokio::time::sleep(SETTLES).await;
        let without = [before, available_bytes()];
        figures
            .extend(seen.into_iter().map(|(wanted, live, with)| fell(target, without, wanted, live, with)));
    }
    // The figures are sorted by measurement, so that the targets are next to each other.
    figures.sort_by_key(|figure| {
        (
            [START, AFTER_A_STOP, EXEC, FELL, CHARGED, CREATES].iter().position(|what| *what == figure.what),
            figure.at,
        )
    });
    figures
}

/// Returns the decrease in available memory per sandbox, relative to the mean of the readings without
/// sandboxes before and after. A negative value means that other processes freed more memory than the
/// sandboxes used, so there were too few sandboxes for a meaningful result.
fn fell(target: &SharedTarget, [before, after]: [u64; 2], wanted: usize, live: usize, with: u64) -> Figure {
    let without = (before as f64 + after as f64) / 2.0;
    let each = (without - with as f64) / live.max(1) as f64;
    Figure::value(FELL, Some(wanted as u64), target.name(), each, Unit::Bytes)
}

fn charged(target: &SharedTarget, wanted: usize, live: &[String]) -> Figure {
    let (at, name) = (Some(wanted as u64), target.name());
    match target.charged_bytes(live) {
        Some(bytes) => Figure::value(CHARGED, at, name, bytes as f64 / live.len().max(1) as f64, Unit::Bytes),
        None => Figure::unsupported(CHARGED, at, name),
    }
}

async fn look(
    work: &DensityParameters,
    target: &SharedTarget,
    wanted: usize,
    live: &[String],
) -> Vec<Figure> {
    let (mut rested, mut pressed, mut execs) =
        (AttemptTally::default(), AttemptTally::default(), AttemptTally::default());
    for _ in 0..work.starts {
        tokio::time::sleep(RESTS).await;
        start(target, &mut rested).await;
        start(target, &mut pressed).await;
    }
    let mut sequence = Sequence::new(SEED);
    for _ in 0..work.execs {
        let (Some(handle), Some(exec)) = (live.get(sequence.below(live.len())), target.execs()) else {
            break;
        };
        execs.note(timed(exec.exec(handle)).await.map(|((), took)| took));
    }
    let at = Some(wanted as u64);
    [(START, rested), (AFTER_A_STOP, pressed), (EXEC, execs)]
        .into_iter()
        .map(|(what, tally)| Figure::times(what, at, target.name(), &tally))
        .collect()
}

/// Creates one more sandbox, measures the time until its first exec ends, and stops the sandbox.
async fn start(target: &SharedTarget, starts: &mut AttemptTally) {
    let (made, create) = match timed(target.create(Image::Plain)).await {
        Ok(made) => made,
        Err(failed) => return starts.note(Err(failed)),
    };
    starts.started(made.start);
    if let Some(exec) = target.execs() {
        let answered = timed(exec.exec(&made.handle)).await;
        starts.note(answered.map(|((), took)| create + took));
    }
    let _ = target.stop(&made.handle).await;
}

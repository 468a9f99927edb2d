//! Many idle sandboxes on one machine: what each weighs, and what another start and an exec take among them.
//!
//! One target at a time. The weight is what `MemAvailable` is less than without them, before and after, divided by their number: pages of processes, of the kernel and of
//! whatever serves them, but not pages of files that can be given back. Beside it stands what the control groups are charged, which
//! counts files that were read first by one of them, and nothing of what serves them.
//!
//! A stop leaves the kernel work that goes on after it was answered, and the more live, the more of it: so another start is timed twice,
//! when that is done and right after a stop.

use std::time::Duration;

use super::{Shared, make, stop, timed};
use crate::figure::{Figure, Unit};
use crate::machine::available_bytes;
use crate::random::Sequence;
use crate::samples::Tally;
use crate::scenario::Density;
use crate::target::Image;

const START: &str = "another create and first exec";
const AFTER_A_STOP: &str = "another create, right after a stop";
const EXEC: &str = "exec in any live sandbox";
const FELL: &str = "memory per sandbox, by MemAvailable";
const CHARGED: &str = "memory per sandbox, as counted by its cgroup";
const CREATES: &str = "create, while filling up";
/// What starts have left to be done is done by then.
const SETTLES: Duration = Duration::from_secs(3);
/// What one stop has left is done by then.
const RESTS: Duration = Duration::from_millis(200);
/// The same sandboxes are chosen in every run.
const SEED: u64 = 41;

pub(super) async fn run(work: &Density, targets: &[Shared]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for target in targets {
        // The first start makes what all share.
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
                // More would be refused as well.
                break;
            }
        }
        stop(target, &live).await;
        tokio::time::sleep(SETTLES).await;
        let without = [before, available_bytes()];
        figures.extend(seen.into_iter().map(|seen| fell(target, without, seen)));
    }
    // By what was measured, not by whom: targets stand side by side.
    figures.sort_by_key(|figure| {
        (
            [START, AFTER_A_STOP, EXEC, FELL, CHARGED, CREATES].iter().position(|what| *what == figure.what),
            figure.at,
        )
    });
    figures
}

/// What was available without them, before and after, against what was with them. Less than nothing shows that others gave back more than
/// these took: then there were too few of them.
fn fell(target: &Shared, [before, after]: [u64; 2], (wanted, live, with): (usize, usize, u64)) -> Figure {
    let without = (before as f64 + after as f64) / 2.0;
    let each = (without - with as f64) / live.max(1) as f64;
    Figure::value(FELL, Some(wanted as u64), target.name(), (each, Unit::Bytes))
}

fn charged(target: &Shared, wanted: usize, live: &[String]) -> Figure {
    let (at, name) = (Some(wanted as u64), target.name());
    match target.charged_bytes(live) {
        Some(bytes) => {
            Figure::value(CHARGED, at, name, (bytes as f64 / live.len().max(1) as f64, Unit::Bytes))
        }
        None => Figure::unsupported(CHARGED, at, name),
    }
}

async fn look(work: &Density, target: &Shared, wanted: usize, live: &[String]) -> Vec<Figure> {
    let (mut rested, mut pressed, mut execs) = (Tally::default(), Tally::default(), Tally::default());
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

/// One more, until its first exec is answered; and its stop.
async fn start(target: &Shared, starts: &mut Tally) {
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

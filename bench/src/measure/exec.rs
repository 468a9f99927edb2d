//! Runs a command that does nothing in live sandboxes, one at a time and several concurrently. Concurrent
//! commands run in separate sandboxes.

use futures_util::future::join_all;

use super::{SharedTarget, blame, make, stop, timed, told, turns};
use crate::figure::Figure;
use crate::samples::AttemptTally;
use crate::scenario::ExecParameters;
use crate::target::Image;

const WHAT: &str = "exec of `true`";

pub(super) async fn run(work: &ExecParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let most = work.at_once.iter().copied().max().unwrap_or(1);
    let mut places = Vec::new();
    for target in targets {
        let count = if target.execs().is_some() { most } else { 0 };
        places.push(make(target, Image::Plain, count).await);
    }
    let mut figures = Vec::new();
    for at_once in &work.at_once {
        let mut tallies: Vec<Option<AttemptTally>> =
            targets.iter().map(|target| target.execs().map(|_| AttemptTally::default())).collect();
        // The first round is a warm-up that fills caches. Its results are discarded.
        for round in 0..=work.samples.div_ceil(*at_once) {
            for turn in turns(round, targets.len()) {
                let (Some(target), Some((handles, _))) = (targets.get(turn), places.get(turn)) else {
                    continue;
                };
                let Some(Some(tally)) = tallies.get_mut(turn) else { continue };
                let taken = together(target, handles, *at_once).await;
                if round > 0 {
                    tally.merge(taken);
                }
            }
        }
        blame(&mut tallies, &places);
        figures.extend(told(WHAT, Some(*at_once as u64), targets, &tallies));
    }
    for (target, (handles, _)) in targets.iter().zip(&places) {
        stop(target, handles).await;
    }
    figures
}

async fn together(target: &SharedTarget, handles: &[String], at_once: usize) -> AttemptTally {
    let mut tally = AttemptTally::default();
    let Some(execs) = target.execs() else { return tally };
    let answers = join_all(handles.iter().take(at_once).map(|handle| timed(execs.exec(handle)))).await;
    for answered in answers {
        tally.note(answered.map(|((), took)| took));
    }
    tally
}

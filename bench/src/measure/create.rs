//! Creates sandboxes, uses each once and stops them, one at a time and in batches.
//!
//! ```text
//! request ──── create ────▶ created ── exec of `true` ──▶ response         all sandboxes of a batch concurrently
//!                                                             then all are stopped concurrently
//! ```

use futures_util::future::join_all;

use super::{SharedTarget, timed, told, turns};
use crate::figure::Figure;
use crate::samples::AttemptTally;
use crate::scenario::CreateParameters;
use crate::target::{Image, Made};

const FIRST_EXEC: &str = "create and first exec";
const CREATE: &str = "create alone";
const STOP: &str = "stop";

/// Tallies of one target.
#[derive(Clone, Default)]
struct CreateTallies {
    create: AttemptTally,
    first_exec: AttemptTally,
    stop: AttemptTally,
}

pub(super) async fn run(work: &CreateParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let mut figures = Vec::new();
    // The first run only fills caches, so its results are discarded.
    for target in targets {
        batch(target, 1, &mut CreateTallies::default()).await;
    }
    for at_once in &work.at_once {
        let mut taken = vec![CreateTallies::default(); targets.len()];
        if work.rested {
            // The pool grows to this size only after it has served a batch of this size.
            for target in targets {
                batch(target, *at_once, &mut CreateTallies::default()).await;
            }
        }
        for round in 0..work.samples.div_ceil(*at_once) {
            for turn in turns(round, targets.len()) {
                if let (Some(target), Some(taken)) = (targets.get(turn), taken.get_mut(turn)) {
                    if work.rested {
                        target.rested().await;
                    }
                    batch(target, *at_once, taken).await;
                }
            }
        }
        let at = Some(*at_once as u64);
        let has_execs = targets.iter().map(|target| target.execs().is_some());
        let first_execs: Vec<Option<AttemptTally>> =
            has_execs.zip(&taken).map(|(has, taken)| has.then(|| taken.first_exec.clone())).collect();
        figures.extend(told(FIRST_EXEC, at, targets, &first_execs));
        let creates: Vec<Option<AttemptTally>> =
            taken.iter().map(|taken| Some(taken.create.clone())).collect();
        figures.extend(told(CREATE, at, targets, &creates));
        let stops: Vec<Option<AttemptTally>> = taken.into_iter().map(|taken| Some(taken.stop)).collect();
        figures.extend(told(STOP, at, targets, &stops));
    }
    figures
}

async fn batch(target: &SharedTarget, at_once: usize, taken: &mut CreateTallies) {
    let lives = join_all((0..at_once).map(|_| begin(target))).await;
    let mut handles = Vec::new();
    for life in lives {
        taken.create.merge(life.create);
        taken.first_exec.merge(life.first_exec);
        handles.extend(life.made.map(|made| made.handle));
    }
    let stops = join_all(handles.iter().map(|handle| timed(target.stop(handle)))).await;
    for stopped in stops {
        taken.stop.note(stopped.map(|((), took)| took));
    }
}

/// One sandbox, from its create request to its first exec.
struct Life {
    made: Option<Made>,
    create: AttemptTally,
    first_exec: AttemptTally,
}

async fn begin(target: &SharedTarget) -> Life {
    let (mut create, mut first_exec) = (AttemptTally::default(), AttemptTally::default());
    let made = match timed(target.create(Image::Plain)).await {
        Ok((made, took)) => {
            create.started(made.start.clone());
            create.note(Ok(took));
            if let Some(execs) = target.execs() {
                let answered = timed(execs.exec(&made.handle)).await;
                first_exec.note(answered.map(|((), after)| took + after));
            }
            Some(made)
        }
        Err((failure, took)) => {
            first_exec.note(Err((failure.clone(), took)));
            create.note(Err((failure, took)));
            None
        }
    };
    Life { made, create, first_exec }
}

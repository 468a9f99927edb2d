//! Runs Python code with pandas and matplotlib: in a new sandbox, without state, and as a cell of a live
//! interpreter.

use std::time::Duration;

use super::{SharedTarget, blame, make, stop, timed, told, turns};
use crate::figure::Figure;
use crate::samples::AttemptTally;
use crate::scenario::CodeParameters;
use crate::target::{Image, TargetFailure};

/// Imports that typically begin a data analysis.
const IMPORTS: &str = "import numpy, pandas\nimport matplotlib.pyplot\n";
/// Code that sums 10,000 rows by group, which takes about a millisecond.
pub(super) const CELL: &str = "import numpy, pandas\ntable = pandas.DataFrame({'key': numpy.arange(10_000) % 100, 'value': numpy.arange(10_000.0)})\n\
                    total = table.groupby('key')['value'].sum()\n";

const FIRST: &str = "new sandbox and first run with imports";
const STATELESS: &str = "stateless run with imports and cell";
const IN_CONTEXT: &str = "cell in a context, imports done before";
const NOTHING: &str = "empty cell in a context";

/// Kind of code run to measure.
#[derive(Clone, Copy)]
enum CodeKind {
    Stateless,
    InContext,
    Empty,
}

pub(super) async fn run(work: &CodeParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let mut firsts: Vec<Option<AttemptTally>> = targets
        .iter()
        .map(|target| (target.code().is_some() || target.contexts().is_some()).then(AttemptTally::default))
        .collect();
    for round in 0..work.first {
        for turn in turns(round, targets.len()) {
            if let (Some(target), Some(Some(tally))) = (targets.get(turn), firsts.get_mut(turn)) {
                tally.note(first(target).await);
            }
        }
    }
    let mut figures = told(FIRST, None, targets, &firsts);
    let mut places = Vec::new();
    for (target, first) in targets.iter().zip(&firsts) {
        places.push(make(target, Image::Data, usize::from(first.is_some())).await);
    }
    for (kind, what) in
        [(CodeKind::Stateless, STATELESS), (CodeKind::InContext, IN_CONTEXT), (CodeKind::Empty, NOTHING)]
    {
        let mut tallies: Vec<Option<AttemptTally>> =
            targets.iter().map(|target| can(target, kind).then(AttemptTally::default)).collect();
        // The first round is a discarded warm-up that starts interpreters and imports packages.
        for round in 0..=work.samples {
            for turn in turns(round, targets.len()) {
                let (Some(target), Some([handle])) =
                    (targets.get(turn), places.get(turn).map(|place| place.0.as_slice()))
                else {
                    continue;
                };
                let Some(Some(tally)) = tallies.get_mut(turn) else { continue };
                let taken = once(target, handle, kind, round == 0).await;
                if round > 0 {
                    tally.note(taken);
                }
            }
        }
        blame(&mut tallies, &places);
        figures.extend(told(what, None, targets, &tallies));
    }
    for (target, (handles, _)) in targets.iter().zip(&places) {
        stop(target, handles).await;
    }
    figures
}

fn can(target: &SharedTarget, kind: CodeKind) -> bool {
    match kind {
        CodeKind::Stateless => target.code().is_some(),
        CodeKind::InContext | CodeKind::Empty => target.contexts().is_some(),
    }
}

async fn once(
    target: &SharedTarget,
    handle: &str,
    kind: CodeKind,
    is_first: bool,
) -> Result<Duration, (TargetFailure, Duration)> {
    let whole = format!("{IMPORTS}{CELL}");
    let source = match kind {
        CodeKind::Stateless => whole.as_str(),
        CodeKind::InContext if is_first => whole.as_str(),
        CodeKind::InContext => CELL,
        CodeKind::Empty => "pass",
    };
    let ran = timed(async {
        match (kind, target.code(), target.contexts()) {
            (CodeKind::Stateless, Some(code), _) => code.run(handle, source).await,
            (CodeKind::InContext | CodeKind::Empty, _, Some(contexts)) => contexts.cell(handle, source).await,
            (CodeKind::Stateless | CodeKind::InContext | CodeKind::Empty, _, _) => {
                Err(TargetFailure::new("unsupported", "the target does not run this kind of code"))
            }
        }
    });
    ran.await.map(|((), took)| took)
}

/// Measures the time from a create request to the end of the first run in the new sandbox.
async fn first(target: &SharedTarget) -> Result<Duration, (TargetFailure, Duration)> {
    let (made, create) = timed(target.create(Image::Data)).await?;
    let kind = if target.code().is_some() { CodeKind::Stateless } else { CodeKind::InContext };
    let ran = once(target, &made.handle, kind, true).await;
    let _ = target.stop(&made.handle).await;
    ran.map(|took| create + took).map_err(|(failure, took)| (failure, create + took))
}

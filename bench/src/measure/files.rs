//! Transfers files into a sandbox and out of it.

use bytes::Bytes;

use super::{SharedTarget, blame, make, stop, timed, told, turns};
use crate::figure::Figure;
use crate::samples::AttemptTally;
use crate::scenario::FileParameters;
use crate::target::{Image, TargetFailure};

const UP: &str = "upload";
const DOWN: &str = "download";
/// Name of the transferred file.
const NAME: &str = "bench.bin";

pub(super) async fn run(work: &FileParameters, targets: &[SharedTarget]) -> Vec<Figure> {
    let mut places = Vec::new();
    for target in targets {
        // This image has the larger disk.
        places.push(make(target, Image::Data, usize::from(target.files().is_some())).await);
    }
    let mut figures = Vec::new();
    for size in &work.bytes {
        let empty = || -> Vec<Option<AttemptTally>> {
            targets.iter().map(|target| target.files().map(|_| AttemptTally::default())).collect()
        };
        let (mut ups, mut downs) = (empty(), empty());
        let bytes = Bytes::from(vec![0x5a; usize::try_from(*size).unwrap_or(usize::MAX)]);
        for round in 0..work.samples {
            for turn in turns(round, targets.len()) {
                let (Some(target), Some((handles, _))) = (targets.get(turn), places.get(turn)) else {
                    continue;
                };
                let (Some(Some(up)), Some(Some(down))) = (ups.get_mut(turn), downs.get_mut(turn)) else {
                    continue;
                };
                for handle in handles {
                    carry(target, handle, &bytes, [up, down]).await;
                }
            }
        }
        blame(&mut ups, &places);
        blame(&mut downs, &places);
        figures.extend(told(UP, Some(*size), targets, &ups));
        figures.extend(told(DOWN, Some(*size), targets, &downs));
    }
    for (target, (handles, _)) in targets.iter().zip(&places) {
        stop(target, handles).await;
    }
    figures
}

async fn carry(target: &SharedTarget, handle: &str, bytes: &Bytes, [up, down]: [&mut AttemptTally; 2]) {
    let Some(files) = target.files() else { return };
    let sent = timed(files.upload(handle, NAME, bytes.clone())).await;
    let is_there = sent.is_ok();
    up.note(sent.map(|((), took)| took));
    if is_there {
        down.note(match timed(files.download(handle, NAME)).await {
            Ok((count, took)) if count == bytes.len() as u64 => Ok(took),
            Ok((count, took)) => {
                Err((TargetFailure::new("other_bytes", format!("{count} bytes were received")), took))
            }
            Err(failed) => Err(failed),
        });
    }
}

//! One job of a load test, and its steps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::super::code::CELL;
use super::super::{SharedTarget, timed};
use crate::random::Sequence;
use crate::samples::AttemptTally;
use crate::scenario::Mix;
use crate::target::{Image, TargetFailure};

pub(super) const CREATE: &str = "create";
pub(super) const NOT_SENT: &str = "jobs that were not sent";
const FIRST_EXEC: &str = "first exec in a new sandbox";
const STOP: &str = "stop";
const EXEC: &str = "exec in a long-lived sandbox";
const CODE: &str = "cell in a long-lived sandbox";
const UP: &str = "upload of 1 KiB";
const DOWN: &str = "download of 1 KiB";
/// Size of a small file in bytes.
const FILE_BYTES: usize = 1024;
/// Number of distinct file names. Fewer file jobs than this are in progress at a time, so no two of them use
/// the same file. A sandbox has space for this many files.
const FILES: u64 = 512;

/// Name of a step, and its result.
pub(super) type StepResult = (&'static str, Result<Duration, (TargetFailure, Duration)>);

/// State that all jobs share.
pub(super) struct Jobs {
    pub target: SharedTarget,
    /// Long-lived sandboxes, in which execs, cells and file transfers run.
    pub standing: Vec<String>,
    mix: Mix,
    files: AtomicU64,
    /// Number of warm and cold starts since the tally was last taken.
    starts: Mutex<AttemptTally>,
}

/// Job of a load test.
pub(super) enum Job {
    /// Creates a sandbox, uses it once and stops it.
    Life,
    /// Runs a command in a long-lived sandbox.
    Exec(String),
    /// Runs a cell in a long-lived sandbox.
    Code(String),
    /// Writes a small file with this name to a long-lived sandbox, and reads it back.
    File(String, String),
}

impl Jobs {
    /// Creates the shared state, and removes kinds of work that the target does not support from the mix.
    pub(super) fn new(target: SharedTarget, standing: Vec<String>, mix: Mix) -> Self {
        let stays = u32::from(!standing.is_empty());
        let mix = Mix {
            life: mix.life,
            exec: mix.exec * u32::from(target.execs().is_some()) * stays,
            code: mix.code * u32::from(target.contexts().is_some()) * stays,
            file: mix.file * u32::from(target.files().is_some()) * stays,
        };
        Self { target, standing, mix, files: AtomicU64::new(0), starts: Mutex::default() }
    }

    /// Starts the interpreters in the long-lived sandboxes.
    pub(super) async fn warm(&self) {
        for handle in &self.standing {
            self.run(Job::Code(handle.clone())).await;
        }
    }

    pub(super) fn pick(&self, sequence: &mut Sequence) -> Job {
        let mut at = sequence.below(self.mix.total() as usize) as u32;
        let handle = self.standing.get(sequence.below(self.standing.len())).cloned().unwrap_or_default();
        for (weight, job) in
            [(self.mix.exec, Job::Exec as fn(String) -> Job), (self.mix.code, Job::Code as fn(String) -> Job)]
        {
            if at < weight {
                return job(handle);
            }
            at -= weight;
        }
        if at < self.mix.file {
            return Job::File(
                handle,
                format!("bench-{}", self.files.fetch_add(1, Ordering::Relaxed) % FILES),
            );
        }
        Job::Life
    }

    /// Returns the tally of warm and cold starts since the last call, and resets it.
    pub(super) fn take_starts(&self) -> AttemptTally {
        self.starts.lock().map(|mut starts| std::mem::take(&mut *starts)).unwrap_or_default()
    }

    /// Runs a job. The job ends early if a step fails and the next step depends on it.
    pub(super) async fn run(&self, job: Job) -> Vec<StepResult> {
        match job {
            Job::Life => self.live().await,
            Job::Exec(handle) => match self.target.execs() {
                Some(execs) => vec![(EXEC, plain(timed(execs.exec(&handle)).await))],
                None => Vec::new(),
            },
            Job::Code(handle) => match self.target.contexts() {
                Some(contexts) => vec![(CODE, plain(timed(contexts.cell(&handle, CELL)).await))],
                None => Vec::new(),
            },
            Job::File(handle, name) => self.carry(&handle, &name).await,
        }
    }

    async fn live(&self) -> Vec<StepResult> {
        let made = match timed(self.target.create(Image::Plain)).await {
            Ok(made) => made,
            Err(failed) => return vec![(CREATE, Err(failed))],
        };
        let (made, took) = made;
        if let Ok(mut starts) = self.starts.lock() {
            starts.started(made.start);
        }
        let mut steps = vec![(CREATE, Ok(took))];
        if let Some(execs) = self.target.execs() {
            steps.push((FIRST_EXEC, plain(timed(execs.exec(&made.handle)).await)));
        }
        // The sandbox is stopped even if the exec failed.
        steps.push((STOP, plain(timed(self.target.stop(&made.handle)).await)));
        steps
    }

    async fn carry(&self, handle: &str, name: &str) -> Vec<StepResult> {
        let Some(files) = self.target.files() else { return Vec::new() };
        let bytes = Bytes::from_static(&[0x5a; FILE_BYTES]);
        let up = timed(files.upload(handle, name, bytes)).await;
        let is_there = up.is_ok();
        let mut steps = vec![(UP, plain(up))];
        if is_there {
            let down = timed(files.download(handle, name)).await;
            steps.push((DOWN, down.map(|(_, took)| took)));
        }
        steps
    }
}

fn plain(
    step: Result<((), Duration), (TargetFailure, Duration)>,
) -> Result<Duration, (TargetFailure, Duration)> {
    step.map(|((), took)| took)
}

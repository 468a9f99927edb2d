//! One job of a load, in its steps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::super::code::CELL;
use super::super::{Shared, timed};
use crate::random::Sequence;
use crate::samples::Tally;
use crate::scenario::Mix;
use crate::target::{Failure, Image};

pub(super) const CREATE: &str = "create";
pub(super) const NOT_SENT: &str = "jobs that were not sent";
const FIRST_EXEC: &str = "first exec in a new sandbox";
const STOP: &str = "stop";
const EXEC: &str = "exec in a long-lived sandbox";
const CODE: &str = "cell in a long-lived sandbox";
const UP: &str = "upload of 1 KiB";
const DOWN: &str = "download of 1 KiB";
/// What a small file is.
const FILE_BYTES: usize = 1024;
/// Files of one sandbox. More jobs with files are never under way, so no two have the same; and a sandbox has room for so many.
const FILES: u64 = 512;

/// A step and what it came to.
pub(super) type Done = (&'static str, Result<Duration, (Failure, Duration)>);

/// What jobs are done on.
pub(super) struct Jobs {
    pub target: Shared,
    /// Sandboxes that stay.
    pub standing: Vec<String>,
    mix: Mix,
    files: AtomicU64,
    /// How sandboxes were started.
    starts: Mutex<Tally>,
}

/// A job.
pub(super) enum Job {
    /// A sandbox is made, used once and stopped.
    Life,
    /// A command in one that stays.
    Exec(String),
    /// A cell in one that stays.
    Code(String),
    /// A small file of this name into one that stays, and out again.
    File(String, String),
}

impl Jobs {
    /// What a target cannot do is left out of the mix.
    pub(super) fn new(target: Shared, standing: Vec<String>, mix: Mix) -> Self {
        let stays = u32::from(!standing.is_empty());
        let mix = Mix {
            life: mix.life,
            exec: mix.exec * u32::from(target.execs().is_some()) * stays,
            code: mix.code * u32::from(target.contexts().is_some()) * stays,
            file: mix.file * u32::from(target.files().is_some()) * stays,
        };
        Self { target, standing, mix, files: AtomicU64::new(0), starts: Mutex::default() }
    }

    /// Starts the interpreters of those that stay.
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

    /// How sandboxes were started since this was asked for.
    pub(super) fn take_starts(&self) -> Tally {
        self.starts.lock().map(|mut starts| std::mem::take(&mut *starts)).unwrap_or_default()
    }

    /// Does a job; what comes after a step that failed is not tried.
    pub(super) async fn run(&self, job: Job) -> Vec<Done> {
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

    async fn live(&self) -> Vec<Done> {
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
        // Whatever became of the exec: nothing stays.
        steps.push((STOP, plain(timed(self.target.stop(&made.handle)).await)));
        steps
    }

    async fn carry(&self, handle: &str, name: &str) -> Vec<Done> {
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

fn plain(step: Result<((), Duration), (Failure, Duration)>) -> Result<Duration, (Failure, Duration)> {
    step.map(|((), took)| took)
}

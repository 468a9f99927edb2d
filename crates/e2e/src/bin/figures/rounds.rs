//! Durations of starts, stops and execs, measured in rounds.
//!
//! Every round measures every subject once, so that other load on the machine affects all subjects alike.
//! Each round starts with a different subject, because the kernel's cleanup after one subject slows down the
//! next.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome};
use e2e::lab::{collect, exec};
use e2e::{Lab, layer};
use node::Sandbox;

use crate::reference::Reference;
use crate::samples::Samples;

/// Program that does nothing and exits.
const NOTHING: &str = "/bin/true";
/// Number of rounds between two progress messages.
const PROGRESS_EVERY: usize = 20;

/// Durations on one runtime.
pub(crate) struct Ours {
    /// Name of the runtime.
    pub name: String,
    /// Time to start a sandbox, until `Sandbox::start` returns. By then, its posture has been checked both
    /// from outside and by an exec inside.
    pub start: Samples,
    /// Time to start a sandbox and complete its first exec, `/bin/true`.
    pub first_exec: Samples,
    /// Time to stop a sandbox, until all its resources have been removed.
    pub stop: Samples,
    /// Time of one exec of `/bin/true` in a long-lived sandbox, until its outcome is received.
    pub exec: Samples,
}

/// Durations of all subjects.
pub(crate) struct Times {
    /// A process on the host, without a sandbox.
    pub bare: Samples,
    /// A process in bubblewrap. Empty if bubblewrap is not installed.
    pub bwrap: Samples,
    /// `runc run` with Bellglass's configuration.
    pub runc_run: Samples,
    /// Durations for sandboxes, by runtime.
    pub ours: Vec<Ours>,
}

/// One of the measured subjects.
#[derive(Clone, Copy)]
enum Subject {
    Bare,
    Bwrap,
    RuncRun,
    Life(usize),
    Exec(usize),
}

/// A lab and its long-lived sandbox.
struct Place<'a> {
    lab: &'a Lab,
    sandbox: Sandbox,
}

/// Measures all subjects in the given number of rounds.
pub(crate) async fn run(count: usize, reference: &mut Reference, labs: &[Lab]) -> Times {
    let mut places = Vec::new();
    for lab in labs {
        places.push(Place { lab, sandbox: lab.sandbox().await });
    }
    let mut times = Times::of(labs);
    let subjects = subjects(labs.len());
    // The first round is discarded: it only warms up the caches.
    for round in 0..=count {
        let mut discarded = Times::of(labs);
        let times = if round == 0 { &mut discarded } else { &mut times };
        for step in 0..subjects.len() {
            let subject = *subjects.get((round + step) % subjects.len()).unwrap();
            measure(subject, times, reference, &places).await;
        }
        progress(round, count);
    }
    for place in places {
        place.sandbox.stop(Duration::ZERO).await.unwrap();
    }
    times
}

fn subjects(places: usize) -> Vec<Subject> {
    let mut subjects = vec![Subject::Bare, Subject::RuncRun];
    if bwrap().status().is_ok() {
        subjects.push(Subject::Bwrap);
    }
    for place in 0..places {
        subjects.extend([Subject::Exec(place), Subject::Life(place)]);
    }
    subjects
}

async fn measure(subject: Subject, times: &mut Times, reference: &mut Reference, places: &[Place<'_>]) {
    match subject {
        Subject::Bare => times.bare.add(process(&mut bare())),
        Subject::Bwrap => times.bwrap.add(process(&mut bwrap())),
        Subject::RuncRun => times.runc_run.add(reference.run()),
        Subject::Exec(at) => {
            let took = nothing(&places.get(at).unwrap().sandbox).await;
            times.ours.get_mut(at).unwrap().exec.add(took);
        }
        Subject::Life(at) => live(places.get(at).unwrap().lab, times.ours.get_mut(at).unwrap()).await,
    }
}

/// Measures the life of one sandbox, from start to stop.
async fn live(lab: &Lab, ours: &mut Ours) {
    let began = Instant::now();
    let sandbox = lab.sandbox().await;
    ours.start.add(began.elapsed());
    nothing(&sandbox).await;
    ours.first_exec.add(began.elapsed());
    let began = Instant::now();
    sandbox.stop(Duration::ZERO).await.unwrap();
    ours.stop.add(began.elapsed());
}

/// Measures one exec that does nothing, from the request to the outcome.
async fn nothing(sandbox: &Sandbox) -> Duration {
    let spec = ExecSpec { deadline_ms: None, ..exec(&[NOTHING]) };
    let began = Instant::now();
    let done = collect(sandbox, &spec).await;
    let took = began.elapsed();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
    took
}

fn process(command: &mut Command) -> Duration {
    let began = Instant::now();
    let status = command.status().unwrap();
    let took = began.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    took
}

fn bare() -> Command {
    silent(Command::new(NOTHING))
}

fn bwrap() -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--ro-bind"]).arg(layer::base()).arg("/");
    command.args(["--proc", "/proc", "--dev", "/dev", NOTHING]);
    silent(command)
}

fn silent(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn progress(round: usize, count: usize) {
    if round.is_multiple_of(PROGRESS_EVERY) {
        eprintln!("round {round} of {count}");
    }
}

impl Times {
    fn of(labs: &[Lab]) -> Self {
        let ours = |lab: &Lab| Ours {
            name: lab.runtime.name().to_owned(),
            start: Samples::default(),
            first_exec: Samples::default(),
            stop: Samples::default(),
            exec: Samples::default(),
        };
        Self {
            bare: Samples::default(),
            bwrap: Samples::default(),
            runc_run: Samples::default(),
            ours: labs.iter().map(ours).collect(),
        }
    }
}

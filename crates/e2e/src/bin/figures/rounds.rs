//! The times, taken in rounds.
//!
//! Every subject is measured once a round, so what else the machine does hits all alike; and each round begins with
//! the next subject, because what one leaves to the kernel to tidy up is paid for by the one after it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome};
use e2e::lab::{collect, exec};
use e2e::{Lab, layer};
use node::Sandbox;

use crate::reference::Reference;
use crate::samples::Samples;

/// The program that does nothing.
const NOTHING: &str = "/bin/true";
/// Rounds between two lines that say how far it is.
const PROGRESS_EVERY: usize = 20;

/// The times of one runtime.
pub(crate) struct Ours {
    /// Its name.
    pub name: String,
    /// Until `Sandbox::start` gives the sandbox out: its posture was seen from outside, and by an exec inside.
    pub start: Samples,
    /// The same, and until a first exec of `/bin/true` is answered.
    pub first_exec: Samples,
    /// Until nothing of the sandbox is left.
    pub stop: Samples,
    /// One exec of `/bin/true` in a sandbox that lives all the time, until its outcome is here.
    pub exec: Samples,
}

/// All times.
pub(crate) struct Times {
    /// A bare process.
    pub bare: Samples,
    /// A process in bubblewrap; none where that is not installed.
    pub bwrap: Samples,
    /// `runc run` with our configuration.
    pub runc_run: Samples,
    /// Sandboxes.
    pub ours: Vec<Ours>,
}

/// One thing to measure in a round.
#[derive(Clone, Copy)]
enum Subject {
    Bare,
    Bwrap,
    RuncRun,
    Life(usize),
    Exec(usize),
}

/// A lab and the sandbox that lives in it all the time.
struct Place<'a> {
    lab: &'a Lab,
    sandbox: Sandbox,
}

/// Measures everything, this many times.
pub(crate) async fn run(count: usize, reference: &mut Reference, labs: &[Lab]) -> Times {
    let mut places = Vec::new();
    for lab in labs {
        places.push(Place { lab, sandbox: lab.sandbox().await });
    }
    let mut times = Times::of(labs);
    let subjects = subjects(labs.len());
    // One round that does not count fills the caches.
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

/// One sandbox from start to stop.
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

/// One exec, from the request to the outcome.
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

//! Durations through the public API on loopback, compared with the same operations in this process.
//!
//! ```text
//! life: create ─▶ first exec answered ─▶ stop, until nothing is left        at several levels of concurrency
//! exec: /bin/true in a live sandbox, until its outcome is received          at several levels of concurrency
//! ```
//!
//! Operations in this process and through the API alternate, so that other load on the machine affects both
//! alike.

use std::time::{Duration, Instant};

use api::SandboxId;
use api::exec::{ExecSpec, Outcome};
use client::Client;
use e2e::Lab;
use e2e::lab::{collect, exec};
use e2e::service::{Service, small};
use futures_util::future::join_all;
use node::Sandbox;

use crate::Effort;
use crate::reference::Reference;
use crate::samples::Samples;
use crate::weight::resident;

/// Numbers of sandboxes that are created, used and stopped concurrently.
pub(crate) const LIVES: [usize; 3] = [1, 10, 50];
/// Numbers of concurrent execs.
pub(crate) const EXECS: [usize; 2] = [1, 64];
/// Maximum number of sandboxes that share the concurrent execs.
const SPREAD: usize = 8;
/// Time to wait until the background work of starting sandboxes is complete.
const SETTLES: Duration = Duration::from_secs(2);

/// Durations of one operation, measured in three ways. `runc run` covers a start and a stop, so it has no
/// figure for execs.
#[derive(Default)]
pub(crate) struct Ways {
    /// Number of concurrent operations.
    pub at_once: usize,
    /// Durations of plain `runc run`.
    pub runc_run: Samples,
    /// Durations when this process performs the operation itself.
    pub here: Samples,
    /// Durations when a server performs the operation through the API.
    pub served: Samples,
}

/// Results of the measurements.
pub(crate) struct Served {
    /// Durations of sandbox lives, from the create request to the end of the stop.
    pub lives: Vec<Ways>,
    /// Durations of execs in live sandboxes.
    pub execs: Vec<Ways>,
    /// Number of idle sandboxes on the server for the measurement of its memory.
    pub live: usize,
    /// Resident memory of the server, without and with these idle sandboxes.
    pub resident: [u64; 2],
}

/// Runs all measurements on a server and on a lab, both of which use the same runtime.
pub(crate) async fn run(effort: Effort, lab: &Lab) -> Served {
    let service = Service::start();
    let client = service.client();
    let mut lives = Vec::new();
    for at_once in LIVES {
        lives.push(live_at_once(effort, lab, &client, at_once).await);
    }
    let mut execs = Vec::new();
    for at_once in EXECS {
        execs.push(exec_at_once(effort, lab, &client, at_once).await);
    }
    let before = resident(&service.pid().to_string());
    let mut ids = Vec::new();
    while ids.len() < effort.live {
        let request = small();
        let batch = (0..LIVES[1]).map(|_| client.create(&request));
        ids.extend(join_all(batch).await.into_iter().map(|made| made.unwrap().id));
    }
    tokio::time::sleep(SETTLES).await;
    let after = resident(&service.pid().to_string());
    join_all(ids.iter().map(|id| client.stop(id))).await;
    Served { lives, execs, live: ids.len(), resident: [before, after] }
}

async fn live_at_once(effort: Effort, lab: &Lab, client: &Client, at_once: usize) -> Ways {
    let mut references = Vec::new();
    for _ in 0..at_once {
        references.push(Reference::prepare(lab).await);
    }
    let mut ways = Ways { at_once, ..Ways::default() };
    // The first round is discarded: it only warms up the caches.
    for round in 0..=effort.rounds.div_ceil(2 * at_once).max(2) {
        let runc_run = tokio::task::block_in_place(|| run_all(&mut references));
        let here = join_all((0..at_once).map(|_| live_here(lab))).await;
        let served = join_all((0..at_once).map(|_| live_served(client))).await;
        if round > 0 {
            runc_run.into_iter().for_each(|took| ways.runc_run.add(took));
            here.into_iter().for_each(|took| ways.here.add(took));
            served.into_iter().for_each(|took| ways.served.add(took));
        }
    }
    for reference in references {
        reference.end().await;
    }
    ways
}

/// Runs `runc run` on all references concurrently.
fn run_all(references: &mut [Reference]) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let running: Vec<_> = references.iter_mut().map(|one| scope.spawn(move || one.run())).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

async fn live_here(lab: &Lab) -> Duration {
    let began = Instant::now();
    let sandbox = lab.sandbox_with(e2e::service::small_limits()).await;
    nothing_here(&sandbox).await;
    sandbox.stop(Duration::ZERO).await.unwrap();
    began.elapsed()
}

async fn live_served(client: &Client) -> Duration {
    let began = Instant::now();
    let id = client.create(&small()).await.unwrap().id;
    nothing_served(client, &id).await;
    client.stop(&id).await.unwrap();
    began.elapsed()
}

async fn exec_at_once(effort: Effort, lab: &Lab, client: &Client, at_once: usize) -> Ways {
    let (mut here, mut served) = (Vec::new(), Vec::new());
    for _ in 0..SPREAD.min(at_once) {
        here.push(lab.sandbox_with(e2e::service::small_limits()).await);
        served.push(client.create(&small()).await.unwrap().id);
    }
    let mut ways = Ways { at_once, ..Ways::default() };
    for round in 0..=effort.rounds.div_ceil(at_once).max(4) * 4 {
        let inside = join_all((0..at_once).map(|number| nothing_here(&here[number % here.len()]))).await;
        let over =
            join_all((0..at_once).map(|number| nothing_served(client, &served[number % served.len()]))).await;
        if round > 0 {
            inside.into_iter().for_each(|took| ways.here.add(took));
            over.into_iter().for_each(|took| ways.served.add(took));
        }
    }
    for (sandbox, id) in here.iter().zip(&served) {
        sandbox.stop(Duration::ZERO).await.unwrap();
        client.stop(id).await.unwrap();
    }
    ways
}

fn nothing() -> ExecSpec {
    ExecSpec { deadline_ms: None, ..exec(&["/bin/true"]) }
}

async fn nothing_here(sandbox: &Sandbox) -> Duration {
    let began = Instant::now();
    let done = collect(sandbox, &nothing()).await;
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
    began.elapsed()
}

async fn nothing_served(client: &Client, id: &SandboxId) -> Duration {
    let began = Instant::now();
    let done = client.exec(id, &nothing()).await.unwrap().collect().await.unwrap();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
    began.elapsed()
}

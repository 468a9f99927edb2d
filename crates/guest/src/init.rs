//! Process 1: reaps children, keeps a connection to the node, and exits when its dead-man timer expires.
//!
//! ```text
//! dial ──ok──▶ serve ──disconnected──▶ dial again, with increasing delay
//!   └─failed──▶ wait, dial again                   time to live over, or SIGTERM ──▶ exit
//! (or listen, if a container engine or another foreign system runs the sandbox: see [`crate::meet`])
//! ```
//!
//! When this process ends, the sandbox ends: the kernel kills all other processes in its pid namespace.

use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use crate::guest::Guest;
use crate::launch::Purpose;
use crate::meet::Meeting;
use crate::processes::{House, Processes};
use crate::walls::Entrances;
use crate::{egress, serve, spare, sweep};

/// First delay after a failed dial. A restarted node listens within milliseconds.
const REDIAL_FIRST: Duration = Duration::from_millis(5);
/// Maximum delay between dials, long enough that a sandbox whose node is down for an hour uses almost no CPU
/// time.
const REDIAL_LAST: Duration = Duration::from_millis(500);

/// Exit code of process 1 if it could not start.
const NOT_BEGUN: u8 = 3;

/// How the node and the guest connect.
pub enum ConnectMethod {
    /// The node listens, and process 1 dials it.
    Dial,
    /// Process 1 listens; a container engine has set up the isolation.
    Listen,
    /// Process 1 listens, behind the isolation of [`crate::walls`], which it has set up itself.
    Walled {
        /// Descriptors for entering the cgroups of user code.
        entrances: Entrances,
        /// Pipe on which readiness is reported.
        said: std::fs::File,
    },
}

/// Runs process 1 until its time to live expires or SIGTERM arrives. Returns the exit code.
pub fn run(ttl: Duration, purpose: Purpose, way: ConnectMethod) -> u8 {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return NOT_BEGUN;
    };
    // Prevent all processes in the sandbox, whatever their uid, from reading this process's memory and
    // descriptors.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    spare::make_ahead();
    LocalSet::new().block_on(&runtime, async move {
        let house = match way {
            ConnectMethod::Dial => House::Ours,
            ConnectMethod::Listen => House::Engine,
            ConnectMethod::Walled { .. } => House::Walls,
        };
        if house != House::Ours {
            sweep::expect_visitors();
        }
        let Ok((meeting, said)) = meet(way) else { return NOT_BEGUN };
        let guest = Rc::new(Guest::new(purpose, house, ttl));
        let relieved = Rc::downgrade(&guest.execs);
        spare::relieve_by(move || relieved.upgrade().is_some_and(|execs| execs.forget_oldest()));
        let (Ok(children), Ok(mut terminate)) =
            (signal(SignalKind::child()), signal(SignalKind::terminate()))
        else {
            return NOT_BEGUN;
        };
        tokio::task::spawn_local(reap(children, Rc::clone(&guest.processes)));
        let way_out = Rc::new(egress::listen().await);
        tokio::task::spawn_local(attend(meeting, Rc::clone(&guest), way_out));
        if let Some(mut said) = said {
            let _ = said.write_all(crate::walls::READY);
        }
        tokio::select! {
            () = guest.expired() => api::exec::GUEST_EXPIRED,
            _ = terminate.recv() => {
                sweep::end_everybody().await;
                0
            }
        }
    })
}

/// Prepares the endpoint through which node and guest connect. Also returns the pipe for the readiness
/// report, if there is one.
fn meet(way: ConnectMethod) -> std::io::Result<(Meeting, Option<std::fs::File>)> {
    match way {
        ConnectMethod::Dial => Ok((Meeting::dial(), None)),
        ConnectMethod::Listen => Ok((Meeting::listen(None)?, None)),
        ConnectMethod::Walled { entrances, said } => Ok((Meeting::listen(Some(entrances))?, Some(said))),
    }
}

/// Reaps every child that has ended, including orphans, and reports its end to its owner.
async fn reap(mut children: tokio::signal::unix::Signal, processes: Rc<Processes>) {
    while children.recv().await.is_some() {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            processes.ended(pid, outcome(status));
        }
    }
}

/// Serves one connection after another, forever.
async fn attend(meeting: Meeting, guest: Rc<Guest>, way_out: Rc<Option<tokio::net::TcpListener>>) {
    let mut pause = REDIAL_FIRST;
    loop {
        if let Ok(connection) = meeting.next().await {
            guest.processes.attend(connection.descriptors);
            serve::serve(connection.stream, Rc::clone(&guest), Rc::clone(&way_out)).await;
            pause = REDIAL_FIRST;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(REDIAL_LAST);
    }
}

/// Converts the exit status of a child into an outcome. Any other status becomes `Unknown`, never success.
pub fn outcome(status: WaitStatus) -> api::exec::Outcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => api::exec::Outcome::Exited { code },
        (None, Some(signal)) => api::exec::Outcome::Signaled { signal },
        (None, None) => api::exec::Outcome::Unknown,
    }
}

//! The behavior required of every backend, as a test suite that runs against any backend.
//!
//! Each law is one function, which creates the sandboxes it needs, checks one statement, and removes the
//! sandboxes. A violated law returns the observed behavior as its error. [`lifecycle`] applies to any
//! [`Runtime`], [`channel`] applies to backends whose guest connects, and [`walls`] applies to backends that
//! limit and confine their sandboxes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use api::SandboxId;
use api::hello::{HELLO_BYTES, Hello};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use crate::{Error, Exit, Listed, Runtime, Spec};

/// Time to wait for an event that must not happen. It is short because every passing run waits for all of it.
const GLANCE: Duration = Duration::from_millis(200);
/// A size larger than the capacity of any machine.
const ABSURD_BYTES: u64 = 1 << 60;

/// Configuration for running the laws.
pub struct Fixture {
    /// A spec with working layers and a working guest.
    pub spec: Spec,
    /// Prefix of the sandbox IDs that the laws use, which distinguishes them from other sandboxes.
    pub prefix: String,
    /// Creates a fresh instance of the backend, as a restarted process would.
    pub instance: Box<dyn Fn() -> Box<dyn Runtime> + Send + Sync>,
    /// Timeout for every operation. It must be long enough for the backend on a busy machine.
    pub patience: Duration,
    /// Number of IDs used so far.
    pub used: AtomicU32,
}

/// A law's name and, if it is violated, the observed behavior.
pub type LawVerdict = (&'static str, Result<(), String>);

impl Fixture {
    fn id(&self) -> Result<SandboxId, String> {
        let number = self.used.fetch_add(1, Ordering::Relaxed);
        format!("{}{number}", self.prefix).parse().map_err(|error: api::id::NotAnId| error.to_string())
    }

    /// Starts a sandbox for a law and stops it afterwards, whether the law holds or not.
    async fn with_sandbox(
        &self,
        law: impl AsyncFnOnce(&dyn Runtime, &SandboxId) -> Result<(), String>,
    ) -> Result<(), String> {
        let (runtime, id) = ((self.instance)(), self.id()?);
        runtime.start(&id, &self.spec).await.map_err(|error| said("start", &error))?;
        let kept = law(runtime.as_ref(), &id).await;
        // Stop the sandbox with a fresh instance, because the law may have taken the sandbox over with a
        // different instance.
        drop(runtime);
        let stopped = (self.instance)().stop(&id, Duration::ZERO).await;
        kept.and(stopped.map_err(|error| said("the final stop", &error)))
    }
}

/// Runs every law.
pub async fn all(fixture: &Fixture) -> Vec<LawVerdict> {
    let mut verdicts = lifecycle(fixture).await;
    verdicts.extend(channel(fixture).await);
    verdicts.extend(walls(fixture).await);
    verdicts
}

/// Runs the laws about starting, listing, waiting and stopping.
pub async fn lifecycle(fixture: &Fixture) -> Vec<LawVerdict> {
    vec![
        ("start_then_listed", start_then_listed(fixture).await),
        ("second_start_is_exists_and_harms_nothing", second_start_is_exists_and_harms_nothing(fixture).await),
        ("stop_is_idempotent", stop_is_idempotent(fixture).await),
        ("stop_of_unknown_is_success", stop_of_unknown_is_success(fixture).await),
        ("after_stop_nothing_is_listed", after_stop_nothing_is_listed(fixture).await),
        ("wait_answers_after_the_end", wait_answers_after_the_end(fixture).await),
        ("wait_of_unknown_is_not_found", wait_of_unknown_is_not_found(fixture).await),
        ("a_failed_start_leaves_nothing", a_failed_start_leaves_nothing(fixture).await),
        ("an_id_can_be_used_again_after_stop", an_id_can_be_used_again_after_stop(fixture).await),
    ]
}

/// Runs the laws about the channel.
pub async fn channel(fixture: &Fixture) -> Vec<LawVerdict> {
    vec![
        ("connect_gives_a_greeted_channel", connect_gives_a_greeted_channel(fixture).await),
        ("connect_again_after_a_break", connect_again_after_a_break(fixture).await),
        ("a_new_instance_takes_over", a_new_instance_takes_over(fixture).await),
        ("connect_to_unknown_is_not_found", connect_to_unknown_is_not_found(fixture).await),
        ("connect_ends_with_the_sandbox", connect_ends_with_the_sandbox(fixture).await),
    ]
}

/// Runs the laws about limits and about posture, the observed privileges of process 1.
pub async fn walls(fixture: &Fixture) -> Vec<LawVerdict> {
    vec![
        ("usage_counts", usage_counts(fixture).await),
        ("posture_has_no_differences", posture_has_no_differences(fixture).await),
        (
            "limits_above_what_can_be_enforced_are_refused",
            limits_above_what_can_be_enforced_are_refused(fixture).await,
        ),
    ]
}

/// A started sandbox is listed as alive and owned.
async fn start_then_listed(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| match listed(runtime, id).await? {
        Some(Listed { owned: true, alive: true, .. }) => Ok(()),
        other => Err(format!("after start the list shows {other:?}")),
    };
    fixture.with_sandbox(law).await
}

/// A second start with the same ID is refused, and the first sandbox keeps running.
async fn second_start_is_exists_and_harms_nothing(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        match runtime.start(id, &fixture.spec).await {
            Err(Error::Exists(named)) if named == *id => {}
            other => return Err(format!("the second start returned {other:?}")),
        }
        match listed(runtime, id).await? {
            Some(Listed { alive: true, .. }) => Ok(()),
            other => Err(format!("after the second start the list shows {other:?}")),
        }
    };
    fixture.with_sandbox(law).await
}

/// Stopping a stopped sandbox succeeds.
async fn stop_is_idempotent(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        for time in ["first", "second"] {
            let stopped = runtime.stop(id, Duration::ZERO).await;
            stopped.map_err(|error| said(&format!("the {time} stop"), &error))?;
        }
        Ok(())
    };
    fixture.with_sandbox(law).await
}

/// Stopping a sandbox that never existed succeeds.
async fn stop_of_unknown_is_success(fixture: &Fixture) -> Result<(), String> {
    let stopped = (fixture.instance)().stop(&fixture.id()?, Duration::ZERO).await;
    stopped.map_err(|error| said("stopping an unknown sandbox", &error))
}

/// A stopped sandbox is no longer listed, neither by the instance that started it nor by any other.
async fn after_stop_nothing_is_listed(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        runtime.stop(id, Duration::ZERO).await.map_err(|error| said("stop", &error))?;
        let other = (fixture.instance)();
        match (listed(runtime, id).await?, listed(other.as_ref(), id).await?) {
            (None, None) => Ok(()),
            seen => Err(format!("after stop the lists show {seen:?}")),
        }
    };
    fixture.with_sandbox(law).await
}

/// A wait blocks while process 1 is alive, and then returns how process 1 ended or [`Exit::Unknown`]. It
/// never makes up an exit status of 0.
async fn wait_answers_after_the_end(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        if let Ok(early) = tokio::time::timeout(GLANCE, runtime.wait(id)).await {
            return Err(format!("wait returned {early:?} while process 1 was alive"));
        }
        let both = async { tokio::join!(runtime.wait(id), runtime.stop(id, Duration::ZERO)) };
        let (exit, stopped) = tokio::time::timeout(fixture.patience, both)
            .await
            .map_err(|_| "wait did not return after the sandbox was stopped")?;
        stopped.map_err(|error| said("stop", &error))?;
        match exit {
            Ok(Exit::Signaled(9) | Exit::Unknown) => Ok(()),
            other => Err(format!("wait returned {other:?} after process 1 was killed")),
        }
    };
    fixture.with_sandbox(law).await
}

/// A wait for a sandbox that never existed returns `NotFound`.
async fn wait_of_unknown_is_not_found(fixture: &Fixture) -> Result<(), String> {
    match tokio::time::timeout(fixture.patience, (fixture.instance)().wait(&fixture.id()?)).await {
        Ok(Err(Error::NotFound(_))) => Ok(()),
        other => Err(format!("wait for an unknown sandbox returned {other:?}")),
    }
}

/// A failed start leaves nothing behind, and its ID remains usable.
async fn a_failed_start_leaves_nothing(fixture: &Fixture) -> Result<(), String> {
    let (runtime, id) = ((fixture.instance)(), fixture.id()?);
    let (layers, image) = (vec!["/nonexistent/layer".into()], "bellglass/nonexistent:latest".into());
    let spec = Spec { layers, image, ..fixture.spec.clone() };
    if runtime.start(&id, &spec).await.is_ok() {
        return Err("a sandbox started although its layer does not exist".into());
    }
    let left = listed(runtime.as_ref(), &id).await?;
    let again = runtime.start(&id, &fixture.spec).await;
    let stopped = runtime.stop(&id, Duration::ZERO).await;
    match (left, again, stopped) {
        (None, Ok(()), Ok(())) => Ok(()),
        seen => Err(format!("after a failed start, the results of list, start and stop are {seen:?}")),
    }
}

/// The ID of a stopped sandbox can be used again.
async fn an_id_can_be_used_again_after_stop(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        runtime.stop(id, Duration::ZERO).await.map_err(|error| said("stop", &error))?;
        runtime
            .start(id, &fixture.spec)
            .await
            .map_err(|error| said("starting the sandbox again after it was stopped", &error))
    };
    fixture.with_sandbox(law).await
}

/// `connect` returns a connection that has completed the handshake. The connection is open, and no handshake
/// bytes are left to read.
async fn connect_gives_a_greeted_channel(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        let stream = runtime.connect(id, fixture.patience).await.map_err(|error| said("connect", &error))?;
        is_open(stream).await
    };
    fixture.with_sandbox(law).await
}

/// After a disconnect, the guest connects again, and the next `connect` returns that connection.
async fn connect_again_after_a_break(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        let first =
            runtime.connect(id, fixture.patience).await.map_err(|error| said("the first connect", &error))?;
        drop(first);
        let second = runtime
            .connect(id, fixture.patience)
            .await
            .map_err(|error| said("the second connect", &error))?;
        is_open(second).await
    };
    fixture.with_sandbox(law).await
}

/// After the instance that served a sandbox is dropped, another instance lists the sandbox and takes it over.
async fn a_new_instance_takes_over(fixture: &Fixture) -> Result<(), String> {
    let (first, id) = ((fixture.instance)(), fixture.id()?);
    first.start(&id, &fixture.spec).await.map_err(|error| said("start", &error))?;
    let connected =
        first.connect(&id, fixture.patience).await.map_err(|error| said("the first connect", &error));
    drop(first);
    let second = (fixture.instance)();
    let kept = async {
        drop(connected?);
        match listed(second.as_ref(), &id).await? {
            Some(Listed { alive: true, owned: false, .. }) => {}
            other => return Err(format!("after the first instance was dropped the list shows {other:?}")),
        }
        let stream =
            second.connect(&id, fixture.patience).await.map_err(|error| said("the take-over", &error))?;
        is_open(stream).await
    };
    let kept = kept.await;
    let stopped = second.stop(&id, Duration::ZERO).await.map_err(|error| said("stop", &error));
    kept.and(stopped)
}

/// A `connect` to a sandbox that never existed returns `NotFound`.
async fn connect_to_unknown_is_not_found(fixture: &Fixture) -> Result<(), String> {
    match (fixture.instance)().connect(&fixture.id()?, fixture.patience).await {
        Err(Error::NotFound(_)) => Ok(()),
        other => Err(format!("connect to an unknown sandbox returned {other:?}")),
    }
}

/// A `connect` that is waiting when the sandbox is stopped returns `Ended` before its deadline.
async fn connect_ends_with_the_sandbox(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        // Process 1 opens one connection at a time, so the next `connect` waits while this connection is
        // held.
        let held = runtime.connect(id, fixture.patience).await.map_err(|error| said("connect", &error))?;
        let waiting = runtime.connect(id, 2 * fixture.patience);
        let stopping = async {
            tokio::time::sleep(GLANCE).await;
            runtime.stop(id, Duration::ZERO).await
        };
        let both = async { tokio::join!(waiting, stopping) };
        let (connected, stopped) = tokio::time::timeout(fixture.patience, both)
            .await
            .map_err(|_| "connect did not return after the sandbox was stopped")?;
        drop(held);
        stopped.map_err(|error| said("stop", &error))?;
        match connected {
            Err(Error::Ended(_)) => Ok(()),
            other => Err(format!("connect returned {other:?} after the sandbox was stopped")),
        }
    };
    fixture.with_sandbox(law).await
}

/// Usage reports the memory and processor time of a running sandbox, and `NotFound` for an unknown sandbox.
async fn usage_counts(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        let _stream = runtime.connect(id, fixture.patience).await.map_err(|error| said("connect", &error))?;
        let usage = runtime.usage(id).await.map_err(|error| said("usage", &error))?;
        if usage.sandbox_memory_bytes == 0 || usage.cpu_us == 0 {
            return Err(format!("the usage of a running sandbox is {usage:?}"));
        }
        match runtime.usage(&fixture.id()?).await {
            Err(Error::NotFound(_)) => Ok(()),
            other => Err(format!("usage of an unknown sandbox returned {other:?}")),
        }
    };
    fixture.with_sandbox(law).await
}

/// Process 1 has exactly the privileges that its tier promises, and the reported posture is complete.
async fn posture_has_no_differences(fixture: &Fixture) -> Result<(), String> {
    let law = async |runtime: &dyn Runtime, id: &SandboxId| {
        let _stream = runtime.connect(id, fixture.patience).await.map_err(|error| said("connect", &error))?;
        let (posture, differences) = runtime.posture(id).await.map_err(|error| said("posture", &error))?;
        if posture.uids.is_empty() || posture.namespaces.is_empty() || posture.descriptors.is_empty() {
            return Err(format!("the posture is incomplete: {posture:?}"));
        }
        if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
    };
    fixture.with_sandbox(law).await
}

/// Limits that cannot be enforced are refused, not reduced, and nothing is left behind.
async fn limits_above_what_can_be_enforced_are_refused(fixture: &Fixture) -> Result<(), String> {
    let limits = fixture.spec.limits;
    let absurd = [
        ("disk_bytes", api::limits::Limits { disk_bytes: ABSURD_BYTES, ..limits }),
        ("memory_bytes", api::limits::Limits { memory_bytes: ABSURD_BYTES, ..limits }),
        ("disk_inodes", api::limits::Limits { disk_inodes: ABSURD_BYTES, ..limits }),
    ];
    for (name, limits) in absurd {
        let (runtime, id) = ((fixture.instance)(), fixture.id()?);
        let started = runtime.start(&id, &Spec { limits, ..fixture.spec.clone() }).await;
        let left = listed(runtime.as_ref(), &id).await?;
        let stopped = runtime.stop(&id, Duration::ZERO).await;
        match (started, left, stopped) {
            (Err(Error::Capacity { .. } | Error::Unsupported { .. }), None, Ok(())) => {}
            seen => {
                return Err(format!(
                    "with a far too large {name}, the results of start, list and stop are {seen:?}"
                ));
            }
        }
    }
    Ok(())
}

async fn listed(runtime: &dyn Runtime, id: &SandboxId) -> Result<Option<Listed>, String> {
    let all = runtime.list().await.map_err(|error| said("list", &error))?;
    Ok(all.into_iter().find(|one| one.id == *id))
}

/// Checks that a channel is open, which means that there is nothing to read, or only data that follows the
/// handshake.
async fn is_open(mut stream: UnixStream) -> Result<(), String> {
    let mut bytes = [0; HELLO_BYTES];
    match tokio::time::timeout(GLANCE, stream.read(&mut bytes)).await {
        Err(_) => Ok(()),
        Ok(Ok(count)) if count > 0 && Hello::decode(&bytes).is_err() => Ok(()),
        Ok(read) => Err(format!("after the handshake a read returned {read:?} with {bytes:?}")),
    }
}

fn said(act: &str, error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{act} failed: {error}{cause}")
}

//! One sandbox from start to stop. Its posture (effective confinement) is checked before any code runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec, LostCause, Outcome};
use api::posture::Posture;
use api::trace::STEP;
use api::{ExecId, SandboxId, limits};
use bytes::Bytes;
use host::error::Error;
use hyper::Method;
use runtime::{Profile, Runtime, Spec, Tier, Usage};
use tracing::{Instrument as _, info_span};

use crate::exec::{ANSWER_WITHIN, Exec, Home};
use crate::link::{GuestLink, GuestRequest};
use crate::port::{Guard, Port};

/// Timeout from the start of process 1 to its first connection. Connecting takes a second on a starved
/// machine; a broken guest never connects.
const DIAL_WITHIN: Duration = Duration::from_secs(20);
/// Timeout for connecting to a port in the sandbox. Connecting is usually immediate, except while the guest
/// is starved or being taken over by another process.
const PORT_WITHIN: Duration = Duration::from_secs(10);

/// Capabilities that root has in sandboxes that build recipes: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL,
/// SETGID and SETUID.
const BUILDS: u64 = 0b1111_1011;

/// A running sandbox. Dropping this value does not stop the sandbox, which a later process can find by its
/// ID.
pub struct Sandbox {
    home: Home,
    posture: Option<Posture>,
}

impl Sandbox {
    /// Starts a sandbox, and checks that its posture fulfills its tier's promise. On failure, the sandbox is
    /// removed.
    ///
    /// # Errors
    /// Returns an error if the sandbox could not be started or its posture is wrong.
    pub async fn start(runtime: Arc<dyn Runtime>, id: SandboxId, spec: &Spec) -> Result<Self, Error> {
        spec.limits.check().map_err(Error::Request)?;
        let step = info_span!(target: STEP, "start", what = runtime.name());
        runtime.start(&id, spec).instrument(step).await?;
        let mut sandbox = Self::attach(runtime, id, spec.limits.memory_bytes);
        match sandbox.check(&spec.profile).await {
            Ok(posture) => {
                sandbox.posture = posture;
                Ok(sandbox)
            }
            Err(error) => {
                sandbox.stop(Duration::ZERO).instrument(info_span!(target: STEP, "undo")).await?;
                Err(error)
            }
        }
    }

    /// Attaches to a sandbox that another process has started.
    pub fn attach(runtime: Arc<dyn Runtime>, id: SandboxId, memory_bytes: u64) -> Self {
        let link = Arc::new(GuestLink::new(Arc::clone(&runtime), id.clone()));
        Self { home: Home { id, runtime, link, memory_bytes }, posture: None }
    }

    /// Returns the sandbox's ID.
    pub fn id(&self) -> &SandboxId {
        &self.home.id
    }

    /// Returns the posture of a user process, if this process checked it when it started the sandbox.
    pub fn posture(&self) -> Option<&Posture> {
        self.posture.as_ref()
    }

    /// Returns the host end of the sandbox's channel.
    pub fn link(&self) -> &GuestLink {
        &self.home.link
    }

    /// Returns the host end of the sandbox's channel, as a shared pointer.
    pub fn shared_link(&self) -> Arc<GuestLink> {
        Arc::clone(&self.home.link)
    }

    /// Starts a command with an ID that the caller chooses. A repeated call attaches to the exec that the
    /// first call started.
    ///
    /// # Errors
    /// Returns an error if the request is invalid, the command could not be started, or the sandbox has
    /// ended. If the command could not be started, nothing ran.
    pub async fn exec(&self, id: ExecId, spec: &ExecSpec) -> Result<Exec, Error> {
        Exec::run(self.home.clone(), id, spec).await
    }

    /// Starts a command like [`Sandbox::exec`], without a reader.
    ///
    /// # Errors
    /// Fails like [`Sandbox::exec`].
    pub async fn start_exec(&self, id: &ExecId, spec: &ExecSpec) -> Result<ExecInfo, Error> {
        crate::exec::start(&self.home, id, spec).await
    }

    /// Starts a command like [`Sandbox::start_exec`], and opens a reader of it.
    pub async fn start_exec_and_read(&self, id: &ExecId, spec: &ExecSpec) -> Result<(ExecInfo, Exec), Error> {
        Exec::start_and_read(&self.home, id, spec).await
    }

    /// Creates a reader of an existing exec.
    pub fn exec_reader(&self, id: ExecId) -> Exec {
        Exec::attach(self.home.clone(), id)
    }

    /// Connects to a port in the sandbox, and holds `guard` while the connection is open.
    ///
    /// # Errors
    /// Returns an error if no server listens on the port or if the sandbox has ended.
    pub async fn dial(&self, port: u16, guard: Option<Guard>) -> Result<Port, Error> {
        let ask = GuestRequest { method: Method::POST, path: format!("/ports/{port}"), body: Bytes::new() };
        let (response, said) = self.home.link.both_ways(&ask, PORT_WITHIN).await?;
        Ok(Port::new(response.into_body(), said, guard))
    }

    /// Returns all execs of the sandbox, except the internal exec that checks the posture.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or does not respond.
    pub async fn execs(&self) -> Result<Vec<ExecInfo>, Error> {
        let ask = GuestRequest { method: Method::GET, path: "/execs".into(), body: Bytes::new() };
        let mut execs: Vec<ExecInfo> = self.home.link.call(&ask, ANSWER_WITHIN).await?;
        let own = first_exec();
        execs.retain(|exec| exec.id != own);
        Ok(execs)
    }

    /// Sets the guest's time to live, counted from now. It replaces the time to live that was set at the
    /// start.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or does not respond in time.
    pub async fn live_for(&self, ttl: Duration, within: Duration) -> Result<(), Error> {
        self.put(format!("/ttl/{}", host::clock::millis(ttl)), within).await
    }

    /// Suspends the deadlines of all execs until [`Sandbox::live_for`] is called, and sets the guest's time
    /// to live.
    ///
    /// # Errors
    /// Fails like [`Sandbox::live_for`].
    pub async fn hold(&self, ttl: Duration, within: Duration) -> Result<(), Error> {
        self.put(format!("/hold/{}", host::clock::millis(ttl)), within).await
    }

    /// Makes the programs of the sandbox's execs trust this certificate authority (PEM).
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or does not respond.
    pub async fn trust(&self, certificate: &str) -> Result<(), Error> {
        let body = Bytes::copy_from_slice(certificate.as_bytes());
        let ask = GuestRequest { method: Method::PUT, path: "/authority".into(), body };
        self.home.link.call(&ask, ANSWER_WITHIN).await
    }

    async fn put(&self, path: String, within: Duration) -> Result<(), Error> {
        self.home.link.call(&GuestRequest { method: Method::PUT, path, body: Bytes::new() }, within).await
    }

    /// Returns the sandbox's current resource usage.
    ///
    /// # Errors
    /// Returns an error if the sandbox is no longer known.
    pub async fn usage(&self) -> Result<Usage, Error> {
        Ok(self.home.runtime.usage(&self.home.id).await?)
    }

    /// Waits until the sandbox has ended, and returns the cause.
    pub async fn ended(&self) -> LostCause {
        self.home.link.ended().await
    }

    /// Stops the sandbox and removes all of its resources. Can be called repeatedly.
    ///
    /// # Errors
    /// Returns an error if a resource could not be removed.
    pub async fn stop(&self, grace: Duration) -> Result<(), Error> {
        self.home.link.stopping(LostCause::Stopped);
        Ok(self.home.runtime.stop(&self.home.id, grace).await?)
    }

    /// Compares the posture, as seen from outside and from inside, with the promise of the tier.
    async fn check(&self, profile: &Profile) -> Result<Option<Posture>, Error> {
        self.home.link.ready(DIAL_WITHIN).instrument(info_span!(target: STEP, "dial")).await?;
        let outside = info_span!(target: STEP, "posture", what = "outside");
        let (_, mut differences) = self.home.runtime.posture(&self.home.id).instrument(outside).await?;
        let inside = match profile {
            Profile::Run | Profile::Workstation | Profile::Rooted | Profile::Build => {
                let step = info_span!(target: STEP, "posture", what = "inside");
                let posture = self.look_inside().instrument(step).await?;
                differences.extend(user_differences(&posture, self.home.runtime.tier(), profile));
                Some(posture)
            }
            // No untrusted code runs in a sandbox with this profile.
            Profile::Unpack { .. } => None,
        };
        if differences.is_empty() { Ok(inside) } else { Err(Error::Posture(differences)) }
    }

    /// Returns the posture that an ordinary exec sees of itself.
    async fn look_inside(&self) -> Result<Posture, Error> {
        let spec = ExecSpec {
            argv: vec!["/.bellglass/guest".into(), "posture".into()],
            deadline_ms: Some(u64::try_from(ANSWER_WITHIN.as_millis()).unwrap_or(u64::MAX)),
            ..ExecSpec::default()
        };
        let collected = self.exec(first_exec(), &spec).await?.collect().await?;
        if collected.end.outcome != (Outcome::Exited { code: 0 }) {
            return Err(Error::Posture(vec![format!(
                "the first exec ended with {:?}",
                collected.end.outcome
            )]));
        }
        serde_json::from_slice(&collected.stdout).map_err(|error| {
            Error::Posture(vec![format!("the first exec did not report its posture: {error}")])
        })
    }
}

/// Returns the ID of the internal exec that reports the posture.
fn first_exec() -> ExecId {
    ExecId::from_random([0; 16])
}

/// Returns the differences between the posture of a user process and the posture that every tier promises.
fn user_differences(posture: &Posture, tier: Tier, profile: &Profile) -> Vec<String> {
    let (uid, held) = if *profile == Profile::Build { (0, BUILDS) } else { (limits::UID, 0) };
    let mut differences = Vec::new();
    let mut expect = |what: &str, holds: bool, seen: &dyn std::fmt::Debug| {
        if !holds {
            differences.push(format!("unexpected {what} of a user process: {seen:?}"));
        }
    };
    expect("uids", posture.uids == [uid; 4], &posture.uids);
    expect("gids", posture.gids == [uid; 4], &posture.gids);
    let one_group = matches!(posture.groups.as_slice(), [group] if limits::EXEC_GROUPS.contains(group));
    expect("groups", one_group, &posture.groups);
    let exact = [("CapInh", 0), ("CapPrm", held), ("CapEff", held), ("CapBnd", held), ("CapAmb", 0)]
        .into_iter()
        .filter(|(set, _)| !(tier == Tier::UserKernel && *set == "CapAmb"))
        .all(|(set, bits)| posture.capabilities.get(set) == Some(&bits));
    expect("capabilities", exact, &posture.capabilities);
    expect("no_new_privileges", posture.no_new_privileges, &posture.no_new_privileges);
    expect("seccomp", posture.seccomp == 2, &posture.seccomp);
    let three = posture.descriptors.keys().eq([0, 1, 2].iter());
    expect("descriptors", three, &posture.descriptors);
    let namespaces: &BTreeMap<_, _> = &posture.namespaces;
    expect("namespaces", tier == Tier::UserKernel || namespaces.len() == 7, namespaces);
    expect("core files", posture.core_bytes == 0, &posture.core_bytes);
    differences
}

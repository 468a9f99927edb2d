//! Backends that each break one law. They test the suite of laws itself, which must reject every one of them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use api::SandboxId;
use api::posture::Posture;
use runtime::laws::Fixture;
use runtime::oci::{Flavor, Oci};
use runtime::{Error, Exit, Inspect, Listed, Properties, Runtime, Spec, Usage};
use tokio::net::UnixStream;

use super::ground::Ground;

/// The defect of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    ListForgets,
    ListSaysDead,
    SecondStartSucceeds,
    SecondStartStops,
    SecondStopFails,
    StopDoesNothing,
    WaitLies,
    WaitOfUnknownAnswers,
    FailedStartIsListed,
    ConnectOnce,
    ConnectUngreeted,
    UsageIsNothing,
    PostureIsNotLookedAt,
    LimitsAreCutDown,
}

/// The group that contains the laws that a mutation breaks.
#[derive(Clone, Copy, Debug)]
pub enum Group {
    Lifecycle,
    Channel,
    Walls,
}

/// Timeout for operations of a mutant. It is shorter than the timeout for a busy machine, because each law
/// that the mutant breaks may use all of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Every mutation, with the name of a law that it breaks.
pub const ALL: [(Mutation, &str); 14] = [
    (Mutation::ListForgets, "start_then_listed"),
    (Mutation::ListSaysDead, "start_then_listed"),
    (Mutation::SecondStartSucceeds, "second_start_is_exists_and_harms_nothing"),
    (Mutation::SecondStartStops, "second_start_is_exists_and_harms_nothing"),
    (Mutation::SecondStopFails, "stop_is_idempotent"),
    (Mutation::StopDoesNothing, "after_stop_nothing_is_listed"),
    (Mutation::WaitLies, "wait_answers_after_the_end"),
    (Mutation::WaitOfUnknownAnswers, "wait_of_unknown_is_not_found"),
    (Mutation::FailedStartIsListed, "a_failed_start_leaves_nothing"),
    (Mutation::ConnectOnce, "connect_again_after_a_break"),
    (Mutation::ConnectUngreeted, "connect_gives_a_greeted_channel"),
    (Mutation::UsageIsNothing, "usage_counts"),
    (Mutation::PostureIsNotLookedAt, "posture_has_no_differences"),
    (Mutation::LimitsAreCutDown, "limits_above_what_can_be_enforced_are_refused"),
];

impl Mutation {
    pub fn group(self) -> Group {
        match self {
            Self::ConnectOnce | Self::ConnectUngreeted => Group::Channel,
            Self::UsageIsNothing | Self::PostureIsNotLookedAt | Self::LimitsAreCutDown => Group::Walls,
            Self::ListForgets
            | Self::ListSaysDead
            | Self::SecondStartSucceeds
            | Self::SecondStartStops
            | Self::SecondStopFails
            | Self::StopDoesNothing
            | Self::WaitLies
            | Self::WaitOfUnknownAnswers
            | Self::FailedStartIsListed => Group::Lifecycle,
        }
    }
}

struct Mutant {
    real: Oci,
    mutation: Mutation,
    connected: AtomicBool,
    failed: std::sync::Mutex<Option<SandboxId>>,
}

pub fn fixture(ground: &Ground, mutation: Mutation) -> Fixture {
    let dirs = ground.dirs();
    let instance = move || -> Box<dyn Runtime> {
        let real = Oci::new(Flavor::runc().find().unwrap(), dirs.clone()).unwrap();
        Box::new(Mutant {
            real,
            mutation,
            connected: AtomicBool::new(false),
            failed: std::sync::Mutex::new(None),
        })
    };
    let prefix = format!("{}m{}x", ground.prefix, mutation as u32);
    Fixture {
        spec: ground.spec(),
        prefix,
        patience: PATIENCE,
        instance: Box::new(instance),
        used: AtomicU32::new(0),
    }
}

impl Mutant {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }
}

#[async_trait::async_trait]
impl Runtime for Mutant {
    fn properties(&self) -> Properties {
        self.real.properties()
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        let mut spec = spec.clone();
        if self.is(Mutation::LimitsAreCutDown) {
            spec.limits.disk_bytes = spec.limits.disk_bytes.min(64 << 20);
        }
        let started = self.real.start(id, &spec).await;
        match &started {
            Err(Error::Exists(_)) if self.is(Mutation::SecondStartSucceeds) => return Ok(()),
            Err(Error::Exists(_)) if self.is(Mutation::SecondStartStops) => {
                self.real.stop(id, Duration::ZERO).await?;
            }
            Err(_) => *self.failed.lock().unwrap() = Some(id.clone()),
            Ok(()) => {}
        }
        started
    }

    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error> {
        if self.is(Mutation::ConnectUngreeted) {
            return Ok(UnixStream::pair().unwrap().0);
        }
        if self.is(Mutation::ConnectOnce) && self.connected.swap(true, Ordering::Relaxed) {
            return Err(Error::Deadline { what: "the guest's call", after: within });
        }
        self.real.connect(id, within).await
    }

    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error> {
        match (self.mutation, self.real.wait(id).await) {
            (Mutation::WaitLies, Ok(_)) => Ok(Exit::Exited(0)),
            (Mutation::WaitOfUnknownAnswers, Err(Error::NotFound(_))) => Ok(Exit::Unknown),
            (_, answer) => answer,
        }
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        if self.is(Mutation::StopDoesNothing) {
            return Ok(());
        }
        let known = self.real.list().await?.iter().any(|listed| listed.id == *id);
        if self.is(Mutation::SecondStopFails) && !known {
            return Err(Error::NotFound(id.clone()));
        }
        self.real.stop(id, grace).await
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let mut listed = self.real.list().await?;
        if self.is(Mutation::ListForgets) {
            listed.clear();
        }
        if self.is(Mutation::ListSaysDead) {
            listed.iter_mut().for_each(|listed| listed.alive = false);
        }
        if self.is(Mutation::FailedStartIsListed) {
            let failed = self.failed.lock().unwrap().clone();
            listed.extend(failed.map(|id| Listed { id, owned: false, alive: false }));
        }
        Ok(listed)
    }
}

#[async_trait::async_trait]
impl Inspect for Mutant {
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let usage = self.real.usage(id).await?;
        Ok(if self.is(Mutation::UsageIsNothing) { Usage::default() } else { usage })
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        if self.is(Mutation::PostureIsNotLookedAt) {
            return Ok((Posture::default(), Vec::new()));
        }
        self.real.posture(id).await
    }
}

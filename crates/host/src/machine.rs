//! The machine: its data directory, its runtimes, and the removal of sandboxes that dead processes left
//! behind.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use runtime::daytona::{self, Account, Daytona};
use runtime::engine::{Engine, EngineEndpoint, EngineKind};
use runtime::oci::{Dirs, Flavor, Oci};
use runtime::{Runtime, Tier};

use crate::error::Error;
use crate::guest;

/// The machine that this process runs on.
pub struct Machine {
    data: PathBuf,
    guest: PathBuf,
}

impl Machine {
    /// Opens the data directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or written.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let failed = |source| Error::System { act: format!("write to {}", data.display()), source };
        let guest = guest::install(data).and_then(|guest| guest.canonicalize()).map_err(failed)?;
        let data = data.canonicalize().map_err(failed)?;
        // The check applies only to root, because only sandboxes that root creates run as separate host
        // users, which need access to the data directory.
        if rustix::process::geteuid().is_root() {
            walkable(&data)?;
        }
        Ok(Self { data, guest })
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the path of the guest's executable.
    pub fn guest(&self) -> &Path {
        &self.guest
    }

    /// Returns the supported OCI runtimes, installed or not, with the strongest isolation last.
    pub fn flavors() -> [Flavor; 3] {
        [Flavor::runc(), Flavor::youki(), Flavor::runsc()]
    }

    /// Returns this machine's runtime with this name.
    ///
    /// # Errors
    /// Returns an error if the name is unknown, or if the runtime is not installed or does not work on this
    /// machine.
    pub fn runtime(&self, name: &str) -> Result<Arc<dyn Runtime>, Error> {
        if let Some(kind) = EngineKind::ALL.into_iter().find(|kind| kind.name() == name) {
            return Ok(Arc::new(self.engine(kind)?));
        }
        if name == daytona::NAME {
            return Ok(Arc::new(self.daytona()?));
        }
        let known = Self::flavors().into_iter().find(|flavor| flavor.name == name);
        let flavor = known.ok_or_else(|| {
            let names = Self::flavors()
                .map(|flavor| flavor.name)
                .into_iter()
                .chain(EngineKind::ALL.map(EngineKind::name))
                .chain([daytona::NAME]);
            let why = format!("unknown runtime {name}; use one of {}", names.collect::<Vec<_>>().join(", "));
            runtime::Error::Unsupported { what: "this runtime", why }
        })?;
        Ok(Arc::new(Oci::new(flavor.find()?, Dirs::below(&self.data))?))
    }

    /// Returns this machine's container engine with this name.
    ///
    /// # Errors
    /// Returns an error if no container engine has this name, or if the engine is not found.
    pub fn engine_named(&self, name: &str) -> Result<Engine, Error> {
        let kind = EngineKind::ALL.into_iter().find(|kind| kind.name() == name);
        self.engine(kind.ok_or_else(|| runtime::Error::Unsupported {
            what: "building an image",
            why: format!(
                "{name} is not a container engine; use one that builds images: `--backends podman` or `--backends docker`"
            ),
        })?)
    }

    /// Returns this machine's container engine of this kind. Does not contact the engine yet.
    ///
    /// # Errors
    /// Returns an error if no such engine is found.
    pub fn engine(&self, kind: EngineKind) -> Result<Engine, Error> {
        Ok(Engine::new(EngineEndpoint::find(kind)?, &self.data)?)
    }

    /// Returns the Daytona account that is configured for this machine. Does not contact Daytona yet.
    ///
    /// # Errors
    /// Returns an error if no account is configured.
    pub fn daytona(&self) -> Result<Daytona, Error> {
        Ok(Daytona::new(Account::find()?, &self.data)?)
    }

    /// Returns the first installed runtime whose isolation is at least as strong as `tier`. Never returns a
    /// weaker one.
    ///
    /// # Errors
    /// Returns an error if no installed runtime is strong enough.
    pub fn at_least(&self, tier: Tier) -> Result<Arc<dyn Runtime>, Error> {
        let fit = || Self::flavors().into_iter().filter(|flavor| flavor.tier >= tier);
        match fit().find(|flavor| flavor.clone().find().is_ok()) {
            Some(flavor) => self.runtime(flavor.name),
            None => Err(Error::Runtime(runtime::Error::Unsupported {
                what: "this tier of isolation",
                why: format!("no installed runtime provides this tier; install {}", names(fit())),
            })),
        }
    }

    /// Stops and removes every sandbox whose owning process has died, and returns the IDs of these sandboxes.
    /// `journalled` reads a server's journal. Sandboxes in this journal are left for the server to handle
    /// when it next starts.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read, or if sandboxes cannot be listed or removed. The first
    /// error ends the operation.
    pub async fn tidy(
        &self,
        journalled: impl Fn() -> Result<Vec<SandboxId>, Error>,
    ) -> Result<Vec<SandboxId>, Error> {
        let mut removed = Vec::new();
        let used = |kind: &EngineKind| {
            let left = std::fs::read_dir(self.data.join("engine").join(kind.name()));
            left.is_ok_and(|mut left| left.next().is_some())
        };
        // Query an engine only if this data directory has records of sandboxes on it, because the query takes
        // time.
        let engines = EngineKind::ALL.into_iter().filter(used).map(EngineKind::name);
        let engines = engines.chain(Some(daytona::NAME).filter(|_| Daytona::has_before(&self.data)));
        for name in Self::flavors().map(|flavor| flavor.name).into_iter().chain(engines) {
            let Ok(runtime) = self.runtime(name) else { continue };
            let kept = journalled()?;
            let nobodys = |listed: &runtime::Listed| !listed.owned && !kept.contains(&listed.id);
            let listed = match runtime.list().await {
                // The cleanup must not fail because an engine is unavailable.
                Err(runtime::Error::Unavailable { .. } | runtime::Error::Unsupported { .. })
                    if runtime.properties().takes_images =>
                {
                    continue;
                }
                listed => listed?,
            };
            for listed in listed.into_iter().filter(nobodys) {
                runtime.stop(&listed.id, Duration::ZERO).await?;
                removed.push(listed.id);
            }
        }
        Ok(removed)
    }
}

/// Returns a new random ID for a sandbox.
///
/// # Errors
/// Returns an error if the kernel's random number generator is unavailable.
pub fn fresh_id() -> Result<SandboxId, Error> {
    Ok(SandboxId::from_random(random()?))
}

/// Returns random bytes from the kernel.
///
/// # Errors
/// Returns an error if the kernel's random number generator is unavailable.
pub fn random<const COUNT: usize>() -> Result<[u8; COUNT], Error> {
    let mut bytes = [0; COUNT];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { act: "read random bytes".into(), source: error.into() })?;
    Ok(bytes)
}

/// Checks that every user can reach the data directory. Root in a sandbox is an unprivileged user on the
/// host, and needs execute permission on every parent of the sandbox's directory.
fn walkable(data: &Path) -> Result<(), Error> {
    let closed = data
        .ancestors()
        .skip(1)
        .find(|parent| parent.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 == 0));
    match closed {
        None => Ok(()),
        Some(parent) => Err(Error::Request(api::Error::invalid(
            format!(
                "{} is not accessible to every user: {} lacks the execute permission for others",
                data.display(),
                parent.display()
            ),
            format!("Run `chmod o+x {}`, or choose another data directory with --data.", parent.display()),
        ))),
    }
}

fn names(flavors: impl Iterator<Item = Flavor>) -> String {
    flavors.map(|flavor| format!("`{}`", flavor.name)).collect::<Vec<_>>().join(" or ")
}

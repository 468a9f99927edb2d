//! This machine: where things are kept, which runtimes there are, and tidying after the dead.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use runtime::daytona::{self, Account, Daytona};
use runtime::engine::{Engine, Kind, Place};
use runtime::oci::{Dirs, Flavor, Oci};
use runtime::{Runtime, Tier};

use crate::error::Error;
use crate::guest;

/// This machine.
pub struct Machine {
    data: PathBuf,
    guest: PathBuf,
}

impl Machine {
    /// Opens the data directory, making it if it is not there.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let failed = |source| Error::System { act: format!("write to {}", data.display()), source };
        let guest = guest::install(data).and_then(|guest| guest.canonicalize()).map_err(failed)?;
        let data = data.canonicalize().map_err(failed)?;
        // Only root makes sandboxes whose own users have to get there.
        if rustix::process::geteuid().is_root() {
            walkable(&data)?;
        }
        Ok(Self { data, guest })
    }

    /// Where everything is kept.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The guest's executable.
    pub fn guest(&self) -> &Path {
        &self.guest
    }

    /// The kinds of runtimes that can be driven, whether or not they are here, the strongest wall last.
    pub fn flavors() -> [Flavor; 3] {
        [Flavor::runc(), Flavor::youki(), Flavor::runsc()]
    }

    /// A runtime of this machine by its name.
    ///
    /// # Errors
    /// It is not known, not installed, or cannot work here.
    pub fn runtime(&self, name: &str) -> Result<Arc<dyn Runtime>, Error> {
        if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) {
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
                .chain(Kind::ALL.map(Kind::name))
                .chain([daytona::NAME]);
            let why = format!("unknown runtime {name}; use one of {}", names.collect::<Vec<_>>().join(", "));
            runtime::Error::Unsupported { what: "this runtime", why }
        })?;
        Ok(Arc::new(Oci::new(flavor.find()?, Dirs::below(&self.data))?))
    }

    /// An engine by its name.
    ///
    /// # Errors
    /// It is none, or nowhere to be found.
    pub fn engine_named(&self, name: &str) -> Result<Engine, Error> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        self.engine(kind.ok_or_else(|| runtime::Error::Unsupported {
            what: "building an image",
            why: format!(
                "{name} is not a container engine; use one that builds images: `--backends podman` or `--backends docker`"
            ),
        })?)
    }

    /// An engine that this machine can reach. It is not asked anything yet.
    ///
    /// # Errors
    /// It is nowhere to be found.
    pub fn engine(&self, kind: Kind) -> Result<Engine, Error> {
        Ok(Engine::new(Place::find(kind)?, &self.data)?)
    }

    /// The account of Daytona that this machine may use. It is not asked anything yet.
    ///
    /// # Errors
    /// None is configured.
    pub fn daytona(&self) -> Result<Daytona, Error> {
        Ok(Daytona::new(Account::find()?, &self.data)?)
    }

    /// The first runtime of this machine whose wall is at least as strong. Never a weaker one.
    ///
    /// # Errors
    /// There is none.
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

    /// Stops and removes every sandbox whose owning process has died, and returns their ids. Sandboxes in the journal of a
    /// server, which `journalled` reads, are left to the next start of that server.
    ///
    /// # Errors
    /// What could not be read or removed.
    pub async fn tidy(
        &self,
        journalled: impl Fn() -> Result<Vec<SandboxId>, Error>,
    ) -> Result<Vec<SandboxId>, Error> {
        let mut removed = Vec::new();
        let used = |kind: &Kind| {
            let left = std::fs::read_dir(self.data.join("engine").join(kind.name()));
            left.is_ok_and(|mut left| left.next().is_some())
        };
        // An engine is asked only where something was written down of its sandboxes: asking takes time.
        let engines = Kind::ALL.into_iter().filter(used).map(Kind::name);
        let engines = engines.chain(Some(daytona::NAME).filter(|_| Daytona::has_before(&self.data)));
        for name in Self::flavors().map(|flavor| flavor.name).into_iter().chain(engines) {
            let Ok(runtime) = self.runtime(name) else { continue };
            let kept = journalled()?;
            let nobodys = |listed: &runtime::Listed| !listed.owned && !kept.contains(&listed.id);
            let listed = match runtime.list().await {
                // What an engine has that is away is nobody's concern who does not need it.
                Err(runtime::Error::Unavailable { .. } | runtime::Error::Unsupported { .. })
                    if runtime.takes_images() =>
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

/// A fresh id for a sandbox.
///
/// # Errors
/// The kernel has no random bytes, which only happens in the first moments after boot.
pub fn fresh_id() -> Result<SandboxId, Error> {
    Ok(SandboxId::from_random(random()?))
}

/// So many random bytes.
///
/// # Errors
/// As [`fresh_id`].
pub fn random<const COUNT: usize>() -> Result<[u8; COUNT], Error> {
    let mut bytes = [0; COUNT];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { act: "read random bytes".into(), source: error.into() })?;
    Ok(bytes)
}

/// Root inside a sandbox is an ordinary user outside, and walks to its own directory like one.
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

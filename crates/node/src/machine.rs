//! This machine: where things are kept, which runtimes there are, and tidying after the dead.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
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
        walkable(&data)?;
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
        let known = Self::flavors().into_iter().find(|flavor| flavor.name == name);
        let flavor = known.ok_or_else(|| runtime::Error::Unsupported {
            what: "this runtime",
            why: format!("{name} is not one of {}", Self::flavors().map(|flavor| flavor.name).join(", ")),
        })?;
        Ok(Arc::new(Oci::new(flavor.find()?, Dirs { data: self.data.clone() })?))
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
                why: format!("none of its runtimes is installed; install {}", names(fit())),
            })),
        }
    }

    /// Ends and removes every sandbox whose process died without doing so. Says which. What a server keeps is left to
    /// the next start of that server.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn tidy(&self) -> Result<Vec<SandboxId>, Error> {
        let mut removed = Vec::new();
        for flavor in Self::flavors() {
            let Ok(runtime) = self.runtime(flavor.name) else { continue };
            let kept = crate::journal::kept(&self.data)?;
            let nobodys = |listed: &runtime::Listed| !listed.owned && !kept.contains(&listed.id);
            for listed in runtime.list().await?.into_iter().filter(nobodys) {
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
            format!("not every user can walk to {}: {} is closed", data.display(), parent.display()),
            format!("Run `chmod o+x {}`, or keep the data somewhere else with --data.", parent.display()),
        ))),
    }
}

fn names(flavors: impl Iterator<Item = Flavor>) -> String {
    flavors.map(|flavor| format!("`{}`", flavor.name)).collect::<Vec<_>>().join(" or ")
}

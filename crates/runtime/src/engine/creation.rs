//! The creation of a sandbox's container.

use api::SandboxId;
use bollard::query_parameters::CreateContainerOptionsBuilder;

use super::container::{self, Dialect};
use super::facts::Facts;
use super::{CONFLICT, Engine, status};
use crate::{Error, Spec, Tier, files, seccomp};

impl Engine {
    /// Creates and starts the container of a sandbox.
    pub(super) async fn make(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        let (docker, facts) = self.reach().await?;
        facts.check(spec)?;
        let image = self.sealed(docker, &spec.image, &spec.guest).await?;
        let labels = container::labels(id, &self.shared.owner);
        let body = container::body(spec, image, &self.dialect(facts, id)?, labels);
        // Record the sandbox first, because from here on its container may exist.
        self.shared.written.make(id, &self.shared.place.address)?;
        let name = CreateContainerOptionsBuilder::new().name(&container::name(id)).build();
        match docker.create_container(Some(name), body).await {
            Ok(_) => {}
            // A container that belongs to a different data directory has this name. It must not be removed.
            Err(error) if status(&error) == Some(CONFLICT) => return Err(Error::Exists(id.clone())),
            Err(error) => return Err(self.failed("create a container", error)),
        }
        let started = docker.start_container(&container::name(id), None).await;
        started.map_err(|error| self.failed("start a container", error))
    }

    /// Returns the engine-specific settings for this sandbox.
    fn dialect(&self, facts: &Facts, id: &SandboxId) -> Result<Dialect, Error> {
        if !facts.is_podman {
            return Ok(Dialect::Docker);
        }
        if !self.shared.place.is_local() {
            return Err(Error::Unsupported {
                what: "the system call filter",
                why: "Podman reads the filter from a file on its own machine, which is not this machine; use Docker on that machine, or run Bellglass there".into(),
            });
        }
        let filter = self.shared.written.home().with_file_name("seccomp.json");
        // Several starts may run concurrently, even in different processes, so each writes its own temporary
        // file.
        let draft = format!("{}-{:?}", std::process::id(), std::thread::current().id());
        files::replace_by(&filter, &seccomp::filter(Tier::Container).to_string(), &draft)?;
        // Each sandbox has its own hosts file, because sandboxes that share a file could watch it and
        // communicate through locks on it.
        let hosts = match api::defence::is_off("X-20") {
            true => self.shared.written.home().with_file_name("hosts"),
            false => self.shared.written.directory(id).join("hosts"),
        };
        files::replace_by(&hosts, container::HOSTS, &draft)?;
        files::set_mode(&hosts, 0o644)?;
        Ok(Dialect::Podman { filter, hosts })
    }
}

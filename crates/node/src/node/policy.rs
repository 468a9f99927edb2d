//! Changes what a running sandbox may do: its policy, its public ports, its time to live.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::host::Host;
use api::policy::{Installed, Policy};
use api::sandbox::Sandbox as Shown;
use egress::secret::Vault;
use host::clock;
use host::error::Error;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::Node;
use crate::egress::Decided;
use crate::handle::LIFE_WITHIN;
use crate::journal::Ports;
use crate::message::DriverMessage;

impl Node {
    /// Gives a sandbox another idle time, counted from now.
    ///
    /// # Errors
    /// It is not known, or does not run.
    pub async fn renew(&self, id: &SandboxId, idle: Duration) -> Result<Shown, Error> {
        let call = self.call(id).await?;
        let handle = call.handle();
        let record = self.shared.update(handle, |record| {
            record.sandbox.idle_ms = clock::millis(idle);
            Ok(())
        })?;
        handle.active(Instant::now());
        handle.tell(DriverMessage::Look);
        Ok(record.sandbox)
    }

    /// Who may reach the ports of a sandbox, and whose it is.
    pub fn ports(&self, id: &SandboxId) -> Option<(String, Ports)> {
        let record = self.handle(id)?.record();
        Some((record.sandbox.project, record.ports))
    }

    /// The sandbox that runs and whose ports pass this check. Nothing but the ports is looked at: it is asked before anybody is known.
    pub fn opened_by(&self, is_right: impl Fn(&Ports) -> bool) -> Option<SandboxId> {
        let handles: Vec<_> = self.shared.handles().values().cloned().collect();
        let found = handles.iter().find(|handle| !handle.is_pooled() && handle.has_ports(&is_right));
        found.map(|handle| handle.record().sandbox.id)
    }

    /// Opens a port of a sandbox to everybody, or closes it again. It is written down before this returns.
    ///
    /// # Errors
    /// It is not known, does not run, or has as many public ports as it may.
    pub async fn publish(&self, id: &SandboxId, port: u16, public: bool) -> Result<Ports, Error> {
        let call = self.call(id).await?;
        Ok(self.shared.update(call.handle(), |record| record.ports.publish(port, public))?.ports)
    }

    /// Opens all ports of a sandbox to everybody, or leaves those that were opened one by one. It is written down before this returns.
    ///
    /// # Errors
    /// It is not known or does not run, or it could not be written down.
    pub async fn publish_all(&self, id: &SandboxId, public: bool) -> Result<(), Error> {
        let call = self.call(id).await?;
        let update = self.shared.update(call.handle(), |record| {
            record.ports.all_public = public;
            Ok(())
        });
        update.map(drop)
    }

    /// Has a sandbox live so long from now on, longer or shorter than it would have.
    ///
    /// # Errors
    /// It is not known, does not run, or does not answer.
    pub async fn live_for(&self, id: &SandboxId, ttl: Duration) -> Result<Shown, Error> {
        let call = self.call(id).await?;
        let handle = call.handle();
        let _lifetime = handle.lifetime().await?;
        // Its guest ends it where nobody else does, so it is told first: what is written down is never more than what it was told.
        call.sandbox().live_for(handle.guest_ttl(ttl), LIFE_WITHIN).await?;
        let record = self.shared.update(handle, |record| {
            record.expire_in(ttl);
            Ok(())
        })?;
        handle.tell(DriverMessage::Look);
        Ok(record.sandbox)
    }

    /// What is decided from now on about what leaves sandboxes.
    pub fn decisions(&self) -> broadcast::Receiver<Decided> {
        self.shared.decisions.subscribe()
    }

    /// Gives a sandbox another policy. It is written down before this returns; what is under way and no longer allowed is cut.
    ///
    /// # Errors
    /// It is not known, does not run, or the policy is none.
    pub async fn set_policy(&self, id: &SandboxId, policy: Policy) -> Result<api::sandbox::Sandbox, Error> {
        policy.check().map_err(Error::Request)?;
        let call = self.call(id).await?;
        let record = self.shared.update(call.handle(), |record| {
            record.sandbox.policy = policy;
            Ok(())
        })?;
        Ok(record.sandbox)
    }

    /// Returns the policy that a sandbox was created with.
    ///
    /// # Errors
    /// The sandbox is not known.
    pub fn first_policy(&self, id: &SandboxId) -> Result<Policy, Error> {
        Ok(self.known(id)?.record().first_policy)
    }

    /// The packages that a sandbox was given, for as long as it is known here.
    ///
    /// # Errors
    /// What the file system said.
    pub fn packages(&self, id: &SandboxId) -> Result<Vec<Installed>, Error> {
        self.shared.journal.packages(id)
    }

    /// Says who keeps the secrets of projects.
    pub fn keep_secrets_in(&self, vault: Arc<dyn Vault>) {
        self.shared.vault.set(vault);
    }

    /// Refuses a policy whose secrets could not be used: one that is not set, or whose host no rule allows.
    ///
    /// # Errors
    /// The first of them, by name; or whoever keeps them does not answer.
    pub async fn vouch(&self, project: &str, policy: &Policy) -> Result<(), Error> {
        for binding in &policy.secrets {
            let host = Host::parse(&binding.host).map_err(Error::Request)?;
            if egress::decide(policy, &host, binding.port, &egress::Ask::Tunnel).is_err() {
                return Err(Error::Request(api::Error::invalid(
                    format!(
                        "secret {} is bound to {}, which the policy does not allow",
                        binding.name,
                        host.authority(binding.port)
                    ),
                    format!(
                        "Also allow the host: --allow {}.",
                        host.authority(binding.port).trim_end_matches(":443")
                    ),
                )));
            }
            let value = self.shared.vault.secret(project, &binding.name).await.map_err(Error::Request)?;
            if value.is_none() {
                return Err(Error::Request(api::Error::invalid(
                    format!("project {project} has no secret {}", binding.name),
                    format!("Set the secret first: bellglass secret set {}.", binding.name),
                )));
            }
        }
        Ok(())
    }
}

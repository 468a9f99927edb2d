//! Changes the settings of a running sandbox: its idle timeout, ports, time to live and policy.

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
    /// Sets the idle timeout of a sandbox, counted from now.
    ///
    /// # Errors
    /// The sandbox is unknown or is not running.
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

    /// Returns the project of a sandbox and the access settings of its ports.
    pub fn ports(&self, id: &SandboxId) -> Option<(String, Ports)> {
        let record = self.handle(id)?.record();
        Some((record.sandbox.project, record.ports))
    }

    /// Returns the sandbox whose ports pass this check. Reads only the ports, because the caller is not
    /// authenticated yet.
    pub fn opened_by(&self, is_right: impl Fn(&Ports) -> bool) -> Option<SandboxId> {
        let handles: Vec<_> = self.shared.handles().values().cloned().collect();
        let found = handles.iter().find(|handle| !handle.is_pooled() && handle.has_ports(&is_right));
        found.map(|handle| handle.record().sandbox.id)
    }

    /// Makes a port of a sandbox public or private. The change is journalled before this method returns.
    ///
    /// # Errors
    /// The sandbox is unknown, is not running, or has reached the maximum number of public ports.
    pub async fn publish(&self, id: &SandboxId, port: u16, public: bool) -> Result<Ports, Error> {
        let call = self.call(id).await?;
        Ok(self.shared.update(call.handle(), |record| record.ports.publish(port, public))?.ports)
    }

    /// Makes all ports of a sandbox public, or only the ports that were published individually. The change is
    /// journalled before this method returns.
    ///
    /// # Errors
    /// The sandbox is unknown or is not running, or the journal cannot be written.
    pub async fn publish_all(&self, id: &SandboxId, public: bool) -> Result<(), Error> {
        let call = self.call(id).await?;
        let update = self.shared.update(call.handle(), |record| {
            record.ports.all_public = public;
            Ok(())
        });
        update.map(drop)
    }

    /// Sets the time to live of a sandbox, counted from now. It may be longer or shorter than before.
    ///
    /// # Errors
    /// The sandbox is unknown, is not running, or does not respond.
    pub async fn live_for(&self, id: &SandboxId, ttl: Duration) -> Result<Shown, Error> {
        let call = self.call(id).await?;
        let handle = call.handle();
        let _lifetime = handle.lifetime().await?;
        // The guest ends the sandbox if the server fails to. It is updated first, so that the recorded time
        // is never longer than the guest's.
        call.sandbox().live_for(handle.guest_ttl(ttl), LIFE_WITHIN).await?;
        let record = self.shared.update(handle, |record| {
            record.expire_in(ttl);
            Ok(())
        })?;
        handle.tell(DriverMessage::Look);
        Ok(record.sandbox)
    }

    /// Subscribes to decisions about the outgoing connections of all sandboxes.
    pub fn decisions(&self) -> broadcast::Receiver<Decided> {
        self.shared.decisions.subscribe()
    }

    /// Sets the policy of a sandbox. The change is journalled before this method returns. Connections that
    /// are no longer allowed are closed.
    ///
    /// # Errors
    /// The sandbox is unknown or is not running, or the policy is invalid.
    pub async fn set_policy(&self, id: &SandboxId, policy: Policy) -> Result<api::sandbox::Sandbox, Error> {
        policy.check().map_err(Error::Request)?;
        let call = self.call(id).await?;
        let record = self.shared.update(call.handle(), |record| {
            record.sandbox.policy = policy;
            Ok(())
        })?;
        Ok(record.sandbox)
    }

    /// Returns the initial policy of a sandbox.
    ///
    /// # Errors
    /// The sandbox is unknown.
    pub fn first_policy(&self, id: &SandboxId) -> Result<Policy, Error> {
        Ok(self.known(id)?.record().first_policy)
    }

    /// Returns the packages that a sandbox received, as long as the sandbox is known to this node.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn packages(&self, id: &SandboxId) -> Result<Vec<Installed>, Error> {
        self.shared.journal.packages(id)
    }

    /// Sets the vault that provides the secrets of projects.
    pub fn keep_secrets_in(&self, vault: Arc<dyn Vault>) {
        self.shared.vault.set(vault);
    }

    /// Checks that the secrets of a policy can be used: each must be set, and a rule must allow its host.
    ///
    /// # Errors
    /// A secret cannot be used, or the vault does not respond. Checking stops at the first error.
    pub async fn vouch(&self, project: &str, policy: &Policy) -> Result<(), Error> {
        for binding in &policy.secrets {
            let host = Host::parse(&binding.host).map_err(Error::Request)?;
            if egress::decide(policy, &host, binding.port, &egress::RequestKind::Tunnel).is_err() {
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

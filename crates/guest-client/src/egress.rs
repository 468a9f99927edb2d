//! Outbound connections of a sandbox. Programs connect to a proxy inside the sandbox. The guest passes each
//! of these connections to the broker, the host's egress proxy, which enforces the sandbox's policy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::exec::ExecSpec;
use api::policy::{Policy, Preset};
use api::{ErrorCode, limits};
use bytes::Bytes;
use egress::gate::HOST;
use egress::{Broker, Party};
use host::error::Error;
use hyper::Method;
use tokio::sync::watch;

use crate::link::GuestRequest;
use crate::port::Port;
use crate::sandbox::Sandbox;

/// Timeout for one wait for a new connection. The wait is repeated without limit, because a program may open
/// its first connection after a day.
const NEXT_WITHIN: Duration = Duration::from_millis(2 * limits::DEADLINE_MS_MAX);
/// Delay after an error that may be temporary.
const AGAIN: Duration = Duration::from_secs(1);

/// Serves the sandbox's outbound connections until the sandbox has ended.
pub async fn attend(sandbox: &Sandbox, broker: &Arc<Broker>, party: &Arc<Party>) {
    let ask = GuestRequest { method: Method::POST, path: "/egress".into(), body: Bytes::new() };
    loop {
        match sandbox.link().both_ways(&ask, NEXT_WITHIN).await {
            Ok((response, said)) => {
                let stream = Port::new(response.into_body(), said, None);
                tokio::spawn(Arc::clone(broker).serve(stream, Arc::clone(party)));
            }
            Err(Error::Deadline { .. }) => {}
            Err(Error::Lost(_)) => return,
            // The guest is from a release without egress, or could not listen on the proxy's port, so the
            // sandbox has no network access.
            Err(Error::Guest(error))
                if matches!(error.code, ErrorCode::NotFound | ErrorCode::Unsupported) =>
            {
                tracing::warn!(sandbox = %sandbox.id(), error = error.message, "sandbox has no network access");
                return;
            }
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Returns the directory of the package cache in a data directory.
pub fn packages(data: &Path) -> PathBuf {
    data.join("packages")
}

/// Adds environment variables to an exec that point package managers to the gate (the host's package proxy),
/// for the kinds of packages that the policy allows. Variables that the exec already sets are kept.
#[must_use]
pub fn pointed(policy: &Policy, mut spec: ExecSpec) -> ExecSpec {
    for preset in &policy.presets {
        let index = format!("http://{HOST}/python/simple/");
        let variables: &[(&str, &str)] = match preset {
            Preset::PythonPackages => &[
                ("PIP_INDEX_URL", &index),
                ("PIP_TRUSTED_HOST", HOST),
                ("UV_DEFAULT_INDEX", &index),
                ("UV_INSECURE_HOST", HOST),
            ],
            Preset::NodePackages => &[("NPM_CONFIG_REGISTRY", &format!("http://{HOST}/npm/"))],
            Preset::DebianPackages | Preset::Git => &[],
        };
        for (name, value) in variables {
            spec.env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
        }
    }
    spec
}

/// Returns a policy that never changes.
pub fn fixed(policy: Policy) -> watch::Receiver<Policy> {
    watch::channel(policy).1
}

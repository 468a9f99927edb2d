//! Connections that leave a sandbox: each one that a program inside opens to its proxy is taken from the guest and passed to the broker.

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

use crate::link::Ask;
use crate::port::Port;
use crate::sandbox::Sandbox;

/// One wait for a connection. The loop around it has no end: a program may make its first after a day.
const NEXT_WITHIN: Duration = Duration::from_millis(2 * limits::DEADLINE_MS_MAX);
/// After a failure that may pass.
const AGAIN: Duration = Duration::from_secs(1);

/// Takes one connection after the other, until the sandbox has ended.
pub async fn attend(sandbox: &Sandbox, broker: &Arc<Broker>, party: &Arc<Party>) {
    let ask = Ask { method: Method::POST, path: "/egress".into(), body: Bytes::new() };
    loop {
        match sandbox.link().both_ways(&ask, NEXT_WITHIN).await {
            Ok((response, said)) => {
                let stream = Port::new(response.into_body(), said, None);
                tokio::spawn(Arc::clone(broker).serve(stream, Arc::clone(party)));
            }
            Err(Error::Deadline { .. }) => {}
            Err(Error::Lost(_)) => return,
            // Of a release that had no way out, or one that could not take its port: then nothing leaves.
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

/// Where fetched packages are kept, below a data directory.
pub fn packages(data: &Path) -> PathBuf {
    data.join("packages")
}

/// An exec whose programs look for packages where its policy lets them in, unless it says otherwise.
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

/// A policy that stays as it is.
pub fn fixed(policy: Policy) -> watch::Receiver<Policy> {
    watch::channel(policy).1
}

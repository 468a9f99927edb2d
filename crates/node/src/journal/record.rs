//! The journal entry of one sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use api::policy::Policy;
use api::sandbox::Sandbox;
use host::clock;
use serde::{Deserialize, Serialize};
use template::Posture;

use super::Ports;

/// The journal entry of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// The sandbox as clients see it.
    pub sandbox: Sandbox,
    /// Name of the runtime that runs the sandbox.
    pub runtime: String,
    /// Keys of the sandbox's layers, which are in use as long as this record exists.
    pub layers: Vec<String>,
    /// Environment variables from the template, as it was when the sandbox was created, and from the request.
    pub env: BTreeMap<String, String>,
    /// Working directory of the template when the sandbox was created.
    pub cwd: Option<String>,
    /// Modules that the interpreter imports when it starts, from the template when the sandbox was created.
    /// Empty in records from releases without an interpreter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// Posture that decides how much of its root file system the sandbox may change.
    #[serde(default, skip_serializing_if = "Posture::is_default")]
    pub posture: Posture,
    /// True if commands may run as root of the sandbox's own user namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rooted: bool,
    /// True if the sandbox was pre-warmed and has not been claimed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pooled: bool,
    /// Settings that decide which requests resume the sandbox while it is paused.
    #[serde(default)]
    pub auto_resume: AutoResume,
    /// Boot ID of the machine when the sandbox was created.
    pub boot: String,
    /// End of the sandbox's time to live, in milliseconds since the boot with the ID `boot`.
    pub expires_boot_ms: u64,
    /// Initial policy of the sandbox. A missing policy, as in records from earlier releases, denies
    /// everything.
    #[serde(default)]
    pub first_policy: Policy,
    /// Access to the sandbox's ports. Records from releases without ports have no tokens.
    #[serde(default)]
    pub ports: Ports,
}

/// Settings that decide which requests resume a paused sandbox. Explicit resume requests always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    /// True if requests to ports and requests through the E2B API resume the sandbox. Requests through the
    /// native API always resume it.
    pub enabled: bool,
    /// Minimum time to live in milliseconds after such a request has resumed the sandbox.
    pub ttl_min_ms: u64,
}

impl Default for AutoResume {
    fn default() -> Self {
        Self { enabled: true, ttl_min_ms: 0 }
    }
}

impl SandboxRecord {
    /// Returns the runtime profile of the sandbox.
    pub fn profile(&self) -> runtime::Profile {
        if self.rooted { runtime::Profile::Rooted } else { self.posture.profile() }
    }

    /// Sets the time to live, counted from now.
    pub(crate) fn expire_in(&mut self, ttl: Duration) {
        let ttl_ms = clock::millis(ttl);
        self.sandbox.limits.ttl_ms = ttl_ms;
        self.expires_boot_ms = clock::boot_ms().saturating_add(ttl_ms);
    }
}

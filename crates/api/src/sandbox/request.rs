//! Requests for sandboxes: the parameters of a new sandbox, and a new idle timeout. Each request is checked
//! before anything is created or changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{OnTimeout, SESSION_LABEL, Tier};
use crate::dataset;
use crate::error::Error;
use crate::exec::ExecSpec;
use crate::id::SandboxId;
use crate::limits::{self, WantedLimits};
use crate::policy::Policy;

/// Prefix of label names that are reserved for the server.
const RESERVED: &str = "bellglass.";

/// Parameters of a new sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CreateSandbox {
    /// Human-readable name, in the format of an ID: a lower-case letter, then up to 39 lower-case letters and digits. The name must be
    /// unique among the live sandboxes of a project. Requests can use the name or the ID.
    pub name: Option<SandboxId>,
    /// Template to create the sandbox from. Default `base`.
    pub template: String,
    /// Minimum isolation tier. A weaker tier is never used. Default `container`.
    pub tier: Tier,
    /// Resource limits. Omitted limits come from the template or are the defaults.
    pub limits: WantedLimits,
    /// Idle timeout in milliseconds: 1 second to 24 hours. Default 5 minutes. The sandbox is stopped after this time without a request or a
    /// running exec.
    pub idle_ms: u64,
    /// What happens when the idle timeout or the time to live is over. Default `stop`.
    #[serde(skip_serializing_if = "OnTimeout::is_default")]
    pub on_timeout: OnTimeout,
    /// Labels chosen by the owner: at most 32, each at most 512 bytes. Names that begin with `bellglass.` are reserved.
    pub labels: BTreeMap<String, String>,
    /// Environment variables of everything that runs in the sandbox. A command or its code can override them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Datasets to copy into the sandbox before anything runs in it. The keys are paths in the sandbox, the values are dataset names. At
    /// most 64 entries.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub datasets: BTreeMap<String, String>,
    /// Egress policy. Defaults to the policy of the template; if the template has no policy, no egress is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// New idle timeout of a sandbox, counted from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Idle timeout in milliseconds: 1 second to 24 hours. The sandbox is stopped after this time without a request or a running exec.
    pub idle_ms: u64,
}

impl Default for CreateSandbox {
    fn default() -> Self {
        Self {
            name: None,
            template: "base".into(),
            tier: Tier::Container,
            limits: WantedLimits::default(),
            idle_ms: limits::IDLE_MS,
            on_timeout: OnTimeout::Stop,
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            datasets: BTreeMap::new(),
            policy: None,
        }
    }
}

impl CreateSandbox {
    /// Checks the request before anything is created.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field and has `ran: no`.
    pub fn check(&self) -> Result<(), Error> {
        check_idle(self.idle_ms)?;
        dataset::check_places(&self.datasets)?;
        // These variables must follow the same rules as the variables of a command.
        ExecSpec { argv: vec!["true".into()], env: self.env.clone(), ..ExecSpec::default() }.check()?;
        self.policy.as_ref().map_or(Ok(()), Policy::check)?;
        if self.labels.len() > limits::LABELS_MAX {
            return Err(limits::exceeded(
                "the number of labels",
                self.labels.len() as u64,
                limits::LABELS_MAX as u64,
            ));
        }
        for (name, value) in &self.labels {
            if name.is_empty() || (name.starts_with(RESERVED) && name != SESSION_LABEL) {
                return Err(not_a_label(name));
            }
            let bytes = name.len() + value.len();
            if bytes > limits::LABEL_BYTES_MAX {
                return Err(limits::exceeded(
                    "the length of one label in bytes",
                    bytes as u64,
                    limits::LABEL_BYTES_MAX as u64,
                ));
            }
        }
        Ok(())
    }

    /// Checks the request like [`CreateSandbox::check`], and also rejects labels that only the server may
    /// set.
    ///
    /// # Errors
    /// Returns `limit_exceeded` or `invalid_request` if a field is invalid.
    pub fn check_asked(&self) -> Result<(), Error> {
        let reserved = self.labels.keys().find(|name| name.starts_with(RESERVED));
        reserved.map_or_else(|| self.check(), |name| Err(not_a_label(name)))
    }
}

impl Lease {
    /// Checks that the idle timeout is within its bounds.
    ///
    /// # Errors
    /// Returns `limit_exceeded` or `invalid_request` if the idle timeout is out of bounds.
    pub fn check(self) -> Result<(), Error> {
        check_idle(self.idle_ms)
    }
}

fn check_idle(idle_ms: u64) -> Result<(), Error> {
    if idle_ms > limits::DEADLINE_MS_MAX {
        return Err(limits::exceeded("idle_ms", idle_ms, limits::DEADLINE_MS_MAX));
    }
    if idle_ms < limits::IDLE_MS_MIN {
        return Err(Error::invalid(
            format!("idle_ms is {idle_ms}, the minimum is {}", limits::IDLE_MS_MIN),
            format!("Use {} or more.", limits::IDLE_MS_MIN),
        ));
    }
    Ok(())
}

fn not_a_label(name: &str) -> Error {
    Error::invalid(
        format!("{name:?} is not a valid label name"),
        "Use a name that is not empty and does not begin with `bellglass.`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_request_is_a_sandbox_with_the_defaults() {
        let request: CreateSandbox = serde_json::from_str("{}").unwrap();
        assert_eq!(request, CreateSandbox::default());
        assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn what_is_not_a_field_is_refused() {
        // Covers attack D-02.
        for body in [r#"{"privileged":true}"#, r#"{"limits":{"swap":1}}"#, r#"{"mounts":["/"]}"#] {
            assert!(serde_json::from_str::<CreateSandbox>(body).is_err(), "{body}");
        }
    }

    #[test]
    fn labels_of_ours_are_refused() {
        // Covers attack D-06.
        let labels = BTreeMap::from([("bellglass.owner".to_owned(), "x".to_owned())]);
        assert!(CreateSandbox { labels, ..CreateSandbox::default() }.check().is_err());
        // Covers attack X-24: only the server may set this label.
        let labels = BTreeMap::from([(SESSION_LABEL.to_owned(), "x".to_owned())]);
        let asked = CreateSandbox { labels, ..CreateSandbox::default() };
        assert!(asked.check().is_ok() && asked.check_asked().is_err());
    }
}

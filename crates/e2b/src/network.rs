//! Conversion of E2B's network options into a policy. Options that a policy cannot express are rejected by
//! name, never ignored.

use std::sync::Arc;

use api::policy::Policy;
use api::{Error, SandboxId};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use control::audit::Act;
use control::platform::Platform;
use server::authority::{Caller, Grant, Write};

use super::fault::{By, E2bResult, Given, not_offered};
use super::sandboxes::awake;

/// Values that mean "every host".
const EVERYTHING: [&str; 5] = ["0.0.0.0/0", "::/0", "*", "ALL_TRAFFIC", "0.0.0.0"];

/// Network options: egress, and access to the ports of a sandbox.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Network {
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    pub(super) allow_public_traffic: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
    mask_request_host: Option<Value>,
    https_ports: Option<Value>,
    dns_servers: Option<Value>,
    egress_proxy: Option<Value>,
    rules: Option<Value>,
}

impl Network {
    /// Returns the policy for these options, or `None` if they specify nothing. `internet` is the older
    /// option that allows all egress or none.
    ///
    /// # Errors
    /// Returns an error if the request contains an option that a policy cannot express.
    pub fn policy(&self, internet: Option<bool>) -> E2bResult<Option<Policy>> {
        for (name, value) in [
            ("maskRequestHost", &self.mask_request_host),
            ("httpsPorts", &self.https_ports),
            ("dnsServers", &self.dns_servers),
            ("egressProxy", &self.egress_proxy),
            ("rules", &self.rules),
        ] {
            if value.as_ref().is_some_and(is_something) {
                let instead = "Omit the option. A policy specifies hosts, ports, methods, paths and secrets: docs/guides/network.md.";
                return Err(not_offered(&format!("network option {name}"), instead));
            }
        }
        let internet = self.internet.or(internet);
        let is_all = |hosts: &[String]| hosts.iter().any(|host| EVERYTHING.contains(&host.as_str()));
        let some: Vec<&String> =
            self.deny_out.iter().filter(|host| !EVERYTHING.contains(&host.as_str())).collect();
        let denied = internet == Some(false) || is_all(&self.deny_out);
        if let (false, Some(host)) = (denied || !self.allow_out.is_empty(), some.first()) {
            let fix = "Deny everything (0.0.0.0/0) and list the allowed hosts: every host that is not allowed is denied.";
            return Err(
                Error::invalid(format!("denyOut lists {host} but does not deny everything"), fix).into()
            );
        }
        if self.allow_out.is_empty() {
            return Ok(match (denied, internet) {
                (true, _) => Some(Policy::default()),
                (false, Some(true)) => Some(Policy { open: true, ..Policy::default() }),
                (false, _) => None,
            });
        }
        if is_all(&self.allow_out) {
            // In E2B's API, `allowOut` takes precedence over `denyOut`. The host would be allowed, although
            // the caller may believe that `denyOut` blocks it.
            if let Some(host) = some.first() {
                let fix = "List the allowed hosts in allowOut instead of everything, or omit denyOut.";
                let told = format!("denyOut lists {host}, but allowOut allows everything");
                return Err(Error::invalid(told, fix).into());
            }
            return Ok(Some(Policy { open: true, ..Policy::default() }));
        }
        let hosts: Vec<&str> =
            self.allow_out.iter().map(|host| host.strip_suffix("/32").unwrap_or(host)).collect();
        // In a policy rule, a slash would begin a path.
        if let Some(range) = hosts.iter().find(|host| host.contains(['/', ' ', '='])) {
            let fix = "Use hosts or single addresses. A policy does not support address ranges.";
            return Err(Error::invalid(format!("allowOut lists {range}, which is not a host"), fix).into());
        }
        Ok(Some(Policy::of_words(&hosts)?))
    }
}

/// Sets the network options of a sandbox. If the request contains no option that restricts or allows hosts,
/// restores the policy with which the sandbox was created, provided that the project may still use that
/// policy.
pub async fn put(
    By(caller): By<Caller<Write>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
    Given(network): Given<Network>,
) -> E2bResult<StatusCode> {
    let asked = network.policy(None)?;
    let sandbox = awake(&platform, &caller, &named).await?;
    let policy = match asked {
        Some(policy) => policy,
        None => platform.node.first_policy(&sandbox.id)?,
    };
    policy.check()?;
    if policy.open && !caller.quota.open {
        return Err(node::plan::not_open(&caller.key.project).into());
    }
    platform.node.vouch(&sandbox.project, &policy).await?;
    platform
        .note(&caller, Act::Policy, |entry| entry.sandbox(&sandbox.id).detail(&policy.words().join(", ")));
    let shown = platform.node.set_policy(&sandbox.id, policy).await?;
    // The node has the authoritative record. If the store is unavailable now, it is updated later.
    let _ = platform.store.moved(&shown).await;
    if let Some(public) = network.allow_public_traffic {
        opened(&platform, &caller, &sandbox.id, public).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Makes all ports of a sandbox public, or restricts them to clients that present the sandbox's token.
pub(super) async fn opened(
    platform: &Platform,
    caller: &Grant,
    sandbox: &SandboxId,
    public: bool,
) -> E2bResult<()> {
    let detail = if public { "all ports public" } else { "all ports private" };
    platform.note(caller, Act::Port, |entry| entry.sandbox(sandbox).detail(detail));
    platform.node.publish_all(sandbox, public).await?;
    Ok(())
}

fn is_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Network {
        serde_json::from_str(text).unwrap()
    }

    fn words(text: &str, internet: Option<bool>) -> Option<Vec<String>> {
        said(text).policy(internet).unwrap().map(|policy| policy.words())
    }

    #[test]
    fn options_are_a_policy() {
        assert_eq!(words("{}", None), None);
        assert_eq!(words("{}", Some(false)), Some(vec![]));
        assert_eq!(words("{}", Some(true)), Some(vec!["open".into()]));
        assert_eq!(words(r#"{"denyOut":["0.0.0.0/0"]}"#, None), Some(vec![]));
        let some = r#"{"denyOut":["0.0.0.0/0"],"allowOut":["a.org","8.8.8.8/32"]}"#;
        assert_eq!(words(some, None), Some(vec!["a.org".into(), "8.8.8.8".into()]));
        assert_eq!(words(r#"{"allowOut":["a.org"]}"#, Some(true)), Some(vec!["a.org".into()]));
        assert_eq!(words(r#"{"allow_internet_access":false}"#, None), Some(vec![]));
    }

    #[test]
    fn what_no_policy_can_say_is_refused() {
        for text in [
            r#"{"denyOut":["1.2.3.4/32"]}"#,
            r#"{"rules":{"a.org":[{"transform":{"headers":{}}}]}}"#,
            r#"{"egressProxy":{"address":"a:1"}}"#,
            r#"{"dnsServers":["1.1.1.1"]}"#,
            r#"{"allowOut":["10.0.0.0/8"],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"allowOut":["0.0.0.0/0"],"denyOut":["a.org"]}"#,
        ] {
            assert!(said(text).policy(None).is_err(), "{text}");
        }
        assert!(said(r#"{"rules":{},"dnsServers":[]}"#).policy(None).is_ok());
    }
}

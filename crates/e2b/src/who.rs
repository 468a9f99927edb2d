//! Authorization of requests to a sandbox.
//!
//! A header or the host names the sandbox, and the sandbox's agent token gives access to it. Requests to the
//! code interpreter's contexts may present the traffic token instead, because E2B's SDKs send no other token
//! with these requests.
//!
//! | module | contents |
//! |---|---|
//! | `signature` | requests for one file, which may be signed |
//! | `user` | the user that a request names |

mod signature;
mod user;

use std::net::IpAddr;
use std::sync::Arc;

use api::{ErrorCode, SandboxId};
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use node::Call;
use node::clock;
use node::journal::Ports;
use sha2::{Digest, Sha256};

use control::audit::{Act, Entry, hex};
use control::authority::grant::States;
use control::authority::{Credential, Grant, Need, Reach};
use control::platform::Platform;
use server::authority::caller::{peer, remember};
use server::ports::InHost;
use server::ports::ticket::TRAFFIC_TOKEN;

use super::connect::{Called, Code, Failed};
use super::{Adapter, Clients};
pub use signature::{Filed, ReadFile, Signed, WriteFile};
use user::{check_user, user};

const SANDBOX: &str = "e2b-sandbox-id";
const TOKEN: &str = "x-access-token";

/// Authorized access to a sandbox and everything in it.
pub struct Inside {
    /// Platform that handles the request.
    pub platform: Arc<Platform>,
    /// State of E2B's clients that is not part of any sandbox.
    pub clients: Arc<Clients>,
    /// Grant of the request.
    pub caller: Grant,
    /// Call that keeps the sandbox from becoming idle.
    pub call: Call,
    /// ID of the sandbox.
    pub sandbox: SandboxId,
    /// Home directory of the user.
    pub home: String,
}

/// Access to a sandbox for running a command. The flag is true if the command runs as root.
pub struct Commander(pub Inside, pub bool);

/// Access to a sandbox for running code.
pub struct Coder(pub Inside);

/// Access to the contexts of a sandbox. It permits listing, creating and removing contexts, but not running
/// code in them.
pub struct Contextual(pub Inside);

impl States for Inside {
    const NEED: Need = Need::Agent;
}

impl States for Commander {
    const NEED: Need = Need::Agent;
}

impl States for Coder {
    const NEED: Need = Need::Agent;
}

impl States for Contextual {
    const NEED: Need = Need::Contexts;
}

impl FromRequestParts<Adapter> for Inside {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, adapter: &Adapter) -> Called<Self> {
        let Coder(inside) = Coder::from_request_parts(parts, adapter).await?;
        inside.of_user(&user(&parts.headers))
    }
}

impl FromRequestParts<Adapter> for Commander {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, adapter: &Adapter) -> Called<Self> {
        let Coder(inside) = Coder::from_request_parts(parts, adapter).await?;
        let user = user(&parts.headers);
        check_user(&user, inside.call.has_root())?;
        Ok(Self(inside, user == "root"))
    }
}

impl FromRequestParts<Adapter> for Coder {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, adapter: &Adapter) -> Called<Self> {
        let sandbox = named(parts)?;
        let shown = header(&parts.headers, TOKEN);
        let by_agent = |ports: &Ports| {
            let is_right = ports.agent.is(&shown) || api::defence::is_off("H-20");
            (is_right || is_derived(ports, &shown)).then_some(Credential::Agent)
        };
        let reach = Reach::Sandbox(sandbox.clone());
        enter(adapter, sandbox, reach, by_agent, parts).await.map(Self)
    }
}

impl FromRequestParts<Adapter> for Contextual {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, adapter: &Adapter) -> Called<Self> {
        let sandbox = named(parts)?;
        let (agent, traffic) = (header(&parts.headers, TOKEN), header(&parts.headers, TRAFFIC_TOKEN));
        let by_either = |ports: &Ports| {
            let by_agent = ports.agent.is(&agent).then_some(Credential::Agent);
            by_agent.or_else(|| ports.traffic.is(&traffic).then_some(Credential::Traffic))
        };
        let reach = Reach::Contexts(sandbox.clone());
        enter(adapter, sandbox, reach, by_either, parts).await.map(Self)
    }
}

/// Returns the sandbox that a request names.
pub(super) fn named(parts: &Parts) -> Called<SandboxId> {
    if let Some(InHost(id)) = parts.extensions.get::<InHost>() {
        return Ok(id.clone());
    }
    let value = parts.headers.get(SANDBOX).and_then(|value| value.to_str().ok());
    let wrong = || {
        Failed::of(
            Code::InvalidArgument,
            "the request does not name a sandbox: send the header E2b-Sandbox-Id",
        )
    };
    // No sandbox has an invalid ID, so the response is the same as for a missing sandbox.
    value.ok_or_else(wrong)?.parse().map_err(|_| Failed::Gone)
}

/// Authorizes a request and begins a call in the sandbox. `by` compares the request's credential with the
/// sandbox's tokens. If `by` returns `None`, the request is rejected.
async fn enter(
    adapter: &Adapter,
    sandbox: SandboxId,
    reach: Reach,
    by: impl Fn(&Ports) -> Option<Credential>,
    parts: &mut Parts,
) -> Called<Inside> {
    let platform = &adapter.platform;
    let Some((project, ports)) = platform.node.ports(&sandbox) else { return Err(Failed::Gone) };
    let Some(credential) = by(&ports) else {
        let told = "the access token is not valid for this sandbox";
        return Err(refuse(parts, platform, Some(&sandbox), told));
    };
    let account = platform.accounts.acting_for(&platform.store, &project, credential).await?;
    let grant = Grant { credential, account, reach };
    remember(parts, &grant)?;
    let call = platform.node.call_if_resumable(&sandbox).await?;
    let home = call.home();
    let (platform, clients) = (Arc::clone(platform), Arc::clone(&adapter.clients));
    Ok(Inside { platform, clients, caller: grant, call, sandbox, home })
}

/// Counts a wrong credential against the address that sent it, records it in the audit log, and returns the
/// error for it.
fn refuse(parts: &Parts, platform: &Platform, sandbox: Option<&SandboxId>, told: &str) -> Failed {
    let from = peer(parts);
    let fault = platform.accounts.refuse(from);
    if fault.error().code != ErrorCode::Unauthorized {
        return fault.into();
    }
    let from = from.as_ref().map(IpAddr::to_string).unwrap_or_default();
    let entry = Entry::new(clock::wall_ms(), Act::AuthenticateFailed);
    let entry = if let Some(sandbox) = sandbox { entry.sandbox(sandbox) } else { entry };
    platform.audit.record(entry.detail(&from));
    Failed::of(Code::Unauthenticated, told)
}

/// Returns true if the request presents this sandbox's agent token. Counts and records a wrong token, as for
/// any other request.
pub(super) fn is_shown(parts: &Parts, platform: &Platform, sandbox: &SandboxId) -> bool {
    if !parts.headers.contains_key(TOKEN) {
        return false;
    }
    let shown = header(&parts.headers, TOKEN);
    let is_right = platform.node.ports(sandbox).is_some_and(|(_, ports)| ports.agent.is(&shown));
    if !is_right {
        let _ = refuse(parts, platform, Some(sandbox), "");
    }
    is_right
}

/// Returns true if the defence against attack H-24 is off and the presented token was derived from the
/// sandbox's port token. Only a test build can turn the defence off, to prove that the attack succeeds
/// without it.
fn is_derived(ports: &Ports, shown: &str) -> bool {
    let derived = || hex(&Sha256::digest(format!("e2b agent {}", ports.token.reveal())));
    api::defence::is_off("H-24") && derived() == shown
}

/// Returns the value of a header if the header occurs exactly once. Otherwise returns an empty string, which
/// matches no token.
fn header(headers: &HeaderMap, name: &str) -> String {
    let mut values = headers.get_all(name).iter();
    match (values.next().and_then(|value| value.to_str().ok()), values.next()) {
        (Some(value), None) => value.to_owned(),
        (_, _) => String::new(),
    }
}

impl Inside {
    /// Switches to the user with this name. For root, later file operations run as root.
    fn of_user(self, name: &str) -> Called<Self> {
        check_user(name, self.call.has_root())?;
        if name != "root" {
            return Ok(self);
        }
        Ok(Self { call: self.call.with_root_files()?, home: "/root".into(), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_there_twice_is_none() {
        let mut headers = HeaderMap::new();
        headers.append(TOKEN, "a".parse().unwrap());
        assert_eq!(header(&headers, TOKEN), "a");
        headers.append(TOKEN, "a".parse().unwrap());
        assert_eq!(header(&headers, TOKEN), "");
    }
}

//! Whose sandbox a request is for, and whether it may.
//!
//! The sandbox is named by headers, or by the host. What opens it is a token that only whoever made it was told: for the agent it is made
//! from the token of its ports, so that nothing more has to be kept, and for code either of the two will do, since E2B's SDKs send the
//! first one with some requests only. A signed address names no sandbox at all: the one whose token signed it is looked for.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::limits::USER;
use api::{ErrorCode, SandboxId};
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use node::Call;
use node::clock;
use node::journal::Ports;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::audit::{Act, Entry, hex};
use crate::caller::Caller;
use crate::listen::Known;
use crate::platform::Platform;

use super::connect::{Called, Code, Failed};

const SANDBOX: &str = "e2b-sandbox-id";
const TOKEN: &str = "x-access-token";
/// What clients show to reach the ports of a sandbox.
pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// The sandbox that a host names: `49983-{sandbox}.{domain}`.
#[derive(Clone, Debug)]
pub struct Named(pub SandboxId);

/// A request that may look into a sandbox and change what is in it.
pub struct Inside {
    /// The platform.
    pub platform: Arc<Platform>,
    /// On whose account.
    pub caller: Caller,
    /// Keeps the sandbox in use.
    pub call: Call,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The home of its user.
    pub home: String,
}

/// The same, for a command: whether it is to run as root.
pub struct Commander(pub Inside, pub bool);

/// The same, for code.
pub struct Coder(pub Inside);

/// How a file is asked for: by path, and by whom.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Signed {
    /// As it was signed.
    pub path: String,
    username: String,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

/// What a signature allows.
#[derive(Clone, Copy)]
pub enum May {
    Read,
    Write,
}

/// What opens the agent of a sandbox.
pub fn token(ports: &Ports) -> String {
    hex(&Sha256::digest(format!("e2b agent {}", ports.token)))
}

impl FromRequestParts<Arc<Platform>> for Inside {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Called<Self> {
        let id = named(parts)?;
        let headers = parts.headers.clone();
        let inside = enter(platform, id, |ports| shows(&headers, TOKEN, &token(ports)), parts).await?;
        check_user(&user(&headers), false)?;
        Ok(inside)
    }
}

impl FromRequestParts<Arc<Platform>> for Commander {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Called<Self> {
        let id = named(parts)?;
        let headers = parts.headers.clone();
        let inside = enter(platform, id, |ports| shows(&headers, TOKEN, &token(ports)), parts).await?;
        let user = user(&headers);
        check_user(&user, inside.call.has_root())?;
        Ok(Self(inside, user == "root"))
    }
}

impl FromRequestParts<Arc<Platform>> for Coder {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Called<Self> {
        let id = named(parts)?;
        let headers = parts.headers.clone();
        let may = |ports: &Ports| {
            shows(&headers, TOKEN, &token(ports)) || shows(&headers, TRAFFIC_TOKEN, &ports.token)
        };
        enter(platform, id, may, parts).await.map(Self)
    }
}

impl Signed {
    /// The sandbox whose file is asked for, by a token or by this signature.
    ///
    /// # Errors
    /// Neither is right, or the signature is too old.
    pub async fn inside(&self, parts: &mut Parts, platform: &Arc<Platform>, act: May) -> Called<Inside> {
        check_user(&self.username, false)?;
        let Some(signature) = &self.signature else {
            return Inside::from_request_parts(parts, platform).await;
        };
        self.check_time()?;
        let right =
            |ports: &Ports| !ports.token.is_empty() && same(signature, &self.sign(&token(ports), act));
        let id = match named(parts) {
            Ok(id) => id,
            // An address carries no headers. Tokens are unique, so at most one has signed it.
            Err(_) => {
                let mut all = platform.node.list().into_iter().map(|shown| shown.id);
                all.find(|id| platform.node.ports(id).is_some_and(|(_, ports)| right(&ports))).ok_or_else(
                    || Failed::of(Code::Unauthenticated, "the signature is none of a sandbox that runs"),
                )?
            }
        };
        enter(platform, id, right, parts).await
    }

    fn check_time(&self) -> Called<()> {
        let Some(until) = &self.signature_expiration else { return Ok(()) };
        match until.parse::<u64>() {
            Ok(seconds) if seconds.saturating_mul(1000) > clock::wall_ms() => Ok(()),
            Ok(_) => Err(Failed::of(Code::Unauthenticated, "the signature is too old")),
            Err(_) => Err(Failed::of(Code::InvalidArgument, "signature_expiration is no number of seconds")),
        }
    }

    fn sign(&self, token: &str, act: May) -> String {
        let act = match act {
            May::Read => "read",
            May::Write => "write",
        };
        let mut text = format!("{}:{act}:{}:{token}", self.path, self.username);
        if let Some(until) = &self.signature_expiration {
            text = format!("{text}:{until}");
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }
}

/// The sandbox that a request names.
pub(super) fn named(parts: &Parts) -> Called<SandboxId> {
    if let Some(Named(id)) = parts.extensions.get::<Named>() {
        return Ok(id.clone());
    }
    let value = parts.headers.get(SANDBOX).and_then(|value| value.to_str().ok());
    let wrong =
        || Failed::of(Code::InvalidArgument, "the request names no sandbox: send the header E2b-Sandbox-Id");
    // A name that is none of ours is that of no sandbox.
    value.ok_or_else(wrong)?.parse().map_err(|_| Failed::Gone)
}

/// Lets somebody in who may.
async fn enter(
    platform: &Arc<Platform>,
    sandbox: SandboxId,
    may: impl Fn(&Ports) -> bool,
    parts: &mut Parts,
) -> Called<Inside> {
    let Some((project, ports)) = platform.node.ports(&sandbox) else { return Err(Failed::Gone) };
    if !may(&ports) {
        let from = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        let fault = platform.accounts.refuse(from);
        if fault.error().code != ErrorCode::Unauthorized {
            return Err(fault.into());
        }
        let from = from.as_ref().map(IpAddr::to_string).unwrap_or_default();
        let entry = Entry::new(clock::wall_ms(), Act::AuthenticateFailed).sandbox(&sandbox);
        platform.audit.record(entry.detail(&from));
        return Err(Failed::of(Code::Unauthenticated, "the access token is not that of this sandbox"));
    }
    if let Some(known) = parts.extensions.get::<Known>() {
        known.now();
    }
    let account = platform.accounts.acting_for(&platform.store, &project).await?;
    // Its body is counted against its project.
    parts.extensions.insert(Arc::clone(&account));
    // One that stands still does not answer: whoever wants it connects to it first.
    if platform.node.find(&sandbox).is_some_and(|shown| shown.paused) {
        return Err(Failed::Gone);
    }
    let call = platform.node.call(&sandbox)?;
    let home = call.home();
    Ok(Inside { platform: Arc::clone(platform), caller: Caller::of(account, platform), call, sandbox, home })
}

fn shows(headers: &HeaderMap, name: &str, token: &str) -> bool {
    let shown = headers.get(name).and_then(|value| value.to_str().ok());
    !token.is_empty() && shown.is_some_and(|shown| same(shown, token))
}

/// Whether two texts are the same, in a time that does not tell where they differ.
fn same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

/// The user that a call is to be made as, in a header without a password.
fn user(headers: &HeaderMap) -> String {
    let basic =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let text = basic.and_then(|basic| STANDARD.decode(basic.trim()).ok());
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    text.split(':').next().unwrap_or_default().to_owned()
}

/// Refuses who is not there. Root is where the sandbox has one, for commands.
fn check_user(name: &str, rooted: bool) -> Called<()> {
    match name {
        "" | "user" | USER => Ok(()),
        "root" if rooted => Ok(()),
        "root" => Err(Failed::of(
            Code::PermissionDenied,
            "nobody is root here: do it as `user`, install packages with pip or npm as that user, and have what needs root done by a \
             step of a template (docs/guides/e2b.md). Where an administrator allows it (`belljar project set NAME --root true`), commands \
             run as root in new sandboxes; files are opened as `user`, also there",
        )),
        other => {
            let told: String = other.chars().take(32).collect();
            Err(Failed::of(
                Code::Unauthenticated,
                format!("there is no user {told:?} in this sandbox; use `user`"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_sdk() {
        // As the protocol has it; that the SDKs sign like this is shown by fetching addresses that they made.
        let signed = Signed { path: "/home/user/a b".into(), ..Signed::default() };
        let sum = STANDARD_NO_PAD.encode(Sha256::digest("/home/user/a b:read::t"));
        assert_eq!(signed.sign("t", May::Read), format!("v1_{sum}"));
        let late = Signed { signature_expiration: Some("7".into()), username: "user".into(), ..signed };
        let sum = STANDARD_NO_PAD.encode(Sha256::digest("/home/user/a b:write:user:t:7"));
        assert_eq!(late.sign("t", May::Write), format!("v1_{sum}"));
        assert!(late.check_time().is_err());
    }

    #[test]
    fn the_token_of_the_agent_opens_no_port() {
        let ports = Ports { token: "a".repeat(64), ..Ports::default() };
        assert_eq!(token(&ports).len(), 64);
        assert_ne!(token(&ports), ports.token);
        let headers = HeaderMap::from_iter([(
            header::HeaderName::from_static(TOKEN),
            header::HeaderValue::from_str(&ports.token).unwrap(),
        )]);
        assert!(!shows(&headers, TOKEN, &token(&ports)));
        assert!(!shows(&headers, TOKEN, ""));
        assert!(shows(&headers, TOKEN, &ports.token));
    }

    #[test]
    fn root_is_refused_with_what_to_do_instead() {
        let of = |text: &str| HeaderMap::from_iter([(header::AUTHORIZATION, text.parse().unwrap())]);
        assert_eq!(user(&HeaderMap::new()), "");
        // user: and root:
        assert!(check_user(&user(&of("Basic dXNlcjo=")), false).is_ok());
        assert!(check_user(&user(&of("Basic cm9vdDo=")), true).is_ok());
        let Err(Failed::Refused(code, told)) = check_user(&user(&of("Basic cm9vdDo=")), false) else {
            panic!()
        };
        assert!(code == Code::PermissionDenied && told.contains("template"), "{told}");
    }
}

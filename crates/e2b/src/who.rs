//! Authorization of requests to a sandbox.
//!
//! A header or the host names the sandbox, and the sandbox's agent token gives access to it. Requests to the
//! code interpreter's contexts may present the traffic token instead, because E2B's SDKs send no other token
//! with these requests. A signed URL does not name a sandbox, so the server searches for the sandbox whose
//! token signed it.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::limits::USER;
use api::{ErrorCode, SandboxId};
use axum::extract::{FromRequestParts, Query};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use node::Call;
use node::clock;
use node::journal::Ports;
use node::token::same;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use control::audit::{Act, Entry, hex};
use control::authority::grant::States;
use control::authority::{Credential, FileAct, Grant, Need, Reach};
use control::platform::Platform;
use server::authority::caller::{peer, remember};
use server::ports::InHost;
use server::ports::ticket::TRAFFIC_TOKEN;

use super::connect::{Called, Code, Failed};
use super::{Adapter, Clients};

const SANDBOX: &str = "e2b-sandbox-id";
const TOKEN: &str = "x-access-token";

/// Maximum length of a path in a signed URL, which is also the limit of Linux.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum time for which a request waits until its signature can be checked.
const TURN_WITHIN: Duration = Duration::from_secs(1);

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

/// Request for one file, authorized by the agent token or by a signature. The extractor never rejects a
/// request. Instead, it passes the reason to the handler, which may have to discard the request body before
/// it responds.
pub struct Filed<A> {
    /// The requested file and the access to its sandbox, or the reason for the rejection.
    pub entered: Called<(Signed, Inside)>,
    act: PhantomData<A>,
}

/// Marker type for reading a file.
pub struct ReadFile;
/// Marker type for writing a file.
pub struct WriteFile;

/// Type that represents a file operation.
pub trait Acting {
    /// The operation.
    const ACT: FileAct;
}

/// Query of a file request: path, user and signature.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Signed {
    /// Path exactly as it was signed.
    pub path: String,
    username: String,
    /// Signature, or `None` if the request presents a token instead.
    pub signature: Option<String>,
    signature_expiration: Option<String>,
}

impl Acting for ReadFile {
    const ACT: FileAct = FileAct::Read;
}

impl Acting for WriteFile {
    const ACT: FileAct = FileAct::Write;
}

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

impl<A: Acting> States for Filed<A> {
    const NEED: Need = Need::File(A::ACT);
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
            (ports.agent.is(&shown) || is_derived(ports, &shown)).then_some(Credential::Agent)
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

impl<A: Acting> FromRequestParts<Adapter> for Filed<A> {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, adapter: &Adapter) -> Result<Self, Self::Rejection> {
        Ok(Self { entered: entered(parts, adapter, A::ACT).await, act: PhantomData })
    }
}

async fn entered(parts: &mut Parts, adapter: &Adapter, act: FileAct) -> Called<(Signed, Inside)> {
    let query = Query::<Signed>::from_request_parts(parts, &()).await;
    let Query(signed) = query.map_err(|error| Failed::of(Code::InvalidArgument, error.body_text()))?;
    let inside = signed.inside(parts, adapter, act).await?;
    Ok((signed, inside))
}

impl Signed {
    /// Authorizes access to the sandbox of the requested file, by a token or by the signature in this query.
    ///
    /// # Errors
    /// Returns an error if the token or signature is wrong or the signature has expired.
    async fn inside(&self, parts: &mut Parts, adapter: &Adapter, act: FileAct) -> Called<Inside> {
        let Some(signature) = &self.signature else {
            let user = user(&parts.headers);
            let Coder(inside) = Coder::from_request_parts(parts, adapter).await?;
            return inside.of_user(if self.username.is_empty() { &user } else { &self.username });
        };
        if self.path.len() > PATH_BYTES_MAX && !api::defence::is_off("H-37") {
            let told = format!("the path has more than {PATH_BYTES_MAX} bytes");
            return Err(Failed::of(Code::InvalidArgument, told));
        }
        self.check_time(adapter.platform.store.now_ms(clock::wall_ms()))?;
        let begun = self.begun(act);
        let sign = |token: &str| match api::defence::is_off("H-37") {
            true => self.sign(&self.begun(act), token),
            false => self.sign(&begun, token),
        };
        let right = |ports: &Ports| {
            let is =
                !ports.agent.is_empty() && same(signature.as_bytes(), sign(ports.agent.reveal()).as_bytes());
            is.then_some(Credential::Signature)
        };
        let id = match named(parts) {
            Ok(id) => id,
            Err(_) => self.signer(parts, adapter, |ports| right(ports).is_some()).await?,
        };
        let reach = Reach::File { sandbox: id.clone(), path: self.path.clone(), act };
        enter(adapter, id, reach, right, parts).await?.of_user(&self.username)
    }

    /// Returns the sandbox whose token created this signature. A client that uses a signed URL sends no
    /// headers that name the sandbox. Tokens are unique, so at most one sandbox matches.
    ///
    /// This function tries the token of every sandbox, but only for one request at a time. Requests with
    /// wrong signatures therefore occupy at most one worker thread. Each of them counts as a request with a
    /// wrong key.
    async fn signer(
        &self,
        parts: &Parts,
        adapter: &Adapter,
        right: impl Fn(&Ports) -> bool,
    ) -> Called<SandboxId> {
        let turn = tokio::time::timeout(TURN_WITHIN, adapter.clients.signers.acquire()).await;
        let busy = |_| Failed::of(Code::ResourceExhausted, "too many signatures are being checked; retry");
        let turn = turn.map_err(busy)?;
        let found = adapter.platform.node.opened_by(right);
        drop(turn);
        let told = "the signature does not match any running sandbox";
        found.ok_or_else(|| match api::defence::is_off("H-37") {
            true => Failed::of(Code::Unauthenticated, told),
            false => refuse(parts, &adapter.platform, None, told),
        })
    }

    fn check_time(&self, now_ms: u64) -> Called<()> {
        let Some(until) = &self.signature_expiration else { return Ok(()) };
        match until.parse::<u64>() {
            Ok(seconds) if seconds.saturating_mul(1000) > now_ms => Ok(()),
            Ok(_) => Err(Failed::of(Code::Unauthenticated, "the signature has expired")),
            Err(_) => {
                Err(Failed::of(Code::InvalidArgument, "signature_expiration is not a number of seconds"))
            }
        }
    }

    /// Hashes the part of the signed text that precedes the token. The result can be reused for every
    /// sandbox.
    fn begun(&self, act: FileAct) -> Sha256 {
        let act = match act {
            FileAct::Read => "read",
            FileAct::Write => "write",
        };
        Sha256::new_with_prefix(format!("{}:{act}:{}:", self.path, self.username))
    }

    fn sign(&self, begun: &Sha256, token: &str) -> String {
        let mut sum = begun.clone().chain_update(token);
        if let Some(until) = &self.signature_expiration {
            sum.update(format!(":{until}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(sum.finalize()))
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

/// Returns the user name from a `Basic` authorization header. Clients send no password in this header.
fn user(headers: &HeaderMap) -> String {
    let basic = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let text = basic.and_then(|basic| STANDARD.decode(basic.trim()).ok());
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    text.split(':').next().unwrap_or_default().to_owned()
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

/// Checks that the user exists. Root exists only if the sandbox was created with root access.
fn check_user(name: &str, rooted: bool) -> Called<()> {
    match name {
        "" | "user" | USER => Ok(()),
        "root" if rooted => Ok(()),
        "root" => Err(Failed::of(
            Code::PermissionDenied,
            "root is not available here: use `user`, install packages with pip or npm as that user, and do steps that need root in a \
             template (docs/guides/e2b.md). If an administrator allows root (`bellglass project set NAME --root true`), commands can run \
             and files can be opened as root in new sandboxes",
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
        // The expected signatures are computed from the protocol's definition. Other tests fetch URLs that
        // the SDKs signed, which shows that the SDKs sign in this way.
        let signed = Signed { path: "/home/user/a b".into(), ..Signed::default() };
        let sum = STANDARD_NO_PAD.encode(Sha256::digest("/home/user/a b:read::t"));
        assert_eq!(signed.sign(&signed.begun(FileAct::Read), "t"), format!("v1_{sum}"));
        let late = Signed { signature_expiration: Some("7".into()), username: "user".into(), ..signed };
        let sum = STANDARD_NO_PAD.encode(Sha256::digest("/home/user/a b:write:user:t:7"));
        assert_eq!(late.sign(&late.begun(FileAct::Write), "t"), format!("v1_{sum}"));
        assert!(late.check_time(clock::wall_ms()).is_err());
    }

    #[test]
    fn a_token_that_is_there_twice_is_none() {
        let mut headers = HeaderMap::new();
        headers.append(TOKEN, "a".parse().unwrap());
        assert_eq!(header(&headers, TOKEN), "a");
        headers.append(TOKEN, "a".parse().unwrap());
        assert_eq!(header(&headers, TOKEN), "");
    }

    #[test]
    fn root_is_refused_with_what_to_do_instead() {
        let of = |text: &str| HeaderMap::from_iter([(AUTHORIZATION, text.parse().unwrap())]);
        assert_eq!(user(&HeaderMap::new()), "");
        // The header values encode the credentials `user:` and `root:`.
        assert!(check_user(&user(&of("Basic dXNlcjo=")), false).is_ok());
        assert!(check_user(&user(&of("Basic cm9vdDo=")), true).is_ok());
        let Err(Failed::Refused(code, told)) = check_user(&user(&of("Basic cm9vdDo=")), false) else {
            panic!()
        };
        assert!(code == Code::PermissionDenied && told.contains("template"), "{told}");
    }
}

//! Authorization of requests for one file, which may have a signature instead of a token.
//!
//! A signed URL does not name a sandbox, so the server searches for the sandbox whose token signed it.

use std::marker::PhantomData;
use std::time::Duration;

use api::SandboxId;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use node::clock;
use node::journal::Ports;
use node::token::same;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use control::authority::grant::States;
use control::authority::{Credential, FileAct, Need, Reach};

use super::user::user;
use super::{Coder, Inside, enter, named, refuse};
use crate::Adapter;
use crate::connect::{Called, Code, Failed};

/// Maximum length of a path in a signed URL, which is also the limit of Linux.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum time for which a request waits until its signature can be checked.
const TURN_WITHIN: Duration = Duration::from_secs(1);

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

impl<A: Acting> States for Filed<A> {
    const NEED: Need = Need::File(A::ACT);
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

#[cfg(test)]
mod fuzz;
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
}

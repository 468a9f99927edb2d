//! Debian's archive, passed on. apt compares every file with signed indexes by itself; what has its content in its name is kept.

use std::sync::Arc;

use api::policy::Policy;
use hyper::body::Incoming;
use hyper::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use hyper::{Request, Response, StatusCode};
use tokio::sync::watch;

use super::{Entry, Gate, Hash, Recipient, Wanted};
use crate::Refusal;
use crate::http::{Body, full};
use crate::party::Party;

/// The package of a path; empty for what belongs to none.
pub fn package(rest: &str) -> Option<String> {
    let path = rest.strip_prefix('/').or_else(|| rest.strip_prefix("-security/"))?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+~:-".contains(&byte))
    };
    // apt escapes what stands in versions.
    let path = unescaped(path);
    if !path.split('/').all(plain) {
        return None;
    }
    let is_file = path.starts_with("pool/");
    let file = path.rsplit('/').next()?;
    Some(if is_file { file.split('_').next()?.to_owned() } else { String::new() })
}

impl Gate {
    pub(super) async fn debian(
        &self,
        wanted: &Wanted<'_>,
        request: &Request<Incoming>,
        party: &Arc<Party>,
        policy: watch::Receiver<Policy>,
    ) -> Result<Response<Body>, Refusal> {
        let (base, path) = match wanted.rest.strip_prefix("-security/") {
            Some(path) => (&self.upstreams.debian_security, path),
            None => (&self.upstreams.debian, wanted.rest.trim_start_matches('/')),
        };
        // In its one form, so that it is kept once.
        let path = unescaped(path);
        let url = format!("{}/{path}", base.trim_end_matches('/'));
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let hash = path
            .rsplit_once("/by-hash/SHA256/")
            .map_or(Hash::Unknown, |(_, digits)| Hash::Sha256(digits.into()));
        if path.starts_with("pool/") || hash != Hash::Unknown {
            let to = Recipient { party, policy, kind: wanted.kind, package: wanted.package.clone() };
            return self.give(&Entry { name, url, hash, is_young: false }, to).await;
        }
        let conditions = [IF_MODIFIED_SINCE, IF_NONE_MATCH].map(|name| {
            let value = request.headers().get(&name).and_then(|value| value.to_str().ok());
            value.map(|value| (name.as_str().to_owned(), value.to_owned()))
        });
        let conditions: Vec<_> =
            conditions.iter().flatten().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer = self.fetch(&url, &conditions).await?;
        if answer.status() == 304 {
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        let headers = answer.headers().clone();
        let mut response =
            self.pass(answer, Recipient { party, policy, kind: wanted.kind, package: String::new() });
        for name in [LAST_MODIFIED, ETAG] {
            if let Some(value) = headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    }
}

/// A path without the escapes that apt writes: only those of letters that a version may have.
fn unescaped(path: &str) -> String {
    path.replace("%2b", "+")
        .replace("%2B", "+")
        .replace("%3a", ":")
        .replace("%3A", ":")
        .replace("%7e", "~")
        .replace("%7E", "~")
}

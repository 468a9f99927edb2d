//! Proxy for Debian's archive. apt verifies every file against signed indexes. The gate caches only files
//! that never change: packages, and indexes whose path contains their hash.

use std::sync::Arc;

use api::policy::Policy;
use hyper::body::Incoming;
use hyper::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use hyper::{Request, Response, StatusCode};
use tokio::sync::watch;

use super::index::{Hash, IndexEntry};
use super::request::PackageRequest;
use super::{Gate, Recipient};
use crate::Refusal;
use crate::body::{Body, full};
use crate::party::Party;

/// An archive's directory for packages, and its directory for indexes.
const POOL: &str = "pool/";
const INDEXES: &str = "dists/";
/// Names of indexes that some archives store outside `dists/`, with or without an extension such as `.xz`.
const INDEX_NAMES: [&str; 5] = ["InRelease", "Release", "Packages", "Sources", "ls-lR"];
/// Substrings of the names of package files, in lower case. A mirror may store packages anywhere, so package
/// files are recognized in every directory.
const PACKAGE_MARKS: [&str; 8] =
    [".deb", ".udeb", ".ddeb", ".dsc", ".tar", ".diff", ".changes", ".buildinfo"];
/// The directories that precede the hash in an index's path.
const BY_HASH: &str = "/by-hash/SHA256/";
/// Length of a SHA-256 hash in hexadecimal digits.
const SHA256_DIGITS: usize = 64;

/// Returns the name of the package that a path belongs to, or an empty string for an index. Returns `None` if
/// the path belongs to neither a package nor an index.
pub fn package(rest: &str) -> Option<String> {
    let path = rest.strip_prefix('/').or_else(|| rest.strip_prefix("-security/"))?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+~:-".contains(&byte))
    };
    // apt percent-encodes some characters of version numbers.
    let path = unescaped(path);
    if !path.split('/').all(plain) {
        return None;
    }
    let file = path.rsplit('/').next()?;
    let shown = file.to_ascii_lowercase();
    let is_marked = PACKAGE_MARKS.iter().any(|mark| shown.contains(mark)) && !api::defence::is_off("N-31");
    if path.starts_with(POOL) || is_marked {
        let package = file.split('_').next().filter(|package| !package.is_empty());
        return package.map(str::to_owned);
    }
    is_index(&path, file).then(String::new)
}

/// Returns true if the path refers to an index, which belongs to no package.
fn is_index(path: &str, file: &str) -> bool {
    if api::defence::is_off("N-31") {
        return true;
    }
    let is_named = INDEX_NAMES.contains(&file.split('.').next().unwrap_or_default());
    let is_sound = path.rsplit_once(BY_HASH).is_none_or(|(_, digits)| {
        digits.len() == SHA256_DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    (path.starts_with(INDEXES) || is_named) && is_sound
}

impl Gate {
    pub(super) async fn debian(
        &self,
        wanted: &PackageRequest<'_>,
        request: &Request<Incoming>,
        party: &Arc<Party>,
        policy: watch::Receiver<Policy>,
    ) -> Result<Response<Body>, Refusal> {
        let (base, path) = match wanted.rest.strip_prefix("-security/") {
            Some(path) => (&self.upstreams.debian_security, path),
            None => (&self.upstreams.debian, wanted.rest.trim_start_matches('/')),
        };
        // The path is unescaped, so that a file is cached only once, however its path is encoded.
        let path = unescaped(path);
        let url = format!("{}/{path}", base.trim_end_matches('/'));
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let hash = path.rsplit_once(BY_HASH).map_or(Hash::Unknown, |(_, digits)| Hash::Sha256(digits.into()));
        let (kind, package) = (wanted.kind, wanted.package.clone());
        let to = Recipient { party, policy, kind, package, upstream: base };
        if !wanted.package.is_empty() || hash != Hash::Unknown {
            return self.give(&IndexEntry { name, url, hash, is_young: false }, to).await;
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
        let mut response = self.pass(answer, to);
        for name in [LAST_MODIFIED, ETAG] {
            if let Some(value) = headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    }
}

/// Decodes the percent-encoding that apt applies to version numbers. Other encoded characters are left
/// unchanged.
fn unescaped(path: &str) -> String {
    path.replace("%2b", "+")
        .replace("%2B", "+")
        .replace("%3a", ":")
        .replace("%3A", ":")
        .replace("%7e", "~")
        .replace("%7E", "~")
}

//! The package gate: serves Python, npm and Debian packages from the package sources of this machine, and
//! caches them.
//!
//! Sandboxes reach the gate as the host `packages.bellglass`. No name server resolves this name; the broker
//! passes requests for it to the gate. The gate connects to the upstream itself, so a sandbox needs no
//! internet access, and the upstream may be a mirror in a private network.
//!
//! ```text
//! /python/simple/NAME/       the files of NAME that the policy allows, with hashes    ◀─ index, parsed and rewritten
//! /python/files/NAME/FILE    one of these files                                       ◀─ cached by its hash
//! /npm/NAME                  the versions of NAME that the policy allows              ◀─ registry, parsed and rewritten
//! /npm/NAME/-/FILE           the file of one version                                  ◀─ cached by its hash
//! /debian/…                  the archive; apt verifies hashes and signatures          ◀─ cached by its path if it never changes
//! /debian-security/…         the archive of security updates                          ◀─ cached in the same way
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `request` | a request for a package, and the check whether the policy allows it |
//! | `index` | the indexes of packages: fetched, parsed and cached for a minute |
//! | `age` | the minimum age of package files |
//! | `python`, `npm`, `debian` | parsing of each kind of index, and selection of the files that the policy allows |
//! | `store` | cached files, by their key |
//! | [`upstream`] | the package sources of this machine |
//! | `carry` | the transfer of one file, which is cached, hashed and metered |
//!
//! Invariants: a file that does not match the hash in its index is not cached. The gate never dials a URL
//! that a sandbox supplied: it takes the URL from the index, or appends a checked path to the URL of Debian's
//! archive. Sandboxes share the cache and cannot write to it.

mod age;
mod carry;
mod debian;
mod index;
mod npm;
mod python;
mod request;
mod store;
pub mod upstream;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::policy::{Policy, Preset};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use tokio::sync::watch;

use crate::body::{Body, full};
use crate::party::Party;
use crate::{Refusal, RefusalKind};
use index::{Hash, IndexCache, IndexEntry};
use request::{allow, understand};
use store::PackageCache;
use upstream::Upstreams;

/// The host name of the gate in sandboxes.
pub const HOST: &str = "packages.bellglass";
/// Hosts that every Debian system uses for packages by default. If a policy allows Debian packages, the gate
/// serves these hosts, so that systems without special configuration work.
const DEBIAN_HOSTS: [&str; 2] = ["deb.debian.org", "security.debian.org"];
/// Timeout for an upstream's response to begin, and for each further chunk of the response.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The package gate, with its cache.
pub struct Gate {
    upstreams: Upstreams,
    store: Arc<PackageCache>,
    http: OnceLock<Option<reqwest::Client>>,
    indexes: IndexCache,
}

/// The sandbox that receives a file, its policy, and the file's upstream.
struct Recipient<'a> {
    party: &'a Arc<Party>,
    policy: watch::Receiver<Policy>,
    kind: Preset,
    package: String,
    upstream: &'a str,
}

/// Returns true if the gate serves plaintext requests for this host and path.
pub(crate) fn stands_for(host: &str, path: &str, policy: &Policy) -> bool {
    let of_debian = DEBIAN_HOSTS.contains(&host) && path.starts_with("/debian");
    host == HOST || (of_debian && policy.presets.contains(&Preset::DebianPackages))
}

impl Gate {
    /// Creates a gate that caches files in this directory as long as at least `reserve_bytes` of its disk
    /// stay free.
    pub fn new(directory: &Path, upstreams: Upstreams, reserve_bytes: u64) -> Self {
        Self {
            upstreams,
            store: Arc::new(PackageCache::new(directory, reserve_bytes)),
            http: OnceLock::new(),
            indexes: IndexCache::new(),
        }
    }

    /// Removes the least recently used files if the cache has reached its limit.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub fn tidy(&self) -> std::io::Result<()> {
        self.store.tidy()
    }

    /// Serves a request for [`HOST`]. The outcome is reported once.
    pub(crate) async fn answer(&self, request: &Request<Incoming>, party: &Arc<Party>) -> Response<Body> {
        let path = request.uri().path();
        let policy = party.policy();
        let decided = understand(request.method(), path).and_then(|wanted| {
            allow(&policy.borrow(), &wanted)?;
            if party.wait(&policy.borrow()).is_none() {
                return Err(Refusal { kind: RefusalKind::Denied, why: crate::flow::SPENT.into() });
            }
            Ok(wanted)
        });
        let answered = match &decided {
            Ok(wanted) => match wanted.kind {
                Preset::PythonPackages => self.python(wanted, party, policy).await,
                Preset::NodePackages => self.npm(wanted, party, policy).await,
                Preset::DebianPackages => self.debian(wanted, request, party, policy).await,
                Preset::Git => Err(nothing(path)),
            },
            Err(refusal) => Err(Refusal { kind: refusal.kind, why: refusal.why.clone() }),
        };
        match &answered {
            Ok(_) => party.tell_package(path, Ok(decided.map_or("", |wanted| wanted.kind.name()))),
            Err(refusal) => party.tell_package(path, Err(&refusal.why)),
        }
        answered.unwrap_or_else(Refusal::response)
    }

    /// Sends a request to an upstream.
    async fn fetch(&self, url: &str, headers: &[(&str, &str)]) -> Result<reqwest::Response, Refusal> {
        let http = self.http.get_or_init(|| upstream::client(&self.upstreams)).as_ref();
        let http =
            http.ok_or_else(|| Refusal::unreachable("this machine has no trusted root certificates".into()))?;
        let url = self.upstreams.with_login(url);
        if !self.upstreams.may_dial(&url) {
            return Err(Refusal::unreachable(
                "the package index points to an address that is not public".into(),
            ));
        }
        let mut request = http.get(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = match tokio::time::timeout(ANSWER_WITHIN, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(upstream_failed(&error)),
            Err(_) => return Err(Refusal::unreachable("the package index does not respond".into())),
        };
        match response.status().as_u16() {
            200 | 304 => Ok(response),
            404 | 410 => Err(Refusal {
                kind: RefusalKind::Missing,
                why: "the package or file is not in the package index".into(),
            }),
            status => Err(Refusal::unreachable(format!("the package index returned status {status}"))),
        }
    }
}

impl Recipient<'_> {
    /// Returns the cache key of a file. It includes the kind, the upstream and the package, so that a request
    /// for a package that the policy allows cannot return a cached file of another package with the same
    /// hash.
    fn key(&self, entry: &IndexEntry) -> String {
        let content = match &entry.hash {
            Hash::Sha256(digits) => format!("sha256 {digits}"),
            Hash::Sha512(text) => format!("sha512 {text}"),
            Hash::Unknown => format!("url {}", entry.url),
        };
        if api::defence::is_off("N-31") {
            return PackageCache::key(&content);
        }
        PackageCache::key(&format!("{} {} {} {content}", self.kind.name(), self.upstream, self.package))
    }
}

/// Returns the next chunk of a response.
async fn next(answer: &mut reqwest::Response) -> Result<Option<Bytes>, Refusal> {
    match tokio::time::timeout(ANSWER_WITHIN, answer.chunk()).await {
        Ok(piece) => piece.map_err(|error| upstream_failed(&error)),
        Err(_) => Err(Refusal::unreachable("the package index does not respond".into())),
    }
}

/// Returns true if a name can be part of a URL without escaping.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+!~-".contains(&byte))
}

fn nothing(path: &str) -> Refusal {
    let shown = crate::decide::shortened(path);
    Refusal { kind: RefusalKind::Missing, why: format!("{shown} does not exist on {HOST}") }
}

/// Returns the error for a failed upstream request. It does not contain the URL, which may include a
/// password.
fn upstream_failed(error: &reqwest::Error) -> Refusal {
    tracing::warn!(error = cause(error), "request to the package index failed");
    let what = if error.is_timeout() { "timed out" } else { "cannot be reached" };
    Refusal::unreachable(format!("this machine's package index {what}"))
}

/// Returns the innermost cause of an error, which contains no URL.
fn cause(error: &reqwest::Error) -> String {
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    cause.map_or_else(|| "no response".into(), ToString::to_string)
}

/// Returns an index page as a response, and counts its bytes as traffic.
fn document(
    kind: &'static str,
    page: &Bytes,
    party: &Party,
    policy: &watch::Receiver<Policy>,
) -> Response<Body> {
    party.carried(page.len(), &policy.borrow());
    let mut response = Response::new(full(page.clone()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

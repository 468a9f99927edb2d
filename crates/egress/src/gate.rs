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
//! | `python`, `npm`, `debian` | parsing of each kind of index, and selection of the files that the policy allows |
//! | `store` | cached files, by their key |
//! | [`upstream`] | the package sources of this machine |
//! | `carry` | the transfer of one file, which is cached, hashed and metered |
//!
//! Invariants: a file that does not match the hash in its index is not cached. The gate never dials a URL
//! that a sandbox supplied: it takes the URL from the index, or appends a checked path to the URL of Debian's
//! archive. Sandboxes share the cache and cannot write to it.

mod carry;
mod debian;
mod npm;
mod python;
mod store;
pub mod upstream;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use api::policy::{Policy, Preset};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::body::{Body, full};
use crate::party::Party;
use crate::{Refusal, RefusalKind};
use store::PackageCache;
use upstream::Upstreams;

/// The host name of the gate in sandboxes.
pub const HOST: &str = "packages.bellglass";
/// Hosts that every Debian system uses for packages by default. If a policy allows Debian packages, the gate
/// serves these hosts, so that systems without special configuration work.
const DEBIAN_HOSTS: [&str; 2] = ["deb.debian.org", "security.debian.org"];
/// Maximum size in bytes of the index of one package.
const INDEX_BYTES_MAX: usize = 32 << 20;
/// Time during which a cached index is served without being fetched again.
const INDEX_FRESH: Duration = Duration::from_secs(60);
/// Maximum total size in bytes of all cached indexes.
const INDEXES_BYTES_MAX: usize = 64 << 20;
/// Maximum number of indexes that are fetched and parsed at the same time. Parsing an index takes several
/// times its size in memory.
const INDEXES_AT_ONCE: usize = 4;
/// Timeout for fetching a whole index.
const INDEX_WITHIN: Duration = Duration::from_secs(120);
/// Timeout for obtaining a permit to fetch an index.
const TURN_WITHIN: Duration = Duration::from_secs(30);
/// Timeout for an upstream's response to begin, and for each further chunk of the response.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The package gate, with its cache.
pub struct Gate {
    upstreams: Upstreams,
    store: Arc<PackageCache>,
    http: OnceLock<Option<reqwest::Client>>,
    indexes: Mutex<HashMap<String, (Instant, Arc<Index>)>>,
    turns: Semaphore,
}

/// The parsed index of one package.
struct Index {
    files: Vec<IndexEntry>,
    /// The page that is served to sandboxes.
    page: Bytes,
}

/// A request for a package's index, and the parser for the response.
struct IndexRequest {
    kind: Preset,
    package: String,
    minimum_age_ms: u64,
    url: String,
    accept: &'static str,
    parse: Parse,
}

/// A parser for an index, which takes the content type of the response, its final URL, and its body.
type Parse = fn(&IndexRequest, &str, &str, &[u8]) -> Option<Index>;

/// One file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexEntry {
    /// The file's name, which needs no escaping in a URL.
    name: String,
    /// The file's URL at the upstream.
    url: String,
    hash: Hash,
    /// True if the file is younger than the policy allows, or its age is unknown.
    is_young: bool,
}

/// The expected hash of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hash {
    /// The SHA-256, in hexadecimal digits.
    Sha256(String),
    /// The SHA-512, in base64.
    Sha512(String),
    /// The gate does not know the hash; the installer verifies the file.
    Unknown,
}

/// A parsed request for a package or an index.
struct PackageRequest<'a> {
    kind: Preset,
    package: String,
    rest: &'a str,
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
            indexes: Mutex::default(),
            turns: Semaphore::new(INDEXES_AT_ONCE),
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

    /// Returns the index of a package, which may be up to a minute old.
    async fn index(&self, asking: IndexRequest, party: &Party) -> Result<Arc<Index>, Refusal> {
        if let Some(index) = self.known(&asking.key()) {
            return Ok(index);
        }
        // Each sandbox may fetch one index at a time, and all sandboxes together [`INDEXES_AT_ONCE`], because
        // parsing an index takes several times its size in memory.
        let turn = async { (party.index.acquire().await, self.turns.acquire().await) };
        let turn = tokio::time::timeout(TURN_WITHIN, turn).await;
        let _turn =
            turn.map_err(|_| Refusal::unreachable("too many package index requests are in progress".into()))?;
        // An earlier holder of the permits may have fetched the same index.
        if let Some(index) = self.known(&asking.key()) {
            return Ok(index);
        }
        let (key, name) = (asking.key(), asking.package.clone());
        let fetched = tokio::time::timeout(INDEX_WITHIN, self.fetch_index(&asking)).await;
        let (kind, at, body) =
            fetched.map_err(|_| Refusal::unreachable("the package index does not respond".into()))??;
        let parsed = tokio::task::spawn_blocking(move || (asking.parse)(&asking, &kind, &at, &body)).await;
        let index = parsed.ok().flatten().map(Arc::new);
        let index =
            index.ok_or_else(|| Refusal::unreachable(format!("cannot parse the package index of {name}")))?;
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|_, (since, _)| since.elapsed() < INDEX_FRESH);
        let all: usize = indexes.values().map(|(_, index)| index.weight()).sum();
        if all + index.weight() > INDEXES_BYTES_MAX {
            indexes.clear();
        }
        indexes.insert(key, (Instant::now(), Arc::clone(&index)));
        Ok(index)
    }

    fn known(&self, key: &str) -> Option<Arc<Index>> {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = indexes.get(key).filter(|(since, _)| since.elapsed() < INDEX_FRESH);
        fresh.map(|(_, index)| Arc::clone(index))
    }

    /// Fetches an index, and returns its content type, its final URL and its body.
    async fn fetch_index(&self, asking: &IndexRequest) -> Result<(String, String, Vec<u8>), Refusal> {
        let mut response = self.fetch(&asking.url, &[("accept", asking.accept)]).await?;
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let (kind, at) = (kind.unwrap_or_default().to_owned(), response.url().to_string());
        let mut body = Vec::new();
        while let Some(piece) = next(&mut response).await? {
            if body.len() + piece.len() > INDEX_BYTES_MAX {
                return Err(Refusal::unreachable(format!(
                    "the package index of {} is too long",
                    asking.package
                )));
            }
            body.extend_from_slice(&piece);
        }
        Ok((kind, at, body))
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

impl IndexRequest {
    fn key(&self) -> String {
        format!("{} {} {}", self.kind.name(), self.minimum_age_ms, self.package)
    }
}

impl Index {
    /// Returns the file with this name, if the policy allows it.
    fn file(&self, name: &str) -> Result<&IndexEntry, Refusal> {
        let found = self.files.iter().find(|entry| entry.name == name).ok_or_else(|| nothing(name))?;
        if found.is_young {
            let why = format!(
                "{name} has not reached the minimum package age of this sandbox, or its age is unknown"
            );
            return Err(Refusal { kind: RefusalKind::Denied, why });
        }
        Ok(found)
    }

    /// Returns the approximate size of the index in memory, in bytes.
    fn weight(&self) -> usize {
        self.page.len()
            + self
                .files
                .iter()
                .map(|file| size_of::<IndexEntry>() + file.url.len() + file.name.len() + 128)
                .sum::<usize>()
    }
}

/// Returns the next chunk of a response.
async fn next(answer: &mut reqwest::Response) -> Result<Option<Bytes>, Refusal> {
    match tokio::time::timeout(ANSWER_WITHIN, answer.chunk()).await {
        Ok(piece) => piece.map_err(|error| upstream_failed(&error)),
        Err(_) => Err(Refusal::unreachable("the package index does not respond".into())),
    }
}

/// Parses the method and the path of a request.
fn understand<'a>(method: &Method, path: &'a str) -> Result<PackageRequest<'a>, Refusal> {
    if method != Method::GET && method != Method::HEAD {
        return Err(Refusal { kind: RefusalKind::Denied, why: format!("{HOST} is read-only") });
    }
    let (kind, rest) = [
        ("/python/", Preset::PythonPackages),
        ("/npm/", Preset::NodePackages),
        ("/debian", Preset::DebianPackages),
    ]
    .into_iter()
    .find_map(|(prefix, kind)| Some((kind, path.strip_prefix(prefix)?)))
    .ok_or_else(|| nothing(path))?;
    let package = match kind {
        Preset::PythonPackages => python::package(rest),
        Preset::NodePackages => npm::package(rest),
        Preset::DebianPackages => debian::package(rest),
        Preset::Git => None,
    };
    Ok(PackageRequest { kind, package: package.ok_or_else(|| nothing(path))?, rest })
}

/// Checks that the policy allows the request.
fn allow(policy: &Policy, wanted: &PackageRequest<'_>) -> Result<(), Refusal> {
    let denied = |why: String| Err(Refusal { kind: RefusalKind::Denied, why });
    if !policy.presets.contains(&wanted.kind) && !policy.open {
        return denied(format!("this sandbox is not allowed to use {}", wanted.kind.name()));
    }
    let only = policy.packages.only(wanted.kind);
    let listed = |names: &Vec<String>| names.iter().any(|name| same_name(wanted.kind, name, &wanted.package));
    match only {
        // A request without a package is for one of the archive's own indexes.
        Some(names) if !wanted.package.is_empty() && !listed(names) => denied(format!(
            "{} is not in the list of {} that this sandbox may use",
            wanted.package,
            wanted.kind.name()
        )),
        Some(_) | None => Ok(()),
    }
}

fn same_name(kind: Preset, listed: &str, asked: &str) -> bool {
    match kind {
        Preset::PythonPackages => python::normal(listed) == asked,
        Preset::NodePackages | Preset::DebianPackages | Preset::Git => listed == asked,
    }
}

/// Returns true if a file is old enough to be allowed.
fn is_old_enough(published: Option<&str>, minimum_age_ms: u64) -> bool {
    if minimum_age_ms == 0 {
        return true;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let cutoff = written(now.saturating_sub(Duration::from_millis(minimum_age_ms)).as_secs());
    // All times have the same format and time zone, so they can be compared as text.
    published.is_some_and(|published| {
        published.ends_with('Z') && published.get(..cutoff.len()).is_some_and(|at| at <= cutoff.as_str())
    })
}

/// Formats a time, in seconds since the Unix epoch, as package indexes do.
fn written(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a date with 400-year eras that begin in March. The algorithm is Howard Hinnant's.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
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

/// The sandbox that receives a file, its policy, and the file's upstream.
struct Recipient<'a> {
    party: &'a Arc<Party>,
    policy: watch::Receiver<Policy>,
    kind: Preset,
    package: String,
    upstream: &'a str,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_indexes_write_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_794_762_666, "2026-11-15T17:11:06"),
            (4_107_542_399, "2100-02-28T23:59:59"),
        ] {
            assert_eq!(written(seconds), text);
        }
        let week = 7 * 86_400_000;
        assert!(is_old_enough(Some("2017-05-08T10:10:00.853913Z"), week));
        for young in [Some("2999-01-01T00:00:00Z"), Some("2017-05-08T10:10:00+02:00"), Some("2017"), None] {
            assert!(!is_old_enough(young, week), "{young:?}");
            assert!(is_old_enough(young, 0));
        }
    }

    #[test]
    fn what_is_asked_for_is_one_package_of_one_kind() {
        let asked = |path| understand(&Method::GET, path).map(|wanted| (wanted.kind, wanted.package)).ok();
        let (python, npm, debian) = (Preset::PythonPackages, Preset::NodePackages, Preset::DebianPackages);
        for (path, kind, package) in [
            ("/python/simple/Foo_Bar/", python, "foo-bar"),
            ("/python/files/cowsay/cowsay-1.0.tar.gz", python, "cowsay"),
            ("/npm/left-pad", npm, "left-pad"),
            ("/npm/@types%2fnode", npm, "@types/node"),
            ("/npm/@types/node", npm, "@types/node"),
            ("/npm/@types/node/-/node-1.0.0.tgz", npm, "@types/node"),
            ("/debian/dists/bookworm/InRelease", debian, ""),
            ("/debian/pool/main/c/curl/curl_7.88.1-10_amd64.deb", debian, "curl"),
            ("/debian-security/pool/updates/main/o/x/x_1_all.deb", debian, "x"),
            ("/debian/Packages.xz", debian, ""),
            (
                "/debian/dists/x/by-hash/SHA256/770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c",
                debian,
                "",
            ),
            ("/debian/Pool/main/n/nmap/nmap_1.deb", debian, "nmap"),
            ("/debian/dists/stable/pool/nmap_1.DEB", debian, "nmap"),
            ("/debian/indices/nmap_1.deb", debian, "nmap"),
            ("/debian/nmap_1.orig.tar.xz", debian, "nmap"),
            ("/debian/dists/nmap_1.dsc", debian, "nmap"),
        ] {
            assert_eq!(asked(path), Some((kind, package.to_owned())), "{path}");
        }
        for path in [
            "/",
            "/python/",
            "/python/simple/",
            "/python/simple/../x/",
            "/python/simple/a/b",
            "/python/files/a/../../x",
            "/npm/",
            "/npm/-/all",
            "/npm/a/b/c",
            "/npm/%2e%2e/x",
            "/debian/../x",
            "/debian/%2e%2e/x",
            "/debianx/y",
            "/debian/a//b",
            "/debian/dists",
            "/debian/indices/md5sums.gz",
            "/debian/POOL/main/n/nmap/nmap",
            "/debian/x/by-hash/SHA256/770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c",
            "/debian/dists/x/by-hash/SHA256/00",
            "/debian/dists/x/by-hash/SHA256/770E607624D689265CA6C44884D0807D9B054D23C473C106C72BE9DE08B7376C",
            "/other/x",
        ] {
            assert_eq!(asked(path), None, "{path}");
        }
        assert!(understand(&Method::PUT, "/npm/left-pad").is_err());
    }
}

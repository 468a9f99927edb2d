//! The package sources of this machine, taken from the configuration of its pip, npm and apt. The public
//! sources are the default.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Url, redirect};
use rustls_platform_verifier::BuilderVerifierExt as _;

use crate::address;
use crate::resolve::Names;

/// Timeout for connecting to a host.
const DIAL_WITHIN: Duration = Duration::from_secs(10);

/// The URLs of the package sources. They may contain a user name and a password, so they are never revealed
/// to sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstreams {
    /// The URL of the simple API of Python's package index.
    pub python: String,
    /// npm's registry.
    pub node: String,
    /// Debian's archive.
    pub debian: String,
    /// Debian's security updates.
    pub debian_security: String,
}

impl Default for Upstreams {
    /// Returns the public package sources.
    fn default() -> Self {
        Self {
            python: "https://pypi.org/simple".into(),
            node: "https://registry.npmjs.org".into(),
            debian: "http://deb.debian.org/debian".into(),
            debian_security: "http://deb.debian.org/debian-security".into(),
        }
    }
}

impl Upstreams {
    /// Returns the sources that this machine is configured to use, or the public source where none is
    /// configured.
    pub fn of_this_machine() -> Self {
        let public = Self::default();
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let read = |paths: &[PathBuf]| -> Vec<String> {
            paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
        };
        let variable = |name: &str| std::env::var(name).ok().filter(|value| is_web(value));
        let pip =
            read(&[home.join(".config/pip/pip.conf"), home.join(".pip/pip.conf"), "/etc/pip.conf".into()]);
        let npm = read(&[home.join(".npmrc"), "/etc/npmrc".into()]);
        let (debian, debian_security) = archives(&sources(Path::new("/etc/apt")));
        Self {
            python: variable("PIP_INDEX_URL")
                .or_else(|| pip.iter().find_map(|text| setting(text, "index-url")))
                .unwrap_or(public.python),
            node: variable("NPM_CONFIG_REGISTRY")
                .or_else(|| npm.iter().find_map(|text| setting(text, "registry")))
                .unwrap_or(public.node),
            debian: debian.unwrap_or(public.debian),
            debian_security: debian_security.unwrap_or(public.debian_security),
        }
    }
}

impl Upstreams {
    /// Adds the user name and the password that this machine has for the URL's host. An index lists the URLs
    /// of its files without credentials.
    pub(super) fn with_login(&self, address: &str) -> String {
        let Ok(mut url) = Url::parse(address) else { return address.to_owned() };
        let known = [&self.python, &self.node, &self.debian, &self.debian_security];
        // Only URLs in the index's parent directory receive the password, because it may unlock other
        // resources that sandboxes must not reach.
        let beside = |one: &Url| {
            let path = one.path().trim_end_matches('/');
            url.path().starts_with(path.get(..=path.rfind('/').unwrap_or(0)).unwrap_or("/"))
        };
        let same = known.into_iter().filter_map(|one| Url::parse(one).ok()).find(|one| {
            !one.username().is_empty()
                && one.origin() == url.origin()
                && url.username().is_empty()
                && beside(one)
        });
        if let Some(login) = same {
            let _ = url.set_username(login.username());
            let _ = url.set_password(login.password());
        }
        url.into()
    }
}

/// Host that serves the files of Python's public index.
const PYTHON_FILES: &str = "files.pythonhosted.org";
/// Maximum number of redirects. A file is at most a few redirects away from its index.
const REDIRECTS_MAX: usize = 5;

impl Upstreams {
    /// Returns the hosts that the operator or this machine's configuration names. Only these hosts may be in
    /// a private network. All other hosts, such as the targets of redirects, must be public.
    fn named(&self) -> Vec<(String, u16)> {
        let all = [&self.python, &self.node, &self.debian, &self.debian_security];
        let mut hosts: Vec<(String, u16)> =
            all.into_iter().filter_map(|one| place(&Url::parse(one).ok()?)).collect();
        if hosts.iter().any(|(host, _)| host == "pypi.org") {
            hosts.push((PYTHON_FILES.into(), 443));
        }
        hosts
    }

    /// Returns true if the URL may be dialled, judging by its scheme, host and port alone. The addresses of a
    /// host name are checked later, when the name is resolved.
    pub(super) fn may_dial(&self, address: &str) -> bool {
        Url::parse(address).is_ok_and(|url| may_dial(&self.named(), &url))
    }
}

fn may_dial(named: &[(String, u16)], url: &Url) -> bool {
    let Some((host, port)) = place(url) else { return false };
    if named.iter().any(|(one, _)| *one == host) {
        // A configured host may be dialled only on its configured port, because its other ports do not serve
        // packages.
        return named.iter().any(|(one, on)| *one == host && *on == port);
    }
    let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    literal.is_none_or(|address| address::refused(address).is_none())
}

fn place(url: &Url) -> Option<(String, u16)> {
    let web = matches!(url.scheme(), "http" | "https");
    Some((url.host_str().filter(|_| web)?.to_owned(), url.port_or_known_default()?))
}

/// Returns the hosts of the proxies that this machine is configured to use.
fn proxies() -> Vec<String> {
    let names = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let values = names.into_iter().filter_map(|name| std::env::var(name).ok());
    values.filter_map(|value| Url::parse(&value).ok()?.host_str().map(str::to_owned)).collect()
}

/// Resolver that uses the machine's own resolution for configured hosts, and returns only public addresses
/// for all other hosts.
struct Resolver {
    named: Vec<String>,
    names: Arc<Names>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let is_named = self.named.iter().any(|one| one == name.as_str());
        let names = Arc::clone(&self.names);
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = if is_named {
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect()
            } else {
                let found = names.look_up(name.as_str()).await.into_iter();
                found
                    .filter(|one| address::refused(*one).is_none())
                    .map(|one| SocketAddr::new(one, 0))
                    .collect()
            };
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Returns an HTTP client for the package sources, with the certificates and the proxy of this machine.
pub(super) fn client(upstreams: &Upstreams) -> Option<reqwest::Client> {
    let named = upstreams.named();
    let hosts = named.iter().map(|(host, _)| host.clone()).chain(proxies()).collect();
    let resolver = Resolver { named: hosts, names: Arc::default() };
    let redirects = redirect::Policy::custom(move |attempt| {
        if attempt.previous().len() > REDIRECTS_MAX || !may_dial(&named, attempt.url()) {
            return attempt.error("too many redirects, or a redirect to an address that is not public");
        }
        attempt.follow()
    });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let config = config.with_platform_verifier().ok()?.with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .dns_resolver(Arc::new(resolver))
        .redirect(redirects)
        .connect_timeout(DIAL_WITHIN)
        .build()
        .ok()
}

fn is_web(address: &str) -> bool {
    address.starts_with("https://") || address.starts_with("http://")
}

/// Returns the value of the first line `name = value` whose value is a URL.
fn setting(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let mut values =
        lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().trim_matches('"'));
    values.find(|value| is_web(value)).map(str::to_owned)
}

/// Returns the concatenated content of all of apt's source lists.
fn sources(apt: &Path) -> String {
    let parts = std::fs::read_dir(apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let known = |path: &PathBuf| path.extension().is_some_and(|end| end == "sources" || end == "list");
    let mut paths: Vec<PathBuf> = parts.filter(known).collect();
    paths.sort();
    paths.insert(0, apt.join("sources.list"));
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| text + "\n\n").collect()
}

/// Returns the URL of the archive and the URL of its security updates, from source lists in either of apt's
/// formats.
fn archives(text: &str) -> (Option<String>, Option<String>) {
    let (mut archive, mut security) = (None, None);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let one_line = line.starts_with("deb ");
        if !one_line && !line.starts_with("URIs:") {
            continue;
        }
        for address in line.split_whitespace().filter(|word| is_web(word)) {
            let address = address.trim_end_matches('/');
            if address.ends_with("debian-security") {
                security = security.or_else(|| Some(address.to_owned()));
            } else if address.ends_with("/debian") {
                archive = archive.or_else(|| Some(address.to_owned()));
            }
        }
    }
    (archive, security)
}

/// Installs `ring` as the default cryptography provider, for clients that do not choose their own.
pub fn use_ring() {
    // This fails if a provider is already installed. That provider is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pip_npm_and_apt_are_told_is_understood() {
        assert_eq!(
            setting("[global]\nindex-url = https://m.example/simple\n", "index-url").unwrap(),
            "https://m.example/simple"
        );
        assert_eq!(
            setting("registry=https://m.example/npm/\nfund=false", "registry").unwrap(),
            "https://m.example/npm/"
        );
        let own = Upstreams { python: "https://u:p@m.example/simple".into(), ..Upstreams::default() };
        assert_eq!(own.with_login("https://m.example/files/x"), "https://u:p@m.example/files/x");
        let deep =
            Upstreams { python: "https://u:p@m.example/a/pypi/simple/".into(), ..Upstreams::default() };
        assert_eq!(
            deep.with_login("https://m.example/a/pypi/files/x"),
            "https://u:p@m.example/a/pypi/files/x"
        );
        assert_eq!(deep.with_login("https://m.example/a/secret/x"), "https://m.example/a/secret/x");
        for other in ["https://n.example/files/x", "http://m.example/files/x", "https://m.example:444/x"] {
            assert_eq!(own.with_login(other), other);
        }
        let private = Upstreams { debian: "http://10.0.0.5/debian".into(), ..own.clone() };
        for (address, may) in [
            ("http://10.0.0.5/debian/x", true),
            ("https://m.example/x", true),
            ("http://10.0.0.5:8080/x", false),
            ("http://10.0.0.6/x", false),
            ("http://169.254.169.254/latest", false),
            ("http://[::ffff:169.254.169.254]/", false),
            ("http://2852039166/", false),
            ("file:///etc/passwd", false),
        ] {
            assert_eq!(private.may_dial(address), may, "{address}");
        }
        assert_eq!(setting("index-url = file:///etc", "index-url"), None);
        let text = "# deb http://old.example/debian x main\ndeb [signed-by=/k] http://a.example/debian bookworm main\nTypes: deb\nURIs: http://b.example/debian-security/\nSuites: x";
        assert_eq!(
            archives(text),
            (Some("http://a.example/debian".into()), Some("http://b.example/debian-security".into()))
        );
    }
}

//! Decides whether a policy allows a request. [`decide`] is a pure function that performs no lookups, so its
//! inputs cannot change while it runs.

use api::host::Host;
use api::policy::{HostRule, Policy, Preset, is_plain_path};

/// Public Git hosting services, and the hosts from which they serve archives and large files.
const GIT: [&str; 10] = [
    "github.com",
    "codeload.github.com",
    "objects.githubusercontent.com",
    "raw.githubusercontent.com",
    "release-assets.githubusercontent.com",
    "github-cloud.githubusercontent.com",
    "gitlab.com",
    "bitbucket.org",
    "codeberg.org",
    "git.sr.ht",
];
/// The default port for plaintext HTTP.
const CLEAR_PORT: u16 = 80;
/// Maximum number of rules that a refusal lists.
const NAMED_MAX: usize = 8;

/// The kind of a request to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A tunnel, which carries opaque bytes in both directions.
    Tunnel,
    /// A plaintext HTTP request.
    Request {
        /// The request's method.
        method: String,
        /// The request's path, without the query.
        path: String,
    },
}

/// The rule that allows a request, and its consequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The rule, as text.
    pub rule: String,
    /// True if the rule names the host. All requests on the connection must then be for that host.
    pub by_name: bool,
    /// True if a secret is bound to the host. The broker then inspects each request.
    pub bound: bool,
}

/// Decides whether the policy allows a request.
///
/// # Errors
/// Returns an error if the policy does not allow the request. The error is the reason, as a sentence for the
/// program that sent the request.
pub fn decide(policy: &Policy, host: &Host, port: u16, ask: &RequestKind) -> Result<Allowed, String> {
    let mut inside = false;
    let bound = policy.bound(host, port).next().is_some();
    for rule in &policy.hosts {
        if !names(rule, host) || !rule.ports.contains(&port) {
            continue;
        }
        // True if the content of a tunnel to this host is parsed as HTTP, with a separate decision on each
        // request.
        let read = bound || (port == CLEAR_PORT && matches!(host, Host::Name(_)));
        if fits(rule, ask, read) {
            let by_name = matches!(host, Host::Name(_));
            return Ok(Allowed { rule: rule.to_string(), by_name, bound });
        }
        inside |= rule.looks_inside();
    }
    let git = |name: &String| GIT.contains(&name.as_str());
    if policy.presets.contains(&Preset::Git) && port == 443 && matches!(host, Host::Name(name) if git(name)) {
        return Ok(Allowed { rule: Preset::Git.name().into(), by_name: true, bound });
    }
    if policy.open {
        return Ok(Allowed { rule: "open".into(), by_name: false, bound });
    }
    let authority = host.authority(port);
    Err(match (policy.is_closed(), inside, ask) {
        (true, _, _) => format!("{authority}: this sandbox has no network access"),
        (_, true, RequestKind::Tunnel) => format!(
            "{authority}: the rule for this host limits methods or paths, which cannot be checked in an encrypted connection"
        ),
        (_, true, RequestKind::Request { method, path }) => {
            format!("{authority}: the rule for this host does not allow {method} {}", shortened(path))
        }
        (_, false, _) => {
            let mut all = policy.each_word();
            let words: Vec<String> = all.by_ref().take(NAMED_MAX).map(|word| shortened(&word)).collect();
            let more = if all.next().is_some() { ", …" } else { "" };
            let words = words.join(", ");
            format!("{authority}: not allowed by this sandbox's policy; allowed: {words}{more}")
        }
    })
}

/// Truncates and escapes a path, so that it is safe for terminals and logs.
pub fn shortened(path: &str) -> String {
    path.chars().take(120).flat_map(char::escape_default).collect()
}

fn names(rule: &HostRule, host: &Host) -> bool {
    match (rule.parsed(), host) {
        (Ok((named, false)), host) => named == *host,
        (Ok((Host::Name(domain), true)), Host::Name(name)) => {
            name.strip_suffix(&domain).is_some_and(|below| below.ends_with('.'))
        }
        (Ok(_) | Err(_), _) => false,
    }
}

fn fits(rule: &HostRule, ask: &RequestKind, read: bool) -> bool {
    match ask {
        RequestKind::Tunnel => read || !rule.looks_inside(),
        RequestKind::Request { method, path } => {
            let method = rule.methods.as_ref().is_none_or(|methods| methods.contains(method));
            let path = rule
                .paths
                .as_ref()
                .is_none_or(|paths| is_plain_path(path) && paths.iter().any(|one| matches(one, path)));
            method && path
        }
    }
}

fn matches(rule: &str, path: &str) -> bool {
    rule.strip_suffix('*').map_or(rule == path, |prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(words: &[&str], target: &str, ask: &RequestKind) -> bool {
        let (host, port) = Host::with_port(target, None).unwrap();
        decide(&Policy::of_words(words).unwrap(), &host, port, ask).is_ok()
    }

    fn get(path: &str) -> RequestKind {
        RequestKind::Request { method: "GET".into(), path: path.into() }
    }

    #[test]
    fn nothing_is_allowed_that_no_rule_names() {
        // Covers attacks N-05, N-07 and N-20.
        for target in ["a.org:443", "1.2.3.4:443", "[2606::1]:80"] {
            assert!(!allows(&[], target, &RequestKind::Tunnel));
        }
        assert!(allows(&["a.org"], "a.org:443", &RequestKind::Tunnel));
        assert!(allows(&["a.org"], "A.ORG.:80", &get("/")));
        for target in ["a.org:22", "b.a.org:443", "a.org.evil.org:443", "xa.org:443", "org:443"] {
            assert!(!allows(&["a.org"], target, &RequestKind::Tunnel), "{target}");
        }
        assert!(allows(&["*.a.org"], "x.y.a.org:443", &RequestKind::Tunnel));
        for target in ["a.org:443", "xa.org:443", "a.org.b.org:443"] {
            assert!(!allows(&["*.a.org"], target, &RequestKind::Tunnel), "{target}");
        }
        assert!(allows(&["git"], "github.com:443", &RequestKind::Tunnel));
        assert!(!allows(&["git"], "github.com:80", &RequestKind::Tunnel));
        assert!(!allows(&["git"], "evil.github.com:443", &RequestKind::Tunnel));
        assert!(allows(&["open"], "1.2.3.4:1", &RequestKind::Tunnel));
    }

    #[test]
    fn a_rule_for_methods_and_paths_bites_and_lets_nothing_through_that_it_cannot_see() {
        let rule = ["GET a.org/v1/*"];
        assert!(allows(&rule, "a.org:80", &get("/v1/x")));
        for path in ["/v2", "/v1/..;/v2", "/v1/../v2", "/v1/%2e%2e/v2", "/v1//x", "/v1/x\\..", "/v1"] {
            assert!(!allows(&rule, "a.org:80", &get(path)), "{path}");
        }
        let post = RequestKind::Request { method: "POST".into(), path: "/v1/x".into() };
        assert!(!allows(&rule, "a.org:80", &post));
        assert!(!allows(&rule, "a.org:443", &RequestKind::Tunnel));
        // If a secret is bound to the host, each request is inspected.
        let bound = ["GET a.org/v1/*", "secret:API_KEY=a.org"];
        assert!(
            allows(&bound, "a.org:443", &RequestKind::Tunnel) && !allows(&bound, "a.org:443", &get("/v2"))
        );
        assert!(
            !allows(&bound, "b.org:443", &RequestKind::Tunnel)
                && !allows(&bound[1..], "a.org:443", &RequestKind::Tunnel)
        );
        assert!(!allows(&["GET 93.184.216.34:80/public/*"], "93.184.216.34:80", &RequestKind::Tunnel));
        assert!(allows(&["GET a.org/exact"], "a.org:80", &get("/exact")));
        assert!(!allows(&["GET a.org/exact"], "a.org:80", &get("/exactly")));
    }
}

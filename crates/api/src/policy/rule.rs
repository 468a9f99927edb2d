//! Host rules of a policy: one allowed host each, with optional restrictions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::host::Host;

/// Maximum number of ports, methods or paths in one rule.
const PARTS_MAX: usize = 32;
/// Maximum length of a method in a rule.
const METHOD_BYTES_MAX: usize = 32;
/// Maximum length of a path in a rule.
const PATH_BYTES_MAX: usize = 1024;
/// Default ports of a rule: HTTP and HTTPS.
const PORTS: [u16; 2] = [80, 443];

/// Allowed host, with optional restrictions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HostRule {
    /// Host name or address. `*.example.org` matches every name below `example.org`, but not `example.org` itself.
    pub host: String,
    /// List of 1 to 32 allowed ports. Default 80 and 443.
    #[serde(default = "web_ports")]
    pub ports: Vec<u16>,
    /// List of 1 to 32 allowed HTTP methods. If absent, all methods are allowed. Encrypted requests cannot be inspected, so a rule with
    /// methods allows no TLS unless a secret is bound to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// List of 1 to 32 allowed URL paths. If absent, all paths are allowed. A path that ends in `*` is a prefix. A rule with paths allows
    /// no TLS unless a secret is bound to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
}

impl HostRule {
    /// Returns the host of the rule, and true if the rule is a wildcard for all names below this host.
    ///
    /// # Errors
    /// Returns an error if the host is invalid, has no dot (`*.org`), or combines a wildcard with an address.
    pub fn parsed(&self) -> Result<(Host, bool), Error> {
        let (below, wild) = match self.host.strip_prefix("*.") {
            Some(below) => (below, true),
            None => (self.host.as_str(), false),
        };
        match Host::parse(below)? {
            Host::Name(name) if !name.contains('.') => Err(Error::invalid(
                format!("{:?} is neither a preset nor an internet host", self.host),
                "Use a host name that contains a dot, or a preset: python-packages, node-packages, debian-packages, git, open.",
            )),
            Host::Address(_) if wild => Err(Error::invalid(
                format!("a wildcard cannot be used with the address {below}"),
                "Use the address without `*.`.",
            )),
            host @ (Host::Name(_) | Host::Address(_)) => Ok((host, wild)),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.parsed()?;
        let wrong = |what: &str, fix: &str| {
            Err(Error::invalid(format!("the rule for {:?} {what}", self.host), fix.to_owned()))
        };
        if self.ports.is_empty() || self.ports.contains(&0) || self.ports.len() > PARTS_MAX {
            return wrong(
                "has no ports, too many ports, or port 0",
                "List 1 to 32 ports, or omit `ports` for 80 and 443.",
            );
        }
        if let Some(methods) = &self.methods {
            let plain = |method: &String| {
                (1..=METHOD_BYTES_MAX).contains(&method.len())
                    && method.bytes().all(|byte| byte.is_ascii_uppercase())
            };
            if methods.is_empty() || methods.len() > PARTS_MAX || !methods.iter().all(plain) {
                return wrong(
                    "has no methods, too many methods, or an invalid method",
                    "List methods such as GET in upper case, or omit `methods`.",
                );
            }
        }
        if let Some(paths) = &self.paths {
            let sound = |path: &String| {
                let bare = path.strip_suffix('*').unwrap_or(path);
                bare.starts_with('/') && bare.len() <= PATH_BYTES_MAX && is_plain_path(bare)
            };
            if paths.is_empty() || paths.len() > PARTS_MAX || !paths.iter().all(sound) {
                return wrong(
                    "has no paths, too many paths, or an invalid path",
                    "List paths that begin with `/` and contain no `..`, `//`, `%` or `*`, except for one `*` at the end.",
                );
            }
        }
        Ok(())
    }

    /// Returns the rule as words, the format that [`HostRule::from_str`] parses. A word has at most one path, so
    /// there is one word for each path.
    pub(super) fn words(&self) -> impl Iterator<Item = String> {
        let host = Self {
            host: self.host.clone(),
            ports: self.ports.clone(),
            methods: self.methods.clone(),
            paths: None,
        };
        let host = host.to_string();
        let bare = self.paths.is_none().then(|| host.clone());
        bare.into_iter().chain(self.paths.iter().flatten().map(move |path| format!("{host}{path}")))
    }

    /// Returns true if the rule restricts methods or paths, so that the egress broker must inspect each
    /// request to decide.
    pub fn looks_inside(&self) -> bool {
        self.methods.is_some() || self.paths.is_some()
    }
}

impl FromStr for HostRule {
    type Err = Error;

    /// Parses `[METHOD[,METHOD] ]HOST[:PORT[,PORT]][/PATH]`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (methods, rest) = match text.split_once(' ') {
            Some((methods, rest)) => (Some(methods.split(',').map(str::to_owned).collect()), rest),
            None => (None, text),
        };
        let slash = rest.find('/');
        let paths = slash.and_then(|at| rest.get(at..)).map(|path| vec![path.to_owned()]);
        let authority = slash.and_then(|at| rest.get(..at)).unwrap_or(rest);
        let (wild, bare) = match authority.strip_prefix("*.") {
            Some(bare) => ("*.", bare),
            None => ("", authority),
        };
        let (bare, further) = match bare.split_once(',') {
            Some((bare, further)) => (bare, Some(further)),
            None => (bare, None),
        };
        let named = bare.rsplit_once(':').is_some()
            && bare.parse::<std::net::Ipv6Addr>().is_err()
            && !bare.ends_with(']');
        // Without a first port, further ports are an error.
        let (host, port) = Host::with_port(bare, further.is_none().then_some(PORTS[0]))?;
        let mut ports = if named { vec![port] } else { web_ports() };
        for port in further.into_iter().flat_map(|further| further.split(',')) {
            ports.push(crate::ports::number(port)?);
        }
        let rule = Self { host: format!("{wild}{host}"), ports, methods, paths };
        rule.check()?;
        Ok(rule)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(methods) = &self.methods {
            write!(formatter, "{} ", methods.join(","))?;
        }
        let (open, close) =
            if self.host.contains(':') && !self.host.starts_with('[') { ("[", "]") } else { ("", "") };
        write!(formatter, "{open}{}{close}", self.host)?;
        if self.ports != PORTS {
            let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
            write!(formatter, ":{}", ports.join(","))?;
        }
        formatter.write_str(&self.paths.as_deref().unwrap_or_default().join(","))
    }
}

/// Returns true if a path can be interpreted in only one way. A server could resolve a path with `..`, `//`
/// or `%2e` to a path that the rule does not allow.
pub fn is_plain_path(path: &str) -> bool {
    path.bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'\\' | b'?' | b'#' | b'*' | b';'))
        && !path.split('/').skip(1).any(|part| part == "." || part == "..")
        && !path.contains("//")
}

fn web_ports() -> Vec<u16> {
    PORTS.to_vec()
}

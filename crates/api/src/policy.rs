//! Egress policies of sandboxes. An empty policy allows no egress.
//!
//! ```json
//! { "presets": ["python-packages"], "hosts": [ { "host": "api.example.org", "ports": [443] } ] }
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::host::Host;
use crate::limits;
use crate::secret::{self, SecretBinding};

/// Port of the egress proxy, on the loopback interface of every sandbox.
pub const PROXY_PORT: u16 = 3128;
/// Maximum number of host rules in a policy.
pub const HOSTS_MAX: usize = 128;
/// Maximum number of packages of one kind that a policy may list, and maximum length of a package name. The
/// maximum length is npm's.
const PACKAGES_MAX: usize = 1000;
const PACKAGE_BYTES_MAX: usize = 214;
/// Maximum number of ports, methods or paths in one rule.
const PARTS_MAX: usize = 32;
/// Maximum length of a method in a rule.
const METHOD_BYTES_MAX: usize = 32;
/// Maximum size of a policy as JSON. Each sandbox's description and each refusal include the policy.
const POLICY_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a path in a rule.
const PATH_BYTES_MAX: usize = 1024;
/// Default ports of a rule: HTTP and HTTPS.
const PORTS: [u16; 2] = [80, 443];
/// Default and bounds for the number of bytes that a sandbox may send and receive per second.
const BYTES_PER_SECOND: u64 = 64 << 20;
const BYTES_PER_SECOND_BOUNDS: std::ops::RangeInclusive<u64> = 1024..=1 << 34;
/// Default and bounds for the number of bytes that a sandbox may send and receive in total.
const BYTES_MAX: u64 = 64 << 30;
const BYTES_MAX_BOUNDS: std::ops::RangeInclusive<u64> = 1..=1 << 50;

/// Egress policy of a sandbox. An empty policy allows no egress. A policy has at most 64 KiB as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Named sets of hosts that are allowed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub presets: BTreeSet<Preset>,
    /// Allowed hosts. At most 128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostRule>,
    /// Secrets that programs in the sandbox may use, each bound to one destination. At most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretBinding>,
    /// Restrictions for the package presets.
    #[serde(skip_serializing_if = "Packages::is_default")]
    pub packages: Packages,
    /// Allow every host on the internet, except private, link-local and metadata addresses and the addresses of the machine. Requires
    /// `open` in the project's quota.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// Maximum bytes sent and received per second over all connections: 1,024 to 16 GiB. Default 64 MiB.
    pub bytes_per_second: u64,
    /// Maximum total bytes sent and received since the start of the sandbox or of the server, whichever was later. At most 1 PiB. Default
    /// 64 GiB.
    pub bytes_max: u64,
}

/// Restrictions for the package presets. A list of packages must also include their dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Packages {
    /// Allowed Python packages by name, at most 1,000. If absent, all packages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<Vec<String>>,
    /// Allowed npm packages by name, at most 1,000. If absent, all packages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Vec<String>>,
    /// Allowed Debian packages by name, at most 1,000. If absent, all packages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debian: Option<Vec<String>>,
    /// Minimum time since a Python or npm file was published, in milliseconds. Default 0. Most malicious packages are discovered soon after
    /// publication.
    pub minimum_age_ms: u64,
}

/// Package file that a sandbox received: an entry of its lock record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// Renamed because schema names must be unique, and `code::Installed` would otherwise have the same schema
// name.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PackageFile))]
pub struct Installed {
    /// Preset through which the sandbox received the file.
    pub kind: Preset,
    /// Package name.
    pub package: String,
    /// File name.
    pub file: String,
    /// Hash of the file: `sha256:` and hexadecimal digits. For npm, `sha512-` and base64, as in an npm lock file.
    pub hash: String,
    /// True if the server already had the file and did not fetch it for this sandbox.
    pub cached: bool,
    /// Time when the sandbox received the file, Unix time in milliseconds.
    pub at_ms: u64,
}

/// Named set of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Python package index, for pip and uv.
    PythonPackages,
    /// npm registry.
    NodePackages,
    /// Debian archive, for apt.
    DebianPackages,
    /// Public Git hosting services, over HTTPS.
    Git,
}

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

impl Default for Policy {
    fn default() -> Self {
        Self {
            presets: BTreeSet::new(),
            hosts: Vec::new(),
            secrets: Vec::new(),
            packages: Packages::default(),
            open: false,
            bytes_per_second: BYTES_PER_SECOND,
            bytes_max: BYTES_MAX,
        }
    }
}

impl Policy {
    /// Parses a policy from words: presets, `open`, host rules and secret bindings.
    ///
    /// # Errors
    /// Returns an error if a word has none of these forms, or if the resulting policy is invalid.
    pub fn of_words<T: AsRef<str>>(words: &[T]) -> Result<Self, Error> {
        let mut policy = Self::default();
        for word in words.iter().map(AsRef::as_ref) {
            if word.starts_with(secret::WORD) {
                policy.secrets.push(word.parse()?);
                continue;
            }
            let (name, only) = match word.split_once('=') {
                Some((name, only)) => (name, Some(only.split(',').map(str::to_owned).collect::<Vec<_>>())),
                None => (word, None),
            };
            match (name, Preset::from_name(name), only) {
                ("open", _, None) => policy.open = true,
                (_, Some(preset), only) => {
                    policy.presets.insert(preset);
                    if let Some(only) = only {
                        policy.packages.limit(preset, only)?;
                    }
                }
                (_, None, _) => policy.hosts.push(word.parse()?),
            }
        }
        policy.check()?;
        Ok(policy)
    }

    /// Returns the secrets that are bound to this host and port.
    pub fn bound<'a>(&'a self, host: &'a Host, port: u16) -> impl Iterator<Item = &'a SecretBinding> {
        self.secrets.iter().filter(move |binding| binding.is_for(host, port))
    }

    /// Returns true if the policy allows no egress.
    pub fn is_closed(&self) -> bool {
        self.presets.is_empty() && self.hosts.is_empty() && !self.open
    }

    /// Checks the policy.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        if self.hosts.len() > HOSTS_MAX {
            let what = "the number of hosts in a policy";
            return Err(limits::exceeded(what, self.hosts.len() as u64, HOSTS_MAX as u64));
        }
        let bounded = [
            ("bytes_per_second", self.bytes_per_second, BYTES_PER_SECOND_BOUNDS),
            ("bytes_max", self.bytes_max, BYTES_MAX_BOUNDS),
        ];
        for (what, value, bounds) in bounded {
            if !bounds.contains(&value) {
                return Err(Error::invalid(
                    format!(
                        "{what} of the policy is {value}, outside the range {} to {}",
                        bounds.start(),
                        bounds.end()
                    ),
                    "Use a value in this range. To allow no egress at all, omit hosts, presets and `open`.",
                ));
            }
        }
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if bytes > POLICY_BYTES_MAX {
            return Err(limits::exceeded(
                "the size of the policy in bytes",
                bytes as u64,
                POLICY_BYTES_MAX as u64,
            ));
        }
        self.packages.check()?;
        secret::check_bindings(&self.secrets)?;
        self.hosts.iter().try_for_each(HostRule::check)
    }

    /// Returns the policy as words, the format that [`Policy::of_words`] parses.
    pub fn words(&self) -> Vec<String> {
        let open = self.open.then(|| "open".to_owned());
        let presets = self.presets.iter().map(|preset| match self.packages.only(*preset) {
            Some(only) => format!("{}={}", preset.name(), only.join(",")),
            None => preset.name().to_owned(),
        });
        let hosts = self.hosts.iter().map(ToString::to_string);
        let secrets = self.secrets.iter().map(ToString::to_string);
        open.into_iter().chain(presets).chain(hosts).chain(secrets).collect()
    }
}

impl Packages {
    /// Returns the allowed packages of a kind, or `None` if all packages are allowed.
    pub fn only(&self, kind: Preset) -> Option<&Vec<String>> {
        match kind {
            Preset::PythonPackages => self.python.as_ref(),
            Preset::NodePackages => self.node.as_ref(),
            Preset::DebianPackages => self.debian.as_ref(),
            Preset::Git => None,
        }
    }

    fn limit(&mut self, kind: Preset, only: Vec<String>) -> Result<(), Error> {
        match kind {
            Preset::PythonPackages => self.python = Some(only),
            Preset::NodePackages => self.node = Some(only),
            Preset::DebianPackages => self.debian = Some(only),
            Preset::Git => {
                return Err(Error::invalid(
                    "the preset git does not take a list of packages",
                    "List hosts instead.",
                ));
            }
        }
        Ok(())
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), Error> {
        for names in [&self.python, &self.node, &self.debian].into_iter().flatten() {
            if names.len() > PACKAGES_MAX {
                return Err(limits::exceeded(
                    "the number of packages in a policy",
                    names.len() as u64,
                    PACKAGES_MAX as u64,
                ));
            }
            let plain = |name: &&String| {
                let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+@/-".contains(&byte));
                name.is_empty() || name.len() > PACKAGE_BYTES_MAX || !fits
            };
            if let Some(wrong) = names.iter().find(plain) {
                return Err(Error::invalid(
                    format!("{wrong:?} is not a valid package name"),
                    "Use the name that the package has in its index, without a version.",
                ));
            }
        }
        Ok(())
    }
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

    fn check(&self) -> Result<(), Error> {
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

    /// Returns true if the rule restricts methods or paths, so that the egress broker must inspect each
    /// request to decide.
    pub fn looks_inside(&self) -> bool {
        self.methods.is_some() || self.paths.is_some()
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

impl FromStr for HostRule {
    type Err = Error;

    /// Parses `[METHOD[,METHOD] ]HOST[:PORT][/PATH]`.
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
        let named = bare.rsplit_once(':').is_some()
            && bare.parse::<std::net::Ipv6Addr>().is_err()
            && !bare.ends_with(']');
        let (host, port) = Host::with_port(bare, Some(PORTS[0]))?;
        let ports = if named { vec![port] } else { web_ports() };
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
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(formatter, "{open}{}{close}", self.host)?;
        if self.ports != PORTS {
            let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
            write!(formatter, ":{}", ports.join(","))?;
        }
        formatter.write_str(&self.paths.as_deref().unwrap_or_default().join(","))
    }
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 4] = [Self::PythonPackages, Self::NodePackages, Self::DebianPackages, Self::Git];

    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::PythonPackages => "python-packages",
            Self::NodePackages => "node-packages",
            Self::DebianPackages => "debian-packages",
            Self::Git => "git",
        }
    }

    /// Returns the preset with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }
}

fn web_ports() -> Vec<u16> {
    PORTS.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_closed_and_never_open() {
        // Covers attack N-20.
        assert!(Policy::default().is_closed());
        assert!(serde_json::from_str::<Policy>("{}").unwrap().is_closed());
        for body in [
            r#"{"hosts":null}"#,
            r#"{"hosts":[""]}"#,
            r#"{"open":"yes"}"#,
            r#"{"allow":["*"]}"#,
            r#"{"presets":["all"]}"#,
        ] {
            assert!(serde_json::from_str::<Policy>(body).is_err(), "{body}");
        }
        for host in
            ["", "*", ".", "*.", "*.org", "**", "*.*.org", "*.1.2.3.4", "http://a.org", "a.org:80", "a b"]
        {
            let rule = HostRule { host: host.into(), ports: web_ports(), methods: None, paths: None };
            assert!(Policy { hosts: vec![rule], ..Policy::default() }.check().is_err(), "{host:?}");
        }
        for part in [
            r#""ports":[]"#,
            r#""ports":[0]"#,
            r#""methods":[]"#,
            r#""methods":["get"]"#,
            r#""paths":[]"#,
            r#""paths":["x"]"#,
            r#""paths":["/a/../b"]"#,
        ] {
            let policy: Policy =
                serde_json::from_str(&format!(r#"{{"hosts":[{{"host":"a.org",{part}}}]}}"#)).unwrap();
            assert!(policy.check().is_err(), "{part}");
        }
    }

    #[test]
    fn words_are_understood_and_shown_alike() {
        for word in [
            "a.org",
            "*.a.org:8443",
            "GET,HEAD a.org/v1/*",
            "93.184.216.34:22",
            "[2606:2800::1]:443",
            "[2606:2800::1]",
        ] {
            assert_eq!(word.parse::<HostRule>().unwrap().to_string(), word);
        }
        let policy = Policy::of_words(&["git", "a.org", "python-packages"]).unwrap();
        assert_eq!(policy.words(), ["python-packages", "git", "a.org"]);
        let limited = Policy::of_words(&["python-packages=requests,idna", "node-packages"]).unwrap();
        assert_eq!(limited.words(), ["python-packages=requests,idna", "node-packages"]);
        assert_eq!(limited.packages.only(Preset::PythonPackages).unwrap(), &["requests", "idna"]);
        assert!(Policy::of_words(&["python-packages="]).is_err() && Policy::of_words(&["git=x"]).is_err());
        let bound = Policy::of_words(&["a.org", "secret:API_KEY@x-api-key=a.org/v1"]).unwrap();
        assert_eq!(bound.words(), ["a.org", "secret:API_KEY@x-api-key=a.org/v1"]);
        assert_eq!(bound.bound(&Host::parse("a.org").unwrap(), 443).count(), 1);
        assert_eq!(bound.bound(&Host::parse("a.org").unwrap(), 8443).count(), 0);
        assert!(Policy::of_words(&["open"]).unwrap().open);
        for word in ["", "*", "GET", "get a.org", "a.org:", "https://a.org", "a.org/%2e"] {
            assert!(Policy::of_words(&[word]).is_err(), "{word:?}");
        }
    }
}

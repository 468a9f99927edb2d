//! Egress policies of sandboxes. An empty policy allows no egress.
//!
//! ```json
//! { "presets": ["python-packages"], "hosts": [ { "host": "api.example.org", "ports": [443] } ] }
//! ```

mod preset;
mod rule;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::host::Host;
use crate::limits;
use crate::secret::{self, SecretBinding};

pub use preset::{Installed, Packages, Preset};
pub use rule::{HostRule, is_plain_path};

/// Port of the egress proxy, on the loopback interface of every sandbox.
pub const PROXY_PORT: u16 = 3128;
/// Maximum number of host rules in a policy.
pub const HOSTS_MAX: usize = 128;
/// Maximum size of a policy as JSON. Each sandbox's description and each refusal include the policy.
const POLICY_BYTES_MAX: usize = 64 << 10;
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
        self.each_word().collect()
    }

    /// Returns the words of [`Policy::words`] one at a time. There can be thousands of them.
    pub fn each_word(&self) -> impl Iterator<Item = String> {
        let open = self.open.then(|| "open".to_owned());
        let presets = self.presets.iter().map(|preset| match self.packages.only(*preset) {
            Some(only) => format!("{}={}", preset.name(), only.join(",")),
            None => preset.name().to_owned(),
        });
        let hosts = self.hosts.iter().flat_map(HostRule::words);
        let secrets = self.secrets.iter().map(ToString::to_string);
        open.into_iter().chain(presets).chain(hosts).chain(secrets)
    }
}

#[cfg(test)]
mod fuzz;
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
            let rule = HostRule { host: host.into(), ports: vec![443], methods: None, paths: None };
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
    fn a_rule_with_several_ports_and_paths_is_shown_as_words_that_are_understood() {
        let rule = HostRule {
            host: "[::1]".into(),
            ports: vec![443, 8443],
            methods: Some(vec!["GET".into()]),
            paths: Some(vec!["/a,/b".into(), "/c/*".into()]),
        };
        let policy = Policy { hosts: vec![rule], ..Policy::default() };
        policy.check().unwrap();
        assert_eq!(policy.words(), ["GET [::1]:443,8443/a,/b", "GET [::1]:443,8443/c/*"]);
        let again = Policy::of_words(&policy.words()).unwrap();
        assert_eq!(again.words(), policy.words());
    }

    #[test]
    fn a_list_of_packages_names_a_package() {
        let policy = |only| Policy {
            presets: BTreeSet::from([Preset::PythonPackages]),
            packages: Packages { python: Some(only), ..Packages::default() },
            ..Policy::default()
        };
        assert!(policy(Vec::new()).check().is_err());
        assert!(policy(vec!["requests".into()]).check().is_ok());
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
        for word in ["a.org:443,8443/v1", "[::1]:1,2"] {
            assert_eq!(word.parse::<HostRule>().unwrap().to_string(), word);
        }
        for word in ["a.org,443", "a.org:443,", "a.org:443,0", "a.org:443,x", "::1,443"] {
            assert!(word.parse::<HostRule>().is_err(), "{word:?}");
        }
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

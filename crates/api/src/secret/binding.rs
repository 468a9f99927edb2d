//! Bindings of secrets: the destinations to which a policy lets the broker send a secret.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::check_name;
use crate::error::Error;
use crate::host::Host;
use crate::limits;

/// Maximum number of secrets that one policy may bind.
pub const BOUND_MAX: usize = 32;
/// Prefix of policy words that bind a secret.
pub const WORD: &str = "secret:";
const HEADER_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 1024;
/// Default port of a binding.
const PORT: u16 = 443;
/// Port of unencrypted HTTP.
const CLEAR_PORT: u16 = 80;
const PATH: &str = "/";
const HEADER: &str = "authorization";
/// Headers that cannot carry a secret because they have a different purpose in HTTP.
const NOT_HEADERS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "if-range",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Destination of a secret: the only place where the placeholder is replaced by the value of the secret. The connection must use TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretBinding {
    /// Secret name.
    pub name: String,
    /// Exact host name. A rule of the policy must also allow this host.
    pub host: String,
    /// Port. Default 443.
    #[serde(default = "port")]
    pub port: u16,
    /// Path of the requests; paths below this path match too. Default `/`.
    #[serde(default = "path")]
    pub path: String,
    /// Header in which the placeholder is replaced. Default `authorization`.
    #[serde(default = "header")]
    pub header: String,
}

impl SecretBinding {
    /// Returns true if the secret is bound to this host and port.
    pub fn is_for(&self, host: &Host, port: u16) -> bool {
        self.port == port && matches!(host, Host::Name(name) if *name == self.host)
    }

    /// Checks the binding.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        let wrong =
            |what: String, fix: &str| Err(Error::invalid(format!("the secret {} {what}", self.name), fix));
        match Host::parse(&self.host)? {
            Host::Name(name) if name == self.host && name.contains('.') => {}
            Host::Name(_) | Host::Address(_) => {
                return wrong(
                    format!("is bound to {:?}, which is not an exact host name", self.host),
                    "Use the name of one internet host in lower case. Its certificate must be valid for that name.",
                );
            }
        }
        if self.port == 0 || self.port == CLEAR_PORT {
            return wrong(
                format!("cannot be bound to port {}", self.port),
                "Use a port on which the host speaks TLS. Secrets are sent only over TLS.",
            );
        }
        let sound = self.path.starts_with('/')
            && self.path.len() <= PATH_BYTES_MAX
            && crate::policy::is_plain_path(&self.path);
        if !sound {
            return wrong(
                format!("cannot be bound to the path {:?}", self.path.chars().take(100).collect::<String>()),
                "Use a path that begins with `/` and contains no `..`, `//`, `%`, `;` or `*`.",
            );
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let header = !self.header.is_empty() && self.header.len() <= HEADER_BYTES_MAX;
        let needed = NOT_HEADERS.contains(&self.header.as_str()) || self.header.starts_with("proxy-");
        if !header || !self.header.bytes().all(plain) || needed {
            return wrong(
                format!(
                    "cannot be bound to the header {:?}",
                    self.header.chars().take(100).collect::<String>()
                ),
                "Use a header such as authorization or x-api-key, in lower case.",
            );
        }
        Ok(())
    }
}

impl FromStr for SecretBinding {
    type Err = Error;

    /// Parses `secret:NAME[@HEADER]=HOST[:PORT][/PATH]`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = text.strip_prefix(WORD).and_then(|rest| rest.split_once('='));
        let Some((what, place)) = parts else {
            return Err(Error::invalid(
                format!("{text:?} is not a valid secret binding"),
                "Write secret:NAME=HOST, secret:NAME=HOST:PORT/PATH or secret:NAME@HEADER=HOST.",
            ));
        };
        let (name, header) = what.split_once('@').unwrap_or((what, HEADER));
        let slash = place.find('/').unwrap_or(place.len());
        let (authority, path) = place.split_at(slash);
        let (host, port) = Host::with_port(authority, Some(PORT))?;
        let binding = Self {
            name: name.into(),
            host: host.to_string(),
            port,
            path: if path.is_empty() { PATH.into() } else { path.into() },
            header: header.to_ascii_lowercase(),
        };
        binding.check()?;
        Ok(binding)
    }
}

impl fmt::Display for SecretBinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{WORD}{}", self.name)?;
        if self.header != HEADER {
            write!(formatter, "@{}", self.header)?;
        }
        write!(formatter, "={}", self.host)?;
        if self.port != PORT {
            write!(formatter, ":{}", self.port)?;
        }
        if self.path != PATH {
            formatter.write_str(&self.path)?;
        }
        Ok(())
    }
}

/// Checks the bindings of a policy, including how many there are.
///
/// # Errors
/// Returns an error if there are too many bindings, or an error that names the first invalid field.
pub fn check_bindings(bindings: &[SecretBinding]) -> Result<(), Error> {
    if bindings.len() > BOUND_MAX {
        let what = "the number of secrets in a policy";
        return Err(limits::exceeded(what, bindings.len() as u64, BOUND_MAX as u64));
    }
    bindings.iter().try_for_each(SecretBinding::check)
}

fn port() -> u16 {
    PORT
}

fn path() -> String {
    PATH.into()
}

fn header() -> String {
    HEADER.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_bind_are_understood_and_shown_alike() {
        for word in [
            "secret:API_KEY=api.example.org",
            "secret:API_KEY=api.example.org/v1",
            "secret:API_KEY=api.example.org:8443/v1/x",
            "secret:API_KEY@x-api-key=api.example.org",
        ] {
            assert_eq!(word.parse::<SecretBinding>().unwrap().to_string(), word);
        }
        let made: SecretBinding =
            serde_json::from_str(r#"{"name":"API_KEY","host":"api.example.org"}"#).unwrap();
        assert_eq!(made, "secret:API_KEY=api.example.org".parse().unwrap());
        for word in [
            "secret:",
            "secret:API_KEY",
            "secret:=a.org",
            "secret:API_KEY=",
            "secret:API_KEY=*.a.org",
            "secret:API_KEY=1.2.3.4",
            "secret:API_KEY=localhost",
            "secret:API_KEY=a.org:80",
            "secret:API_KEY=a.org:0",
            "secret:API_KEY=a.org/../x",
            "secret:API_KEY=a.org/%2e",
            "secret:API_KEY=a.org/v1/*",
            "secret:API_KEY@host=a.org",
            "secret:API_KEY@=a.org",
            "secret:API_KEY@x key=a.org",
            "secret:PATH=a.org",
            "secret:api_key=a.org",
        ] {
            assert!(word.parse::<SecretBinding>().is_err(), "{word}");
        }
    }
}

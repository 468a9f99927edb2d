//! Secrets: values that code in a sandbox can use and never sees.
//!
//! A project keeps a value under a name. A policy binds the name to one place: a host, a port, a path and a header. Inside there is a
//! variable of that name whose value is a placeholder; only on its way to that place does the placeholder become the value.
//!
//! ```json
//! { "hosts": [ { "host": "api.example.org" } ], "secrets": [ { "name": "API_KEY", "host": "api.example.org", "path": "/v1" } ] }
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::host::Host;
use crate::limits;

/// Secrets that one policy binds.
pub const BOUND_MAX: usize = 32;
/// Secrets of one project.
pub const SECRETS_MAX: u64 = 1000;
/// The length of a value, in bytes. What is shorter could stand in an answer by chance; what is longer fits no header.
pub const VALUE_BYTES: std::ops::RangeInclusive<usize> = 8..=8 << 10;
/// Where programs inside find whom to trust, if their policy binds a secret. They cannot change it.
pub const TRUST_FILE: &str = "/.belljar/spool/authorities.pem";
/// The variables by which they are told so.
pub const TRUST_VARIABLES: [&str; 7] = [
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];
/// How words of a policy begin that bind a secret.
pub const WORD: &str = "secret:";

const NAME_BYTES_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 1024;
/// The port of a binding that names none.
const PORT: u16 = 443;
/// HTTP in the clear.
const CLEAR_PORT: u16 = 80;
const PATH: &str = "/";
const HEADER: &str = "authorization";
/// Variables that programs inside need for something else, and those by which they are told whom to trust.
const TAKEN: [&str; 33] = [
    "ALL_PROXY",
    "AWS_CA_BUNDLE",
    "BASH_ENV",
    "CDPATH",
    "CURL_CA_BUNDLE",
    "ENV",
    "FTP_PROXY",
    "GIT_SSL_CAINFO",
    "HOME",
    "HOSTNAME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "IFS",
    "LANG",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "NODE_OPTIONS",
    "NODE_USE_ENV_PROXY",
    "NO_PROXY",
    "OLDPWD",
    "PATH",
    "PIP_CERT",
    "PROMPT_COMMAND",
    "PWD",
    "REQUESTS_CA_BUNDLE",
    "SHELL",
    "SHLVL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
];
/// Likewise, all that begin so: what loaders, interpreters and Belljar itself read.
const TAKEN_BEFORE: [&str; 9] =
    ["BELLJAR_", "DYLD_", "GCONV_", "GLIBC_", "LC_", "LD_", "MALLOC_", "PERL5", "PYTHON"];
/// Headers that a request needs for something else.
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

/// What is told of a secret. Its value is told to nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Its name, which is that of the variable inside.
    pub name: String,
    /// When it was first set, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// When it was last given a value.
    pub changed_at_ms: u64,
}

/// The value to keep.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// 8 bytes to 8 KiB of text without control characters. It cannot be read back.
    pub value: String,
}

/// Where a secret goes: the one place where its placeholder becomes its value. Only over TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretBinding {
    /// The name of the secret.
    pub name: String,
    /// The name of the host, exactly. A rule of the policy has to allow it too.
    pub host: String,
    /// Its port, 443 unless it says another.
    #[serde(default = "port")]
    pub port: u16,
    /// The path that requests have to be for, or to be below of.
    #[serde(default = "path")]
    pub path: String,
    /// The header in which the placeholder is replaced.
    #[serde(default = "header")]
    pub header: String,
}

impl fmt::Debug for PutSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PutSecret([secret])")
    }
}

impl PutSecret {
    /// Refuses what cannot be the value of a header, without a word of it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Error> {
        let length = self.value.len();
        if !VALUE_BYTES.contains(&length) {
            let (least, most) = (VALUE_BYTES.start(), VALUE_BYTES.end());
            return Err(Error::invalid(
                format!("the value has {length} bytes, which is not from {least} to {most}"),
                "Set a value of that length: one that is shorter could stand in an answer by chance.",
            ));
        }
        if self.value.chars().any(char::is_control) {
            return Err(Error::invalid(
                "the value has a control character in it, such as the end of a line",
                "Set a value of one line: it is sent in a header.",
            ));
        }
        if self.value.starts_with(' ') || self.value.ends_with(' ') {
            return Err(Error::invalid("the value begins or ends with a space", "Set it without."));
        }
        Ok(())
    }
}

/// Refuses what is no name of a secret.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_uppercase());
    if !first || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        return Err(Error::invalid(
            format!("{shown:?} is not the name of a secret"),
            format!(
                "Use up to {NAME_BYTES_MAX} of A to Z, 0 to 9 and _, the first of them a letter: API_KEY."
            ),
        ));
    }
    if TAKEN.contains(&name) || TAKEN_BEFORE.iter().any(|begin| name.starts_with(begin)) {
        return Err(Error::invalid(
            format!("{name} is a variable that programs inside need for something else"),
            "Choose another name: it is the variable's name inside.",
        ));
    }
    Ok(())
}

impl SecretBinding {
    /// Whether this is the host and the port that it is for.
    pub fn is_for(&self, host: &Host, port: u16) -> bool {
        self.port == port && matches!(host, Host::Name(name) if *name == self.host)
    }

    /// Refuses what is no binding, by name.
    ///
    /// # Errors
    /// The first thing wrong with it.
    pub fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        let wrong =
            |what: String, fix: &str| Err(Error::invalid(format!("the secret {} {what}", self.name), fix));
        match Host::parse(&self.host)? {
            Host::Name(name) if name == self.host && name.contains('.') => {}
            Host::Name(_) | Host::Address(_) => {
                return wrong(
                    format!("is bound to {:?}, which is not the exact name of a host", self.host),
                    "Name one host of the internet in small letters: its certificate has to be for that name.",
                );
            }
        }
        if self.port == 0 || self.port == CLEAR_PORT {
            return wrong(
                format!("is bound to port {}", self.port),
                "Name a port on which the host speaks TLS: a secret is sent no other way.",
            );
        }
        let sound = self.path.starts_with('/')
            && self.path.len() <= PATH_BYTES_MAX
            && crate::policy::is_plain_path(&self.path);
        if !sound {
            return wrong(
                format!("is bound to the path {:?}", self.path.chars().take(100).collect::<String>()),
                "Name a path that begins with `/` and has no `..`, `//`, `%`, `;` or `*` in it.",
            );
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let header = !self.header.is_empty() && self.header.len() <= HEADER_BYTES_MAX;
        let needed = NOT_HEADERS.contains(&self.header.as_str()) || self.header.starts_with("proxy-");
        if !header || !self.header.bytes().all(plain) || needed {
            return wrong(
                format!("is bound to the header {:?}", self.header.chars().take(100).collect::<String>()),
                "Name a header such as authorization or x-api-key, in small letters.",
            );
        }
        Ok(())
    }
}

/// Refuses too many of them, and what is none.
///
/// # Errors
/// The first thing wrong.
pub fn check_bindings(bindings: &[SecretBinding]) -> Result<(), Error> {
    if bindings.len() > BOUND_MAX {
        let what = "the number of secrets in a policy";
        return Err(limits::exceeded(what, bindings.len() as u64, BOUND_MAX as u64));
    }
    bindings.iter().try_for_each(SecretBinding::check)
}

impl FromStr for SecretBinding {
    type Err = Error;

    /// `secret:NAME[@HEADER]=HOST[:PORT][/PATH]`
    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = text.strip_prefix(WORD).and_then(|rest| rest.split_once('='));
        let Some((what, place)) = parts else {
            return Err(Error::invalid(
                format!("{text:?} binds no secret"),
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
    fn a_name_is_a_variable_that_nobody_needs_for_something_else() {
        for name in ["API_KEY", "A", "OPENAI_API_KEY", "TOKEN2", "GITHUB_TOKEN", "PATHS"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "A".repeat(65);
        for name in [
            "",
            "a",
            "api_key",
            "2A",
            "_A",
            "A-B",
            "A B",
            "A=B",
            "Ä",
            "PATH",
            "HOME",
            "LD_PRELOAD",
            "PYTHONPATH",
            "HTTPS_PROXY",
            "BELLJAR_KEY",
            "SSL_CERT_FILE",
            &long,
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_value_is_one_line_for_a_header_and_is_never_shown() {
        // S-06
        let check = |value: &str| PutSecret { value: value.into() }.check();
        assert!(
            check("12345678").is_ok()
                && check(&"x".repeat(8192)).is_ok()
                && check("mit ä und Leerzeichen").is_ok()
        );
        for value in [
            "",
            "1234567",
            &"x".repeat(8193),
            "1234\n5678",
            "1234\r5678",
            "1234\u{0}5678",
            "canary-value ",
            "\tcanary-value",
        ] {
            let error = check(value).unwrap_err();
            assert!(value.len() < 2 || !format!("{error:?}").contains(value), "{error:?}");
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
        let shown = format!("{:?}", PutSecret { value: "canary-value".into() });
        assert!(!shown.contains("canary"), "{shown}");
    }

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

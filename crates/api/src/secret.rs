//! Secrets: values that code in a sandbox can use but cannot read.
//!
//! A project stores a value under a name. A policy binds the name to one destination: a host, a port, a path
//! and a header. In the sandbox, the environment variable with this name contains a placeholder. The broker
//! replaces the placeholder with the value only in requests to this destination.
//!
//! ```json
//! { "hosts": [ { "host": "api.example.org" } ],
//!   "secrets": [ { "name": "API_KEY", "host": "api.example.org", "path": "/v1" } ] }
//! ```

mod binding;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

pub use binding::{BOUND_MAX, SecretBinding, WORD, check_bindings};

/// Maximum number of secrets of one project.
pub const SECRETS_MAX: u64 = 1000;
/// Allowed lengths of a value in bytes. A shorter value could occur in a response by chance, where it would
/// be masked; a longer value does not fit into a header.
pub const VALUE_BYTES: std::ops::RangeInclusive<usize> = 8..=8 << 10;
/// File in the sandbox with the trusted certificate authorities, used if the policy binds a secret. User code
/// cannot change this file.
pub const TRUST_FILE: &str = "/.bellglass/spool/authorities.pem";
/// Environment variables that point programs to [`TRUST_FILE`].
pub const TRUST_VARIABLES: [&str; 7] = [
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];
/// Minimum estimated entropy of a value in bits. With less entropy, code could find the value within years by
/// sending guesses to a host that echoes them (see [`PutSecret::guessable`]).
const GUESS_BITS: f64 = 64.0;
/// Minimum number of distinct characters in a value. Random values of sufficient length have more.
const DISTINCT_MIN: usize = 6;

const NAME_BYTES_MAX: usize = 64;
/// Reserved variables. Programs in the sandbox use them for other purposes, such as finding trusted
/// authorities.
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
/// Prefixes of reserved variables. Loaders, interpreters and Bellglass itself read variables with these
/// prefixes.
const TAKEN_BEFORE: [&str; 9] =
    ["BELLGLASS_", "DYLD_", "GCONV_", "GLIBC_", "LC_", "LD_", "MALLOC_", "PERL5", "PYTHON"];

/// Secret without its value. Values are never returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Secret name, which is also the name of the environment variable in the sandbox.
    pub name: String,
    /// Creation time, Unix time in milliseconds.
    pub created_at_ms: u64,
    /// Time of the last change of the value, Unix time in milliseconds.
    pub changed_at_ms: u64,
}

/// Value of a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// Value: 8 bytes to 8 KiB of text, without control characters and without leading or trailing spaces. It cannot be read back.
    pub value: String,
}

impl fmt::Debug for PutSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PutSecret([secret])")
    }
}

impl PutSecret {
    /// Checks that the value can be sent in a header. The error does not contain any part of the value.
    ///
    /// # Errors
    /// Returns an error if the value is not valid. The error states the first reason.
    pub fn check(&self) -> Result<(), Error> {
        let length = self.value.len();
        if !VALUE_BYTES.contains(&length) {
            let (least, most) = (VALUE_BYTES.start(), VALUE_BYTES.end());
            return Err(Error::invalid(
                format!("the value has {length} bytes, but it must have {least} to {most} bytes"),
                format!(
                    "Use a value of {least} to {most} bytes. A shorter value could occur in a response by chance."
                ),
            ));
        }
        if self.value.chars().any(char::is_control) {
            return Err(Error::invalid(
                "the value contains a control character, such as a line break",
                "Use a value without line breaks and other control characters, because it is sent in a header.",
            ));
        }
        if self.value.starts_with(' ') || self.value.ends_with(' ') {
            return Err(Error::invalid("the value begins or ends with a space", "Remove the space."));
        }
        Ok(())
    }

    /// Returns the reason why the value is easy to guess, or `None`. The value is masked in responses from
    /// the bound host. Code that makes the host echo a guess can therefore see whether the guess is correct,
    /// at a rate of about a hundred thousand guesses per second. This check does not detect dictionary words.
    pub fn guessable(&self) -> Option<&'static str> {
        let bytes = self.value.as_bytes();
        let distinct = bytes.iter().collect::<std::collections::BTreeSet<_>>().len();
        let has = |is_one: fn(&u8) -> bool, count: u32| if bytes.iter().any(is_one) { count } else { 0 };
        let letters = has(u8::is_ascii_digit, 10)
            + has(u8::is_ascii_lowercase, 26)
            + has(u8::is_ascii_uppercase, 26)
            + has(|byte| !byte.is_ascii_alphanumeric(), 32);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bits = bytes.len() as f64 * f64::from(letters).log2();
        if bytes.iter().all(u8::is_ascii_digit) && bits < GUESS_BITS * 2.0 {
            Some("it has only digits")
        } else if bits < GUESS_BITS {
            Some("it is short")
        } else if distinct < DISTINCT_MIN {
            Some("it has few different characters")
        } else {
            None
        }
    }
}

/// Checks a secret name.
///
/// # Errors
/// Returns an error if the name is not valid or is reserved.
pub fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_uppercase());
    if !first || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        return Err(Error::invalid(
            format!("{shown:?} is not a valid secret name"),
            format!(
                "Use up to {NAME_BYTES_MAX} characters from A to Z, 0 to 9 and _, starting with a letter, such as API_KEY."
            ),
        ));
    }
    if TAKEN.contains(&name) || TAKEN_BEFORE.iter().any(|begin| name.starts_with(begin)) {
        return Err(Error::invalid(
            format!("{name} is reserved: programs in the sandbox use this variable for something else"),
            "Choose another name. The sandbox gets an environment variable of the same name.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_can_be_guessed_is_known_for_it() {
        // Covers attack N-37.
        let guessable = |value: &str| PutSecret { value: value.into() }.guessable().is_some();
        for value in [
            "48201937",
            "4820193748201937",
            "password",
            "Tr0ub4dor",
            "aaaaaaaaaaaaaaaaaaaaaaaa",
            "abababababababab",
        ] {
            assert!(guessable(value), "{value}");
        }
        for value in [
            "sk-an-example-0123456789",
            "9f86d081884c7d659a2feaa0c55ad015",
            "canary/5f0e9c2b+77d1",
            "ghp_16C7e42F292c6912E7",
        ] {
            assert!(!guessable(value), "{value}");
        }
    }

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
            "BELLGLASS_API_KEY",
            "SSL_CERT_FILE",
            &long,
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_value_is_one_line_for_a_header_and_is_never_shown() {
        // Covers attack S-06.
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
}

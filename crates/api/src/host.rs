//! Host names and addresses in the canonical form that Bellglass matches, resolves and dials.
//!
//! If a host could be written in two ways, the second form could bypass a rule. The parser therefore rejects
//! ambiguous names instead of interpreting them: a name must consist of plain ASCII labels separated by dots,
//! and is stored in lower case. Addresses are accepted only as four decimal numbers or as IPv6 without a
//! zone. Forms such as `0x7f.1` and `2130706433`, which some libraries accept as addresses, are rejected.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;

/// Maximum lengths of a DNS name and of a DNS label, in bytes.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Host in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// Name in lower case, without a trailing dot.
    Name(String),
    /// IP address.
    Address(IpAddr),
}

impl Host {
    /// Parses a host as it appears in a request: a name, an IPv4 address, or an IPv6 address with or without
    /// brackets.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid host.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let shown: String = text.chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
            Error::invalid(
                format!("\"{shown}\" is not a valid host name"),
                "Use a name of letters, digits, hyphens and dots (international names as xn--…), or an IP address.",
            )
        };
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(bare) = bare {
            return bare
                .parse::<Ipv6Addr>()
                .map(|address| Self::Address(address.into()))
                .map_err(|_| wrong());
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let last = name.rsplit('.').next().unwrap_or_default();
        // If the last label is numeric, some libraries parse the text as an address and others as a name.
        let numeric = last.starts_with(|first: char| first.is_ascii_digit())
            && (last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x"));
        let sound = name.len() <= NAME_BYTES_MAX && !numeric && name.split('.').all(is_label);
        if sound { Ok(Self::Name(name)) } else { Err(wrong()) }
    }

    /// Parses a host with an optional port. If the text has no port, `port` is used.
    ///
    /// # Errors
    /// Returns an error if the host or the port is invalid, or there is neither a port nor a default.
    pub fn with_port(text: &str, port: Option<u16>) -> Result<(Self, u16), Error> {
        let wrong = |message: String| {
            Error::invalid(message, "Write HOST or HOST:PORT, without a scheme such as http://.")
        };
        let after = text.rfind(']').map_or(0, |at| at + 1);
        let colon = text.get(after..).and_then(|rest| rest.find(':')).map(|at| at + after);
        let (host, number) = match colon {
            // A bare IPv6 address contains more than one colon but no port.
            Some(_) if text.parse::<Ipv6Addr>().is_ok() => (text, None),
            Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
            None => (text, None),
        };
        let port = match number {
            Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                number.parse().ok().filter(|port| *port != 0)
            }
            Some(_) => None,
            None => port,
        };
        let host = Self::parse(host)?;
        let port = port.ok_or_else(|| wrong(format!("{host} has no valid port")))?;
        Ok((host, port))
    }

    /// Returns the host and port in the format of the authority in a request.
    pub fn authority(&self, port: u16) -> String {
        match self {
            Self::Address(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            Self::Address(IpAddr::V4(_)) | Self::Name(_) => format!("{self}:{port}"),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Address(address) => address.fmt(formatter),
        }
    }
}

impl From<Ipv4Addr> for Host {
    fn from(address: Ipv4Addr) -> Self {
        Self::Address(address.into())
    }
}

fn is_label(label: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = label.as_bytes();
    bytes.len() <= LABEL_BYTES_MAX
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_host_has_one_form() {
        for (text, form) in [
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("93.184.216.34", "93.184.216.34"),
            ("[2606:2800::1]", "2606:2800::1"),
            ("2606:2800:0::1", "2606:2800::1"),
        ] {
            assert_eq!(Host::parse(text).unwrap().to_string(), form);
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_host() {
        // Covers attacks N-02 and N-15.
        let long = format!("{}.example", "a".repeat(64));
        let longer = format!("{}example", "a.".repeat(125));
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a.org..",
            "*",
            "a b",
            "a\tb",
            "a\0.example.org",
            "a%00.org",
            "a\r\nb",
            "a\u{7f}b",
            "user@example.org",
            "a_b.example.org",
            "-a.org",
            "a-.org",
            "b\u{fc}cher.example",
            "ex\u{430}mple.org",
            "127.1",
            "0177.0.0.1",
            "0x7f000001",
            "0x7f.0.0.1",
            "2852039166",
            "1.2.3.4.",
            "1.2.3",
            "[::1%lo]",
            "::1%lo",
            "[1.2.3.4]",
            "[::1",
            "http://a",
            "a/b",
            "a\\b",
            "a:80",
            "\u{3002}",
            "a\u{3002}org",
            &long,
            &longer,
        ] {
            assert!(Host::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_port_is_a_number_after_the_host() {
        let parsed = |text| Host::with_port(text, Some(80)).map(|(host, port)| host.authority(port));
        for (text, form) in [
            ("a.org", "a.org:80"),
            ("a.org:443", "a.org:443"),
            ("A.org.:8443", "a.org:8443"),
            ("[::1]:443", "[::1]:443"),
            ("::1", "[::1]:80"),
            ("1.2.3.4:1", "1.2.3.4:1"),
        ] {
            assert_eq!(parsed(text).unwrap(), form);
        }
        for text in
            ["a.org:", "a.org:0", "a.org:65536", "a.org:+80", "a.org:80:80", "a.org: 80", ":80", "[::1]443"]
        {
            assert!(parsed(text).is_err(), "{text:?}");
        }
        assert!(Host::with_port("a.org", None).is_err());
    }

    proptest! {
        #[test]
        fn the_form_of_a_form_is_itself(text in "\\PC{0,40}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()).unwrap(), host);
            }
        }
    }
}

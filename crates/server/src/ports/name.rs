//! Ports' host names: `{port}-{sandbox}.{domain}`.
//!
//! Each request has at most one authority (a host with an optional port), in a single spelling. A request
//! with two different authorities or an invalid one is rejected before routing.

use std::str::FromStr;

use api::{Error, SandboxId};
use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::Authority;

use crate::rejection::Answer;

/// First label of the API's host name. It is for clients that know only the domain, such as E2B's SDKs. No
/// port has this name.
const API_LABEL: &str = "api";
/// Default domain. Browsers and curl resolve names below `localhost` to the local machine, without DNS.
const DEFAULT: &str = "sandbox.localhost";

/// Domain of the ports' host names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Whether ports are reached over HTTPS. `None` means that this is not configured and depends on the
    /// connection.
    encrypted: Option<bool>,
    host: String,
    /// TCP port in the URLs of sandbox ports, if it is configured.
    port: Option<u16>,
}

/// Meaning of a host name.
#[derive(Debug, PartialEq, Eq)]
pub enum Named {
    /// The API.
    Api,
    /// A port of a sandbox.
    Port {
        /// Port number.
        port: u16,
        /// ID of the sandbox.
        sandbox: SandboxId,
    },
    /// A name below the ports' domain that belongs to no port.
    Nothing,
}

impl Default for Domain {
    fn default() -> Self {
        Self { encrypted: None, host: DEFAULT.into(), port: None }
    }
}

impl FromStr for Domain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(
                format!("the domain for ports is {text:?}, which is not a valid domain"),
                "Use a domain such as `sandboxes.example.com`, with https:// in front if a proxy terminates TLS for it.",
            )
        };
        let (encrypted, rest) = match text.split_once("://") {
            Some(("https", rest)) => (Some(true), rest),
            Some(("http", rest)) => (Some(false), rest),
            Some(_) => return Err(wrong()),
            None => (None, text),
        };
        let authority: Authority = rest.parse().map_err(|_| wrong())?;
        let host = authority.host().to_ascii_lowercase();
        let plain = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        // There are no names below a numeric address.
        let numeric =
            host.split('.').next_back().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_plain(&authority) || numeric || !host.split('.').all(plain) {
            return Err(wrong());
        }
        Ok(Self { encrypted, port: authority.port_u16(), host })
    }
}

impl Domain {
    /// Returns whether ports are reached over HTTPS, or `None` if this is not configured.
    pub fn encrypted(&self) -> Option<bool> {
        self.encrypted
    }

    /// Returns the meaning of the host name in this authority.
    pub fn named(&self, authority: &str) -> Named {
        let host = authority.parse::<Authority>().map(|parsed| parsed.host().to_ascii_lowercase());
        let host = host.unwrap_or_default();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let Some(label) = host.strip_suffix(self.host.as_str()).and_then(|rest| rest.strip_suffix('.'))
        else {
            return Named::Api;
        };
        if label == API_LABEL {
            return Named::Api;
        }
        let named = label.split_once('-').and_then(|(port, sandbox)| {
            Some(Named::Port { port: api::ports::number(port).ok()?, sandbox: sandbox.parse().ok()? })
        });
        named.unwrap_or(Named::Nothing)
    }

    /// Returns the authority of a sandbox port without its first label: the domain, and the TCP port unless
    /// it is the scheme's default. `reached` is the authority through which the client reached the server.
    pub fn authority(&self, reached: &str, encrypted: bool) -> String {
        let usual = if self.encrypted.unwrap_or(encrypted) { 443 } else { 80 };
        // A configured scheme makes the configuration complete, so the request's TCP port is ignored.
        let reached = reached.parse::<Authority>().ok().and_then(|reached| reached.port_u16());
        let outer = self.port.or(if self.encrypted.is_some() { None } else { reached }).unwrap_or(usual);
        if outer == usual { self.host.clone() } else { format!("{}:{outer}", self.host) }
    }

    /// Returns the URL of a sandbox port, for a client that reached the server through the authority
    /// `reached`.
    pub fn url(&self, port: u16, sandbox: &SandboxId, reached: &str, encrypted: bool) -> String {
        let scheme = if self.encrypted.unwrap_or(encrypted) { "https" } else { "http" };
        format!("{scheme}://{port}-{sandbox}.{}", self.authority(reached, encrypted))
    }
}

/// Returns a request's authority, if it has one.
///
/// # Errors
/// Returns an error if the request has two different authorities or an invalid one.
pub fn authority(parts: &Parts) -> Answer<Option<String>> {
    let wrong =
        || Error::invalid("the request has no valid host, or more than one", "Send one `host` header.");
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        (Some(host), None) => Some(host.to_str().map_err(|_| wrong())?.to_owned()),
        (Some(_), Some(_)) => return Err(wrong().into()),
    };
    let target = parts.uri.authority().map(|authority| authority.as_str().to_owned());
    let one = match (host, target) {
        (Some(host), Some(target)) if !host.eq_ignore_ascii_case(&target) => return Err(wrong().into()),
        (host, target) => host.or(target),
    };
    let Some(text) = one.filter(|one| !one.is_empty()) else { return Ok(None) };
    let parsed: Authority = text.parse().map_err(|_| wrong())?;
    if !is_plain(&parsed) || parsed.host().is_empty() {
        return Err(wrong().into());
    }
    Ok(Some(text.to_ascii_lowercase()))
}

/// Returns true if the authority consists only of a host, optionally with a valid port.
fn is_plain(authority: &Authority) -> bool {
    let port = authority.port().map_or(0, |port| port.as_str().len() + 1);
    authority.as_str().len() == authority.host().len() + port
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn domain(text: &str) -> Domain {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_has_one_meaning() {
        let domain = domain("ports.example.com");
        let port = |port: u16, id: &str| Named::Port { port, sandbox: id.parse().unwrap() };
        for (host, named) in [
            ("8000-sabc.ports.example.com", port(8000, "sabc")),
            ("8000-SABC.Ports.Example.com.", port(8000, "sabc")),
            ("8000-sabc.ports.example.com:7070", port(8000, "sabc")),
            ("ports.example.com", Named::Api),
            ("api.ports.example.com", Named::Api),
            ("xports.example.com", Named::Api),
            ("8000-sabc.ports.example.com.evil.com", Named::Api),
            ("127.0.0.1:7070", Named::Api),
            ("[::1]:7070", Named::Api),
            ("", Named::Api),
            (".ports.example.com", Named::Nothing),
            ("08000-sabc.ports.example.com", Named::Nothing),
            ("0-sabc.ports.example.com", Named::Nothing),
            ("65536-sabc.ports.example.com", Named::Nothing),
            ("8000-.ports.example.com", Named::Nothing),
            ("8000-sabc.a.ports.example.com", Named::Nothing),
            ("a.8000-sabc.ports.example.com", Named::Nothing),
            ("api.api.ports.example.com", Named::Nothing),
            ("8000-api.ports.example.com", port(8000, "api")),
            ("8000-s_abc.ports.example.com", Named::Nothing),
        ] {
            assert_eq!(domain.named(host), named, "{host}");
        }
    }

    #[test]
    fn an_address_is_made_from_how_the_server_is_reached_unless_that_is_said() {
        let id: SandboxId = "sabc".parse().unwrap();
        let url = |text: &str, reached: &str, encrypted| domain(text).url(80, &id, reached, encrypted);
        assert_eq!(url("a.b", "127.0.0.1:7070", false), "http://80-sabc.a.b:7070");
        assert_eq!(url("a.b", "api.b", true), "https://80-sabc.a.b");
        assert_eq!(url("https://a.b", "127.0.0.1:7070", false), "https://80-sabc.a.b");
        assert_eq!(url("https://a.b:8443", "127.0.0.1:7070", false), "https://80-sabc.a.b:8443");
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        for text in
            ["", "a_b", "10.0.0.1", "[::1]", "u@a.b", "ftp://a.b", "a..b", "a.b/c", "*.a.b", "a.b:x", "a.b:"]
        {
            assert!(text.parse::<Domain>().is_err(), "{text}");
        }
    }

    #[test]
    fn two_hosts_are_none() {
        let parts = |uri: &str, hosts: &[&str]| {
            let mut request = Request::builder().uri(uri);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            request.body(()).unwrap().into_parts().0
        };
        assert_eq!(authority(&parts("/", &["A:1"])).unwrap().as_deref(), Some("a:1"));
        assert_eq!(authority(&parts("http://a/", &["a"])).unwrap().as_deref(), Some("a"));
        assert_eq!(authority(&parts("http://a/", &[])).unwrap().as_deref(), Some("a"));
        assert_eq!(authority(&parts("/", &[])).unwrap(), None);
        for (uri, hosts) in [
            ("/", vec!["a", "a"]),
            ("http://a/", vec!["b"]),
            ("/", vec!["u@a"]),
            ("/", vec!["a b"]),
            ("/", vec!["a/b"]),
            ("/", vec!["a:x"]),
            ("/", vec!["a:99999"]),
        ] {
            assert!(authority(&parts(uri, &hosts)).is_err(), "{uri} {hosts:?}");
        }
    }
}

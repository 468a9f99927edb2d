//! Ports inside a sandbox, reached from outside.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Connections into one sandbox at once: what a few browsers open that each load a page.
pub const CONNECTIONS_MAX: usize = 256;
/// Ports of one sandbox that may be public.
pub const PUBLIC_MAX: usize = 16;
/// The header that names the sandbox of a request to a port, on the API's own address.
pub const SANDBOX_HEADER: &str = "bellglass-sandbox";
/// The header that names the port, likewise.
pub const PORT_HEADER: &str = "bellglass-port";
/// The header that carries the token of a sandbox.
pub const TOKEN_HEADER: &str = "bellglass-token";
/// The same in an address, for browsers: it is taken out and becomes a cookie.
pub const TOKEN_QUERY: &str = "bellglass_token";
/// The header by which an error of ours is told from what an application answered. It carries the code.
pub const ERROR_HEADER: &str = "bellglass-error";
/// What a connection becomes that carries bytes to a port and nothing else.
pub const TUNNEL_PROTOCOL: &str = "bellglass-tcp";

/// Access to a port of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Port {
    /// Port number.
    pub port: u16,
    /// URL for browsers and other HTTP clients.
    pub url: String,
    /// Token for all ports of the sandbox. Send the token in the header `bellglass-token` or, in a browser, once in the query as
    /// `?bellglass_token=`.
    pub token: String,
    /// True if the port is reachable without a token.
    pub public: bool,
}

/// Visibility of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutPort {
    /// Make the port reachable without a token. At most 16 ports of a sandbox can be public.
    pub public: bool,
}

/// A port as it is written: decimal, without anything in front, 1 to 65535.
///
/// # Errors
/// It is something else.
pub fn number(text: &str) -> Result<u16, Error> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    match text.parse() {
        Ok(port) if plain => Ok(port),
        Ok(_) | Err(_) => {
            let shown: String = text.chars().take(16).collect();
            Err(Error::invalid(format!("{shown:?} is not a port"), "Use a port from 1 to 65535."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_spelling() {
        assert_eq!(number("8000").unwrap(), 8000);
        for text in ["", "0", "08000", "+80", "-1", "65536", "80 ", "0x50", "\u{0661}"] {
            assert!(number(text).is_err(), "{text:?}");
        }
    }
}

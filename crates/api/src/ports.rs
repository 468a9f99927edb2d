//! Access from outside to ports inside a sandbox.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Maximum number of concurrent connections to the ports of one sandbox. This is enough for a few browsers
/// that load a page at the same time.
pub const CONNECTIONS_MAX: usize = 256;
/// Maximum number of public ports of one sandbox.
pub const PUBLIC_MAX: usize = 16;
/// Header that names the sandbox, if a request for a port is sent to the API's address.
pub const SANDBOX_HEADER: &str = "bellglass-sandbox";
/// Header that names the port, if a request for a port is sent to the API's address.
pub const PORT_HEADER: &str = "bellglass-port";
/// Header that carries the token of a sandbox.
pub const TOKEN_HEADER: &str = "bellglass-token";
/// Query parameter that carries the token, for browsers. The server removes it from the URL and sets a cookie
/// instead.
pub const TOKEN_QUERY: &str = "bellglass_token";
/// Header that marks a response as an error from Bellglass rather than from the application. Its value is the
/// error code.
pub const ERROR_HEADER: &str = "bellglass-error";
/// Protocol of an upgraded connection that carries raw bytes to and from a port.
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

/// Parses a port: a decimal number from 1 to 65535, without a sign or leading zeros.
///
/// # Errors
/// Returns an error if the text is not a valid port.
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

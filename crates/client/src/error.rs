//! Errors of the client.

use api::{ErrorCode, Layer, Ran, Retry};

/// An error of the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request was refused, either by the server or by a check before it was sent. The error code gives
    /// the reason; for example, `not_found` or `sandbox_lost` means that the object no longer exists.
    #[error("{}", .0.message)]
    Refused(api::Error),
    /// The server did not respond, despite retries.
    #[error("the server at {url} does not respond: {why}")]
    Unreachable {
        /// The server's address.
        url: String,
        /// Why the last attempt failed.
        why: String,
        /// Whether the request had an effect: `Ran::No` if it is known to have had none.
        ran: Ran,
    },
    /// The server could not prove its identity. No request was sent to it.
    #[error("the server at {url} is not trusted: {why}")]
    Distrusted {
        /// The server's address.
        url: String,
        /// Problem with the server's certificate.
        why: String,
    },
    /// The server's response violates the protocol.
    #[error("the server at {url} violated the protocol: {what}")]
    Protocol {
        /// The server's address.
        url: String,
        /// Description of the violation.
        what: String,
    },
    /// A local file could not be read or written.
    #[error("cannot {act}: {why}")]
    Local {
        /// Description of the failed operation, such as `open PATH`.
        act: String,
        /// Error reported by the operating system.
        why: String,
    },
    /// A client setting, such as the address, the key or a certificate file, cannot be used.
    #[error("{what}: {why}")]
    Configuration {
        /// Name of the setting.
        what: String,
        /// Problem with the setting.
        why: String,
    },
}

impl Error {
    /// Converts the error to the API's error format, for callers that handle all errors alike.
    pub fn to_api(&self) -> api::Error {
        let message = self.to_string();
        let (code, layer, ran, retry, fix) = match self {
            Self::Refused(error) => return error.clone(),
            Self::Unreachable { url, ran, .. } => {
                let retry = if *ran == Ran::No { Retry::Safe } else { Retry::Unknown };
                let fix = format!(
                    "Check that the server is running, that {url} is its address and that no firewall or proxy blocks the connection."
                );
                (ErrorCode::Platform, Layer::Platform, *ran, retry, fix)
            }
            Self::Distrusted { .. } => {
                let fix = "Trust the CA that signed the certificate of the server, or give the server a certificate from a trusted CA.";
                (ErrorCode::Platform, Layer::Platform, Ran::No, Retry::Useless, fix.into())
            }
            Self::Protocol { .. } => {
                let fix = "Use the same version of client and server, without a proxy between them that changes data.";
                (ErrorCode::Protocol, Layer::Platform, Ran::Unknown, Retry::Unknown, fix.into())
            }
            Self::Local { .. } => {
                let fix = "Check that the file exists, that you have permission to use it and that its disk has free space.";
                (ErrorCode::InvalidRequest, Layer::UserCode, Ran::No, Retry::Useless, fix.into())
            }
            Self::Configuration { what, .. } => {
                let fix = format!("Correct {what}.");
                (ErrorCode::InvalidRequest, Layer::UserCode, Ran::No, Retry::Useless, fix)
            }
        };
        api::Error { code, message, layer, ran, retry, fix }
    }

    /// Returns the error code if the request was refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(error) => Some(error.code),
            Self::Unreachable { .. }
            | Self::Distrusted { .. }
            | Self::Protocol { .. }
            | Self::Local { .. }
            | Self::Configuration { .. } => None,
        }
    }
}

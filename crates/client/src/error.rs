//! What can go wrong between a caller and a server.

use api::{ErrorCode, Layer, Ran, Retry};

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server, or a check before it was asked, said no. Its code says to what: `not_found` and `sandbox_lost` where
    /// the thing is gone.
    #[error("{}", .0.message)]
    Refused(api::Error),
    /// No answer came, however often it was asked for.
    #[error("the server at {url} does not respond: {why}")]
    Unreachable {
        /// The server.
        url: String,
        /// What the last try came to.
        why: String,
        /// Whether the request may have had its effect.
        ran: Ran,
    },
    /// The server cannot show that it is the one that was named. Nothing was sent to it.
    #[error("the server at {url} is not trusted: {why}")]
    Distrusted {
        /// The server.
        url: String,
        /// What is wrong with its certificate.
        why: String,
    },
    /// The server said something that the protocol does not allow.
    #[error("the server at {url} violated the protocol: {what}")]
    Protocol {
        /// The server.
        url: String,
        /// What it said.
        what: String,
    },
    /// A file of this machine could not be read or written.
    #[error("cannot {act}: {why}")]
    Local {
        /// The act and the file.
        act: String,
        /// What the system said.
        why: String,
    },
    /// What the client was given to work with cannot be used: an address, a key, a file of certificates.
    #[error("{what}: {why}")]
    Configuration {
        /// Which thing.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// The same as it would travel: for whoever shows or passes on every error in one shape.
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

    /// The name of what the server refused, if it did.
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

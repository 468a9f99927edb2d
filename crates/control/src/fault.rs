//! Platform errors: an API error, and the delay after which the client should retry. This module does not
//! depend on HTTP.

use std::time::Duration;

use api::{Error, ErrorCode, Layer, Ran, Retry};

use crate::store;

/// Default delay before a retry. Starting or stopping a sandbox takes only about a tenth of this time.
const AGAIN: Duration = Duration::from_secs(1);

/// API error, with the delay after which the client should retry.
#[derive(Debug)]
pub struct Fault {
    error: Error,
    after: Option<Duration>,
}

/// Result of a platform operation.
pub type Answer<T> = Result<T, Fault>;

impl Fault {
    /// Returns the API error.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the delay after which the client should retry, if retrying can help.
    pub fn retry_after(&self) -> Option<Duration> {
        self.after
    }

    /// Sets the delay after which the client should retry.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after: Some(after), ..self }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let after = match error.code {
            ErrorCode::Capacity
            | ErrorCode::QuotaExceeded
            | ErrorCode::RateLimited
            | ErrorCode::StoreUnavailable => Some(AGAIN),
            ErrorCode::SpawnFailed
            | ErrorCode::InvalidRequest
            | ErrorCode::LimitExceeded
            | ErrorCode::NotFound
            | ErrorCode::Conflict
            | ErrorCode::NotRegular
            | ErrorCode::Unsupported
            | ErrorCode::Unauthorized
            | ErrorCode::Forbidden
            | ErrorCode::TierUnavailable
            | ErrorCode::TooLarge
            | ErrorCode::VersionUnsupported
            | ErrorCode::PostureMismatch
            | ErrorCode::SandboxLost
            | ErrorCode::Protocol
            | ErrorCode::Deadline
            | ErrorCode::Platform => None,
        };
        Self { error, after }
    }
}

impl From<node::Error> for Fault {
    fn from(error: node::Error) -> Self {
        let told = error.to_api();
        if let node::Error::Runtime(_) = &error
            && told.code == ErrorCode::TierUnavailable
        {
            tracing::error!(error = told.message, "a backend is not available");
            return node::error::discreet_start(&error, "complete the request").into();
        }
        if told.code != ErrorCode::Platform {
            return told.into();
        }
        // Only the operator may see the machine's paths and command lines. Log them, and hide them from the
        // client.
        tracing::error!(error = told.message, "a request failed with an internal error");
        node::error::discreet(told, "complete the request").into()
    }
}

impl From<store::Error> for Fault {
    fn from(error: store::Error) -> Self {
        let message = node::error::chain(&error);
        let refuse = |code, layer, retry, fix: &str| Error {
            code,
            message: message.clone(),
            layer,
            ran: Ran::No,
            retry,
            fix: fix.into(),
        };
        let told = match error {
            store::Error::NotLasting { .. } => refuse(
                ErrorCode::StoreUnavailable,
                Layer::Platform,
                Retry::Safe,
                "Keep the server running and free space on the disk of its data directory: the server saves the revocation as soon as \
                 it can. Revoke the key again to check whether it was saved.",
            ),
            store::Error::Unavailable { .. }
            | store::Error::Damaged(_)
            | store::Error::Log { .. }
            | store::Error::Newer { .. } => refuse(
                ErrorCode::StoreUnavailable,
                Layer::Platform,
                Retry::Safe,
                "Retry in a moment; running sandboxes continue. If the error persists, check the server's log and disk.",
            ),
            store::Error::Conflict => refuse(
                ErrorCode::Conflict,
                Layer::UserCode,
                Retry::Useless,
                "Use a new idempotency key for a new request.",
            ),
            store::Error::NameTaken(_) => refuse(
                ErrorCode::Conflict,
                Layer::UserCode,
                Retry::Useless,
                "Choose another name, or first stop the sandbox that has this name.",
            ),
            store::Error::Quota { .. } => refuse(
                ErrorCode::QuotaExceeded,
                Layer::Policy,
                Retry::Safe,
                "Stop sandboxes that are not needed, or ask an administrator for a larger quota.",
            ),
            store::Error::NoProject(_) => refuse(
                ErrorCode::NotFound,
                Layer::UserCode,
                Retry::Useless,
                "List the projects and use an existing one, or create this project first.",
            ),
            store::Error::Cursor => refuse(
                ErrorCode::InvalidRequest,
                Layer::UserCode,
                Retry::Useless,
                "Use `next` of the previous page unchanged, or omit the cursor.",
            ),
        };
        told.into()
    }
}

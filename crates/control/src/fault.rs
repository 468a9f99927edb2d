//! Conversion of errors into responses. Only this module knows both errors and HTTP.

use std::time::Duration;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::store;

/// Default delay before a retry. A start or a stop takes a tenth of it.
const AGAIN: Duration = Duration::from_secs(1);

/// Error of a request, with the properties of its HTTP response.
#[derive(Debug)]
pub struct Fault {
    error: Error,
    after: Option<Duration>,
    /// Status that replaces that of the error's code.
    status: Option<StatusCode>,
}

/// Result of a handler.
pub type Answer<T> = Result<T, Fault>;

impl Fault {
    /// Returns the error that the client receives.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Sets the delay before a retry.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after: Some(after), ..self }
    }

    /// Sets a status that replaces that of the error's code.
    #[must_use]
    pub fn status(self, status: StatusCode) -> Self {
        Self { status: Some(status), ..self }
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
        Self { error, after, status: None }
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
        // Only the operator may see paths and command lines of the machine.
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

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response =
            (self.status.unwrap_or_else(|| status(self.error.code)), Json(&self.error)).into_response();
        if let Some(after) = self.after {
            let seconds = after.as_secs().max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Returns the status for a code. The code is more specific; the status is for the proxies on the way.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::LimitExceeded
        | ErrorCode::SpawnFailed
        | ErrorCode::VersionUnsupported => StatusCode::BAD_REQUEST,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Conflict | ErrorCode::NotRegular => StatusCode::CONFLICT,
        ErrorCode::SandboxLost => StatusCode::GONE,
        ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::QuotaExceeded | ErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::Unsupported | ErrorCode::TierUnavailable => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::Capacity | ErrorCode::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Deadline => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::Protocol => StatusCode::BAD_GATEWAY,
        ErrorCode::PostureMismatch | ErrorCode::Platform => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

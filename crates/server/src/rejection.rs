//! Errors as HTTP responses. No other module maps an error code to a status.

use api::{Error, ErrorCode};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use control::fault::Fault;
use control::{store, vault};

/// A platform error as the response to a request.
#[derive(Debug)]
pub struct Rejection {
    fault: Fault,
    /// Status that replaces the error code's default status.
    status: Option<StatusCode>,
}

/// A handler's result.
pub type Answer<T> = Result<T, Rejection>;

impl Rejection {
    /// Returns the error that the response body contains.
    pub fn error(&self) -> &Error {
        self.fault.error()
    }

    /// Replaces the error code's default status.
    #[must_use]
    pub fn status(self, status: StatusCode) -> Self {
        Self { status: Some(status), ..self }
    }
}

impl From<Fault> for Rejection {
    fn from(fault: Fault) -> Self {
        Self { fault, status: None }
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}

impl From<node::Error> for Rejection {
    fn from(error: node::Error) -> Self {
        Fault::from(error).into()
    }
}

impl From<vault::Error> for Rejection {
    fn from(error: vault::Error) -> Self {
        Fault::from(error).into()
    }
}

impl From<store::Error> for Rejection {
    fn from(error: store::Error) -> Self {
        Fault::from(error).into()
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let status = self.status.unwrap_or_else(|| status(self.error().code));
        let mut response = (status, Json(self.error())).into_response();
        if let Some(after) = self.fault.retry_after() {
            let seconds = after.as_secs().max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Returns the HTTP status for an error code. The code is more precise; the status is for proxies and generic
/// clients.
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

//! Converts errors into the form that E2B's SDKs expect from E2B's control API, which repeats the HTTP status
//! as `code`.

use api::limits::BODY_BYTES_MAX;
use api::{Error, ErrorCode, Layer, Ran, Retry, SandboxId};
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::json;

use control::authority::grant::States;
use server::authority::Need;
use server::body;
use server::rejection::Rejection;

/// Error whose body repeats the HTTP status. The JavaScript SDK reads the status from the body, and the
/// Python SDK fails if the body does not contain the status.
#[derive(Debug)]
pub struct E2bRejection(Rejection);

/// Result of a handler of E2B's control API.
pub type E2bResult<T> = Result<T, E2bRejection>;

impl<F: Into<Rejection>> From<F> for E2bRejection {
    fn from(fault: F) -> Self {
        Self(fault.into())
    }
}

/// Wrapper of an extractor. Its rejections have the form that E2B's SDKs expect.
pub struct By<T>(pub T);

impl<T: States> States for By<T> {
    const NEED: Need = T::NEED;
}

impl<S: Sync, T: FromRequestParts<S, Rejection = Rejection>> FromRequestParts<S> for By<T> {
    type Rejection = E2bRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> E2bResult<Self> {
        Ok(Self(T::from_request_parts(parts, state).await?))
    }
}

/// JSON body of a request. Its rejections have the form that E2B's SDKs expect.
pub struct Given<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Given<T> {
    type Rejection = E2bRejection;

    async fn from_request(request: Request, _: &S) -> E2bResult<Self> {
        let bytes = body::message(request, BODY_BYTES_MAX).await?;
        // Older clients send an empty body if all fields have their default values.
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let wrong = |error| {
            Error::invalid(
                format!("invalid request body: {error}"),
                "Correct the error described in the message.",
            )
        };
        Ok(Self(serde_json::from_slice(text).map_err(wrong)?))
    }
}

impl IntoResponse for E2bRejection {
    fn into_response(self) -> Response {
        let error = self.0.error().clone();
        let told = sentence(&error);
        let (mut head, _) = self.0.into_response().into_parts();
        // E2B's clients expect a sandbox that has ended to be reported as missing.
        if error.code == ErrorCode::SandboxLost {
            head.status = StatusCode::NOT_FOUND;
        }
        // E2B's clients show the message of a response with status 400, but not with status 422, which
        // invalid bodies get.
        if head.status == StatusCode::UNPROCESSABLE_ENTITY {
            head.status = StatusCode::BAD_REQUEST;
        }
        let body = json!({ "code": head.status.as_u16(), "message": told, "error_code": error.code.name() });
        let mut response = (head.status, Json(body)).into_response();
        if let Some(after) = head.headers.remove(axum::http::header::RETRY_AFTER) {
            response.headers_mut().insert(axum::http::header::RETRY_AFTER, after);
        }
        response
    }
}

/// Joins the message and the fix of an error into one text, because E2B's clients show only one.
pub fn sentence(error: &Error) -> String {
    if error.fix.is_empty() { error.message.clone() } else { format!("{}. {}", error.message, error.fix) }
}

/// Returns the response for a sandbox that is not running. The SDKs recognize the text of this response. They
/// then report a missing sandbox instead of a failed request.
pub fn gone(sandbox: Option<&SandboxId>) -> Response {
    let id = sandbox.map(SandboxId::as_str).unwrap_or_default();
    let body = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// Builds the error for a feature of E2B that this server does not support.
pub fn not_offered(what: &str, instead: &str) -> E2bRejection {
    let error = Error {
        code: ErrorCode::Unsupported,
        message: format!("not supported by this server: {what}"),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: instead.into(),
    };
    E2bRejection(Rejection::from(error).status(StatusCode::NOT_IMPLEMENTED))
}

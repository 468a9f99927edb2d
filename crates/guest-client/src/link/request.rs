//! A request to the guest, and the response to it.

use std::time::Duration;

use api::exec::LostCause;
use api::limits;
use bytes::Bytes;
use host::error::Error;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use tokio::time::{Instant, timeout_at};

/// An idempotent request, which can be sent repeatedly.
#[derive(Clone, Debug)]
pub struct GuestRequest {
    /// HTTP method.
    pub method: Method,
    /// Path with its query.
    pub path: String,
    /// Request body.
    pub body: Bytes,
}

impl GuestRequest {
    /// Builds the HTTP request with this body.
    pub(super) fn request<B>(&self, body: B) -> Result<Request<B>, Error> {
        Request::builder()
            .method(self.method.clone())
            .uri(format!("http://guest{}", self.path))
            .body(body)
            .map_err(|error| Error::Protocol(error.to_string()))
    }
}

/// Returns the error of a response that is not successful.
pub(super) async fn refusal(response: Response<Incoming>, deadline: Instant, within: Duration) -> Error {
    let status = response.status();
    match body(response, deadline, within).await {
        Err(error) => error,
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(error) => Error::Guest(error),
            Err(_) => Error::Protocol(format!("status {status} without an error body")),
        },
    }
}

/// Reads the body of a response.
pub(super) async fn body(
    response: Response<Incoming>,
    deadline: Instant,
    within: Duration,
) -> Result<Bytes, Error> {
    match timeout_at(deadline, Limited::new(response.into_body(), limits::BODY_BYTES_MAX).collect()).await {
        Err(_) => Err(Error::Deadline { what: "the request to the guest", after: within }),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Error::Protocol("a response exceeds the maximum length".into()))
        }
        Ok(Err(_broken)) => Err(Error::Lost(LostCause::Died)),
    }
}

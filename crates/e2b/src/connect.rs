//! Remote procedure calls in the Connect protocol, with JSON messages. The body of a unary call is one plain
//! message. The body of a stream consists of envelopes.
//!
//! An envelope consists of a flags byte, the message length as four big-endian bytes, and a message. The last
//! envelope of a response has the flag 2 and contains the result of the call. The JavaScript SDK treats a
//! stream without this envelope as broken.

use std::sync::Arc;
use std::time::Duration;

use api::{Error, ErrorCode};
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use control::fault::Fault;
use server::body;
use server::rejection::Rejection;

use super::fault::{gone, sentence};

/// Maximum length of a message. The longest messages are chunks of standard input, in base64.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Content type of a body that consists of envelopes. It has no parameters, because the Python SDK compares
/// the whole value.
const STREAMED: &str = "application/connect+json";
/// Interval between keepalive messages on an idle stream, unless the client requests a shorter interval.
const ALIVE_EVERY: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 5;
/// Maximum length of a message that may share its buffer with the data that follows the message.
const SHARED_BYTES_MAX: usize = 16 << 10;
const LAST: u8 = 2;

/// Error code of a failed call. The Connect protocol defines the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    Unauthenticated,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    DeadlineExceeded,
}

/// Failure of a call.
#[derive(Clone, Debug)]
pub enum Failed {
    /// The call was rejected.
    Refused(Code, String),
    /// The sandbox is not running.
    Gone,
}

/// Result of a call.
pub type Called<T> = Result<T, Failed>;

/// Request message of a call: the whole body, or the only message in the envelopes of the body.
pub struct ConnectMessage<T>(pub T);

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::Unauthenticated => "unauthenticated",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DeadlineExceeded => "deadline_exceeded",
        }
    }

    /// Returns the HTTP status that corresponds to this code.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::InvalidRequest
            | ErrorCode::LimitExceeded
            | ErrorCode::SpawnFailed
            | ErrorCode::NotRegular
            | ErrorCode::TooLarge
            | ErrorCode::VersionUnsupported => Self::InvalidArgument,
            ErrorCode::NotFound => Self::NotFound,
            ErrorCode::Conflict => Self::FailedPrecondition,
            ErrorCode::Unsupported | ErrorCode::TierUnavailable => Self::Unimplemented,
            ErrorCode::Unauthorized => Self::Unauthenticated,
            ErrorCode::Forbidden => Self::PermissionDenied,
            ErrorCode::QuotaExceeded | ErrorCode::RateLimited => Self::ResourceExhausted,
            ErrorCode::Capacity | ErrorCode::StoreUnavailable => Self::Unavailable,
            ErrorCode::Deadline => Self::DeadlineExceeded,
            ErrorCode::SandboxLost
            | ErrorCode::Protocol
            | ErrorCode::PostureMismatch
            | ErrorCode::Platform => Self::Internal,
        }
    }
}

impl Failed {
    /// Creates the failure for a rejected call.
    pub fn of(code: Code, message: impl Into<String>) -> Self {
        Self::Refused(code, message.into())
    }

    /// Returns the error object for the last envelope of a response.
    fn told(&self) -> Value {
        let (code, message) = match self {
            Self::Refused(code, message) => (*code, message.as_str()),
            Self::Gone => (Code::Unavailable, "The sandbox was not found"),
        };
        json!({ "code": code.name(), "message": message })
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        if error.code == ErrorCode::SandboxLost {
            return Self::Gone;
        }
        Self::Refused(Code::of(error.code), sentence(&error))
    }
}

impl From<Rejection> for Failed {
    fn from(fault: Rejection) -> Self {
        fault.error().clone().into()
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Error::from(fault).into()
    }
}

impl From<node::Error> for Failed {
    fn from(error: node::Error) -> Self {
        if error.is_missing() { Self::Gone } else { Fault::from(error).into() }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match &self {
            Self::Gone => gone(None),
            Self::Refused(code, _) => {
                let mut response = (code.status(), Json(self.told())).into_response();
                response.extensions_mut().insert(Arc::new(self));
                response
            }
        }
    }
}

/// Converts an error response into a stream that ends with the error, because clients of streams ignore the
/// HTTP status.
pub async fn as_a_stream(response: Response) -> Response {
    match response.extensions().get::<Arc<Failed>>() {
        Some(failed) => streamed(Body::from(last(Some(failed)))),
        None => response,
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for ConnectMessage<T> {
    type Rejection = Failed;

    async fn from_request(mut request: Request, _: &S) -> Called<Self> {
        let streams = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == STREAMED);
        // The Python SDK sends `content-encoding: identity` with every body.
        if request.headers().get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "identity") {
            request.headers_mut().remove(header::CONTENT_ENCODING);
        }
        let bytes = body::message(request, MESSAGE_BYTES_MAX).await?;
        let message = if streams { only(&bytes)? } else { bytes };
        // Clients send an empty body if all fields have their default values.
        let text: &[u8] = if message.is_empty() { b"{}" } else { &message };
        let parsed = serde_json::from_slice(text);
        Ok(Self(
            parsed.map_err(|error| Failed::of(Code::InvalidArgument, format!("invalid message: {error}")))?,
        ))
    }
}

/// Returns the only message of a body that consists of envelopes.
fn only(bytes: &Bytes) -> Called<Bytes> {
    let mut envelopes = Envelopes::default();
    envelopes.take(bytes);
    match envelopes.next() {
        Ok(Some(message)) => Ok(message),
        Ok(None) => {
            Err(Failed::of(Code::InvalidArgument, "the request body ends before its message is complete"))
        }
        Err(failed) => Err(failed),
    }
}

/// Decoder of envelopes from a body that arrives in chunks.
#[derive(Default)]
pub struct Envelopes(BytesMut);

impl Envelopes {
    /// Appends a chunk of the body.
    pub fn take(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    /// Returns the next message if it is complete.
    ///
    /// # Errors
    /// Returns an error if the message is compressed or too long.
    pub fn next(&mut self) -> Called<Option<Bytes>> {
        let Some((&[flags, a, b, c, d], _)) = self.0.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if flags & 1 != 0 {
            return Err(Failed::of(
                Code::Unimplemented,
                "compressed messages are not supported; send the message uncompressed",
            ));
        }
        if length > MESSAGE_BYTES_MAX {
            let told = format!("the message has {length} bytes, the maximum is {MESSAGE_BYTES_MAX}");
            return Err(Failed::of(Code::InvalidArgument, told));
        }
        if self.0.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        let mut envelope = self.0.split_to(HEAD_BYTES + length);
        if length > SHARED_BYTES_MAX {
            // Copy the remaining data to a new buffer. Otherwise, this data would keep the long message's
            // buffer alive for as long as the stream lasts.
            self.0 = BytesMut::from(&*self.0);
        }
        Ok(Some(envelope.split_off(HEAD_BYTES).freeze()))
    }

    /// Returns the length of the incomplete envelope, or `None` if there is none. Until the head of the
    /// envelope is complete, returns the length of the head.
    pub fn unfinished(&self) -> Option<usize> {
        let (&[_, a, b, c, d], _) = match self.0.split_first_chunk::<HEAD_BYTES>() {
            Some(head) => head,
            None => return (!self.0.is_empty()).then_some(HEAD_BYTES),
        };
        Some(
            HEAD_BYTES
                .saturating_add(usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)),
        )
    }
}

/// Encodes a message in an envelope.
pub fn message(value: &impl Serialize) -> Bytes {
    envelope(0, value)
}

/// Encodes the last envelope of a response, which contains the result of the call.
pub fn last(failed: Option<&Failed>) -> Bytes {
    match failed {
        None => envelope(LAST, &json!({})),
        Some(failed) => envelope(LAST, &json!({ "error": failed.told() })),
    }
}

fn envelope(flags: u8, value: &impl Serialize) -> Bytes {
    // Serializing these types cannot fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + text.len());
    bytes.put_u8(flags);
    bytes.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&text);
    bytes.freeze()
}

/// Creates a response whose body consists of envelopes.
pub fn streamed(body: Body) -> Response {
    let headers = [(header::CONTENT_TYPE, STREAMED), (header::CACHE_CONTROL, "no-store")];
    (StatusCode::OK, headers, body).into_response()
}

/// Returns the interval between keepalive messages: the interval that the client requested, but at most
/// [`ALIVE_EVERY`].
pub fn alive_every(headers: &HeaderMap) -> Duration {
    let asked = number(headers, "keepalive-ping-interval").filter(|seconds| *seconds > 0);
    asked.map_or(ALIVE_EVERY, Duration::from_secs).min(ALIVE_EVERY)
}

/// Parses a header whose value is a number, such as a number of seconds.
pub fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_the_body_is_cut() {
        let mut body = message(&json!({ "a": 1 })).to_vec();
        body.extend_from_slice(&message(&json!({ "b": "ö" })));
        for cut in 1..body.len() {
            let (mut envelopes, mut found) = (Envelopes::default(), Vec::new());
            for piece in body.chunks(cut) {
                envelopes.take(piece);
                while let Some(message) = envelopes.next().unwrap() {
                    found.push(serde_json::from_slice::<Value>(&message).unwrap());
                }
            }
            assert_eq!(found, [json!({ "a": 1 }), json!({ "b": "ö" })], "{cut}");
        }
    }

    #[test]
    fn what_is_packed_or_too_long_is_refused() {
        let next = |bytes: &[u8]| {
            let mut envelopes = Envelopes::default();
            envelopes.take(bytes);
            envelopes.next()
        };
        assert!(matches!(next(&[1, 0, 0, 0, 0]), Err(Failed::Refused(Code::Unimplemented, _))));
        assert!(matches!(next(&[0, 255, 0, 0, 0]), Err(Failed::Refused(Code::InvalidArgument, _))));
        assert!(matches!(next(&[0, 0, 0, 0, 1]), Ok(None)));
        assert_eq!(&last(None)[..], b"\x02\0\0\0\x02{}");
    }
}

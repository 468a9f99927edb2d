//! Request bodies. Each body counts against memory budgets from before it is read until it leaves memory.
//!
//! | function or type | for | limits |
//! |---|---|---|
//! | [`message`], [`Sent`] | JSON | a length; [`BODY_WITHIN`]; the budgets of the project and the address, until the response is sent |
//! | [`bytes()`] | standard input | the same limits as for JSON |
//! | [`counted`] | JSON that is used after the response has begun | the same limits, for as long as [`BodyReservation`] is held |
//! | [`Coming`] | files, which are streamed | [`IDLE_MAX`] between two chunks; the handler occupies one of the project's stream slots |
//!
//! A refused body is never stored: [`discard`] drops the data as it arrives.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use api::{Error, ErrorCode, Layer, Ran, Retry, limits};
use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderValue, header};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use crate::listen::Origin;
use crate::rejection::{Answer, Rejection};
use control::account::Account;

/// Timeout for receiving a whole message.
pub const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time that a client may take to send or receive the next chunk of a file. A slower client is
/// disconnected.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
/// Memory that an element of parsed JSON, such as an entry of a list or a map, takes in addition to its text.
const ELEMENT_BYTES: usize = 64;
/// Limits for receiving and dropping the rest of a refused body. The server receives the rest because a
/// client reads the response only after it has finished sending.
const DISCARD_WITHIN: Duration = Duration::from_secs(5);
const DISCARD_BYTES: usize = 1 << 20;

/// A JSON body, parsed.
pub struct Sent<T>(pub T);

/// Memory that is reserved for a body. Dropping the reservation releases the memory.
#[derive(Default)]
pub struct BodyReservation {
    account: Option<Arc<Account>>,
    origin: Option<Origin>,
    held: Vec<OwnedSemaphorePermit>,
}

/// Memory reservations for the bodies of one request. The connection holds them until the response is sent,
/// because a handler may use a body until then.
#[derive(Clone, Default)]
pub struct BodyReservations(Arc<Mutex<Vec<BodyReservation>>>);

/// A request body that is read chunk by chunk.
pub struct Coming(Body);

/// A body that is lent to a parser. When the parser drops it, the body returns to [`Lent`].
struct Loan {
    body: Option<BodyDataStream>,
    owner: Option<oneshot::Sender<BodyDataStream>>,
}

/// The owner of a body that is lent to a parser.
pub struct Lent(oneshot::Receiver<BodyDataStream>);

/// Lends a body to a parser.
pub fn lend(body: Body) -> (Body, Lent) {
    let (owner, lent) = oneshot::channel();
    let loan = Loan { body: Some(body.into_data_stream()), owner: Some(owner) };
    (Body::from_stream(loan), Lent(lent))
}

impl Lent {
    /// Receives and drops the part of the body that the parser did not read, so that the client finishes
    /// sending and reads the response.
    pub async fn discard(mut self) {
        let Ok(mut body) = self.0.try_recv() else { return };
        let rest = async { while let Some(Ok(_)) = body.next().await {} };
        let _ = timeout(DISCARD_WITHIN, rest).await;
    }
}

impl Stream for Loan {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_next(context),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let (Some(body), Some(owner)) = (self.body.take(), self.owner.take()) {
            // The owner may have been dropped already.
            let _ = owner.send(body);
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        if kind != Some("application/json") {
            return Err(Error::invalid(
                "the content type of the request body is not JSON",
                "Send JSON with `content-type: application/json`.",
            )
            .into());
        }
        let bytes = message(request, limits::BODY_BYTES_MAX).await?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            Error::invalid(
                format!("invalid request body: {error}"),
                "Correct the error described in the message. The API description lists the fields of the body.",
            )
        })?;
        Ok(Self(value))
    }
}

impl BodyReservation {
    /// Reserves this many bytes in the budgets of the request's project and of its client's address.
    fn take(&mut self, bytes: usize) -> Answer<()> {
        if let Some(account) = &self.account {
            self.held.push(account.share.room(bytes)?);
        }
        if let Some(origin) = &self.origin {
            self.held.push(origin.room(bytes)?);
        }
        Ok(())
    }

    /// Releases the reserved memory beyond this many bytes.
    fn shrink_to(&mut self, bytes: usize) {
        for permit in &mut self.held {
            drop(permit.split(permit.num_permits().saturating_sub(bytes.div_ceil(1024))));
        }
    }

    fn of(extensions: &Extensions) -> Self {
        let (account, origin) = (extensions.get().cloned(), extensions.get().cloned());
        Self { account, origin, held: Vec::new() }
    }
}

impl BodyReservations {
    fn hold(&self, room: BodyReservation) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(room);
    }
}

impl Coming {
    /// Creates a reader for a request's body.
    ///
    /// # Errors
    /// Returns an error if the body is compressed or a form.
    pub fn of(request: Request) -> Answer<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if kind.and_then(|kind| kind.get(..10)).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/")) {
            let fix = "Send the bytes of the file as the body, for example with `curl --data-binary @file` or `curl -T file`.";
            return Err(Error::invalid("the request body is a form, not a file", fix).into());
        }
        if request.headers().contains_key(header::CONTENT_ENCODING) {
            return Err(Error::invalid(
                "compressed request bodies are not supported",
                "Send the body without `content-encoding`.",
            )
            .into());
        }
        Ok(Self(request.into_body()))
    }

    /// Returns the next chunk, or `None` at the end of the body.
    ///
    /// # Errors
    /// Returns an error if the body ends early or if no data arrives in time.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match timeout(IDLE_MAX, self.0.frame()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
            Ok(Some(Err(_))) => Err(broke_off()),
            Err(_) => Err(silent()),
        }
    }

    /// Drops the rest of a refused body, so that the client stops sending and reads the error.
    pub async fn refuse(mut self, error: node::Error) -> Rejection {
        let rest = async { while let Some(Ok(_)) = self.0.frame().await {} };
        let _ = timeout(DISCARD_WITHIN, rest).await;
        error.into()
    }
}

/// Returns a JSON body of at most this many bytes. The memory for it stays reserved until the response is
/// sent.
///
/// # Errors
/// Returns an error if the body is too long, compressed or late, or exceeds the memory budgets.
pub async fn message(request: Request, most: usize) -> Answer<Bytes> {
    let (parts, body) = request.into_parts();
    let (bytes, room) = counted(&parts, body, most).await?;
    keep(&parts, room);
    Ok(bytes)
}

/// Returns a body that is not parsed, within the limits that [`message`] applies.
///
/// # Errors
/// Fails like [`message`].
pub async fn bytes(request: Request, most: usize) -> Answer<Bytes> {
    let (parts, body) = request.into_parts();
    let (bytes, room) = received(&parts, body, most).await?;
    keep(&parts, room);
    Ok(bytes)
}

/// Returns a JSON body together with the reservation for its text and its parsed form.
///
/// # Errors
/// Fails like [`message`].
pub async fn counted(parts: &Parts, body: Body, most: usize) -> Answer<(Bytes, BodyReservation)> {
    let (bytes, mut room) = received(parts, body, most).await?;
    room.take(elements(&bytes).saturating_mul(ELEMENT_BYTES))?;
    Ok((bytes, room))
}

/// Receives a refused body and drops it. Limits how many clients with the same address can do this at a time.
pub async fn discard(mut body: Body, origin: Option<&Origin>) {
    let Some(_turn) = origin.and_then(Origin::discards) else { return };
    let rest = async {
        let mut left = DISCARD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.into_data().map_or(0, |data| data.len());
            left = left.saturating_sub(bytes);
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(DISCARD_WITHIN, rest).await;
}

/// Hands the reservation to the connection, which holds it until the response is sent.
fn keep(parts: &Parts, room: BodyReservation) {
    if let Some(kept) = parts.extensions.get::<BodyReservations>().filter(|_| !api::defence::is_off("H-35")) {
        kept.hold(room);
    }
}

async fn received(parts: &Parts, body: Body, most: usize) -> Answer<(Bytes, BodyReservation)> {
    let headers = &parts.headers;
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Error::invalid(
            "compressed request bodies are not supported",
            "Send the body without `content-encoding`.",
        )
        .into());
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > most as u64) {
        return Err(too_large(most).into());
    }
    // A body of unknown length is charged with the maximum. Only authenticated callers can cause this,
    // because every route authenticates its caller before it reads a body.
    let length = length.and_then(|length| usize::try_from(length).ok());
    let mut room = BodyReservation::of(&parts.extensions);
    room.take(length.unwrap_or(most))?;
    let late = |_| Error {
        retry: Retry::Safe,
        ..Error::invalid(
            format!("the request body did not arrive within {BODY_WITHIN:?}"),
            "Send the body faster.",
        )
    };
    let bytes = timeout(BODY_WITHIN, gathered(body, length.unwrap_or(0), most)).await.map_err(late)??;
    room.shrink_to(bytes.len());
    Ok((bytes, room))
}

/// Collects a body in a single buffer. If a client sent single bytes, a list of chunks would take thirty
/// times as much memory.
///
/// The capacity of the buffer is the announced length, but the buffer takes only as much physical memory as
/// data has arrived, because the kernel allocates pages when they are first written.
async fn gathered(mut body: Body, length: usize, most: usize) -> Result<Bytes, Error> {
    let mut all = BytesMut::with_capacity(length);
    while let Some(frame) = body.frame().await {
        let piece = frame.map_err(|_| broke_off())?.into_data().unwrap_or_default();
        if piece.len() > most - all.len() {
            return Err(too_large(most));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// Returns an upper bound for the number of elements in a JSON text, without parsing it.
fn elements(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

fn too_large(most: usize) -> Error {
    Error {
        code: ErrorCode::TooLarge,
        message: format!("the request body is longer than {most} bytes"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Send a smaller body. Send large input to standard input in chunks.".into(),
    }
}

fn broke_off() -> Error {
    Error::invalid("the request body ended early", "Send the request again.")
}

/// Builds the error for a body that has stopped arriving.
fn silent() -> Error {
    Error {
        code: ErrorCode::Deadline,
        message: format!("no data of the request body arrived for {IDLE_MAX:?}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Avoid long pauses while sending. An upload with `offset` can be resumed.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_outside_of_texts() {
        for (json, count) in
            [("1", 0), (r#"{"a":1}"#, 1), ("[1,2,3]", 3), (r#"{"a":"[,,{","b":[]}"#, 3), (r#"["\",",1]"#, 2)]
        {
            assert_eq!(elements(json.as_bytes()), count, "{json}");
        }
    }

    #[tokio::test]
    async fn a_body_is_gathered_up_to_its_bound() {
        let pieces = |count: usize| {
            let pieces = (0..count).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"x")));
            Body::from_stream(futures_util::stream::iter(pieces))
        };
        assert_eq!(gathered(pieces(8), 0, 8).await.unwrap().len(), 8);
        assert_eq!(gathered(pieces(9), 8, 8).await.unwrap_err().code, ErrorCode::TooLarge);
    }
}

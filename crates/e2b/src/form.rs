//! File uploads as the parts of a `multipart/form-data` form.
//!
//! The parser reads all data that arrives. It buffers data that it cannot parse yet, such as a header without
//! an end, or text before the first part. Therefore [`Metered`] passes at most [`UNPARSED_BYTES_MAX`] to the
//! parser between two parts, or between two chunks of one part.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, BodyDataStream};
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest as _, Multipart, Request};
use bytes::Bytes;
use futures_util::Stream;
use tokio::time::timeout;

use server::body::IDLE_MAX;

use super::connect::{Called, Code, Failed};

/// Maximum number of bytes that the parser may receive before it returns a part or a chunk. The headers of a
/// part usually have a few hundred bytes.
const UNPARSED_BYTES_MAX: usize = 64 << 10;

/// A form that is being received.
pub struct Form {
    parts: Multipart,
    meter: Meter,
}

/// One part of a form.
pub struct FormPart<'a> {
    field: Field<'a>,
    meter: Meter,
}

/// Counter of the bytes that the parser has received since it last returned a part or a chunk.
#[derive(Clone, Default)]
struct Meter(Arc<Mutex<Handed>>);

#[derive(Default)]
struct Handed {
    bytes: usize,
    /// True if the limit was reached and [`Metered`] returned `Pending` once, so that the parser parses its
    /// buffered bytes. If the parser requests more data without returning a part or a chunk, the form is
    /// rejected.
    paused: bool,
}

/// Request body that counts its chunks with a meter, and pauses at the limit.
struct Metered {
    body: BodyDataStream,
    meter: Meter,
}

impl Form {
    /// Starts parsing the body of a request as a form.
    ///
    /// # Errors
    /// Returns an error if the body is not a form.
    pub async fn of(request: Request) -> Called<Self> {
        let meter = Meter::default();
        let metered =
            |body: Body| Body::from_stream(Metered { body: body.into_data_stream(), meter: meter.clone() });
        let parts = Multipart::from_request(request.map(metered), &()).await;
        let parts = parts.map_err(|error| wrong(&error.body_text()))?;
        Ok(Self { parts, meter })
    }

    /// Returns the next part.
    ///
    /// # Errors
    /// Returns an error if the part is malformed or does not arrive in time.
    pub async fn next(&mut self) -> Called<Option<FormPart<'_>>> {
        let field = timeout(IDLE_MAX, self.parts.next_field()).await;
        let field = field.map_err(|_| silent())?.map_err(|error| broken(&error))?;
        self.meter.reset();
        Ok(field.map(|field| FormPart { field, meter: self.meter.clone() }))
    }
}

impl FormPart<'_> {
    /// Returns the name of the part.
    pub fn name(&self) -> Option<&str> {
        self.field.name()
    }

    /// Returns the file name of the part.
    pub fn file_name(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// Returns the next chunk of the part.
    ///
    /// # Errors
    /// Returns an error if the part ends early or does not arrive in time.
    pub async fn piece(&mut self) -> Called<Option<Bytes>> {
        let piece = timeout(IDLE_MAX, self.field.chunk()).await;
        let piece = piece.map_err(|_| silent())?.map_err(|error| broken(&error))?;
        self.meter.reset();
        Ok(piece)
    }
}

impl Meter {
    fn reset(&self) {
        *self.lock() = Handed::default();
    }

    fn lock(&self) -> MutexGuard<'_, Handed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for Metered {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let me = self.get_mut();
        let mut handed = me.meter.lock();
        if handed.bytes >= UNPARSED_BYTES_MAX && !api::defence::is_off("H-30") {
            if handed.paused {
                let told = format!("{UNPARSED_BYTES_MAX} bytes arrived without the end of a part's headers");
                return Poll::Ready(Some(Err(io::Error::other(told))));
            }
            handed.paused = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = ready!(Pin::new(&mut me.body).poll_next(context));
        Poll::Ready(piece.map(|piece| {
            let piece = piece.map_err(io::Error::other)?;
            handed.bytes += piece.len();
            Ok(piece)
        }))
    }
}

/// Builds the error for an invalid form.
pub fn wrong(why: &str) -> Failed {
    Failed::of(Code::InvalidArgument, format!("invalid form: {why}"))
}

fn broken(error: &MultipartError) -> Failed {
    // The parser's own message states only that reading failed. Its chain of causes explains why.
    wrong(&node::error::chain(error))
}

fn silent() -> Failed {
    Failed::of(Code::DeadlineExceeded, format!("no data of the form arrived for {IDLE_MAX:?}"))
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use futures_util::stream;

    use super::*;

    async fn form(pieces: Vec<Vec<u8>>) -> Form {
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, io::Error>)));
        let request =
            Request::post("/files").header(header::CONTENT_TYPE, "multipart/form-data; boundary=zzz");
        Form::of(request.body(body).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_long_file_comes_whole_and_a_long_header_is_refused() {
        const HEAD: &[u8] = b"--zzz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n";
        let mut pieces = vec![HEAD.to_vec(), b"\r\n".to_vec()];
        // This file is smaller than the framework's default body limit, which the real route disables, but
        // this test does not.
        pieces.extend((0..32).map(|_| vec![b'x'; 50_000]));
        pieces.push(b"\r\n--zzz--\r\n".to_vec());
        let mut good = form(pieces).await;
        let (mut part, mut length) = (good.next().await.unwrap().unwrap(), 0);
        assert_eq!((part.name(), part.file_name()), (Some("file"), Some("a")));
        while let Some(piece) = part.piece().await.unwrap() {
            length += piece.len();
        }
        assert_eq!(length, 32 * 50_000);
        drop(part);
        assert!(good.next().await.unwrap().is_none());

        let endless = std::iter::once([HEAD, b"x-a: "].concat()).chain((0..64).map(|_| vec![b'a'; 50_000]));
        let mut bad = form(endless.collect()).await;
        let Err(Failed::Refused(code, told)) = bad.next().await else { panic!() };
        assert!(code == Code::InvalidArgument && told.contains("end of a part's headers"), "{told}");
        assert!(bad.meter.lock().bytes < 3 * UNPARSED_BYTES_MAX);
    }
}

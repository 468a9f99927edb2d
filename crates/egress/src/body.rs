//! Response bodies, and the size limit for the heads of requests and responses.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

/// Maximum size in bytes of a request or response head, far above the size that programs and hosts send.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

pub type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

pub fn empty() -> Body {
    full(Bytes::new())
}

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

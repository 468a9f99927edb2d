//! The encoding of a file request, as parts.

use api::files::{FileAsk, Part, PartKind};
use bytes::{BufMut, Bytes, BytesMut};
use host::error::Error;

/// Encodes the head of a request.
pub(super) fn head(ask: &FileAsk) -> Result<Bytes, Error> {
    let json = serde_json::to_vec(ask).map_err(|error| Error::Protocol(error.to_string()))?;
    let mut bytes = BytesMut::from(&header(PartKind::Head, json.len())[..]);
    bytes.put_slice(&json);
    Ok(bytes.freeze())
}

/// Encodes the end of a request.
pub(super) fn end() -> Bytes {
    let mut bytes = BytesMut::from(&header(PartKind::End, 2)[..]);
    bytes.put_slice(b"{}");
    bytes.freeze()
}

/// Builds the header of a part. The length fits, because no payload exceeds a part's maximum size.
pub(super) fn header(kind: PartKind, length: usize) -> Bytes {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    Bytes::copy_from_slice(&Part { kind, length }.encode())
}

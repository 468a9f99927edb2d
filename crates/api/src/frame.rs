//! Frames that carry an exec's output from the guest to the node.
//!
//! A frame begins with a header of [`HEADER_BYTES`] bytes. In data frames and in the end frame, a payload
//! follows. Payload bytes are never parsed, so output that imitates a frame remains output. The reader treats
//! every header as untrusted.
//!
//! ```text
//! kind u8 · stream u8 · zero u16 · length u32 · offset u64     (big-endian)
//! ```

use crate::exec::Stream;

/// Size of a header.
pub const HEADER_BYTES: usize = 16;
/// Maximum size of a payload. A reader holds at most one frame in memory.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Data: `length` bytes of a stream follow.
    Data {
        /// Stream that the bytes belong to.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes that follow.
        length: u32,
    },
    /// Gap: bytes of a stream that were not kept, from the reader's current offset to `to`.
    Gap {
        /// Stream with the gap.
        stream: Stream,
        /// Offset of the first available byte after the gap.
        to: u64,
    },
    /// Keep-alive: the exec is still running, but has not written any output for a while.
    Heartbeat,
    /// End of the exec and of the stream of frames: `length` bytes of JSON follow, an
    /// [`crate::exec::ExecEnd`].
    End {
        /// Number of bytes that follow.
        length: u32,
    },
}

/// Error for bytes that are not a valid frame header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The kind or the stream is unknown, or unused bits are not zero.
    #[error("invalid frame header")]
    Header,
    /// The payload exceeds the maximum.
    #[error("a frame announces {length} bytes, the maximum is {PAYLOAD_BYTES_MAX}")]
    Length {
        /// Announced length.
        length: u32,
    },
}

impl Header {
    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, stream, length, offset) = match self {
            Self::Data { stream, offset, length } => (1, stream_code(stream), length, offset),
            Self::Gap { stream, to } => (2, stream_code(stream), 0, to),
            Self::Heartbeat => (3, 0, 0, 0),
            Self::End { length } => (4, 0, length, 0),
        };
        let mut bytes = [0; HEADER_BYTES];
        let fields = [kind, stream, 0, 0].into_iter().chain(length.to_be_bytes()).chain(offset.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// Returns an error if [`Header::encode`] never writes such a header, or a payload is empty or too large.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BadFrame> {
        let [kind, stream, z0, z1, l0, l1, l2, l3, offset @ ..] = *bytes;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let offset = u64::from_be_bytes(offset);
        if [z0, z1] != [0, 0] {
            return Err(BadFrame::Header);
        }
        if length as usize > PAYLOAD_BYTES_MAX {
            return Err(BadFrame::Length { length });
        }
        match (kind, stream, length, offset) {
            (1, _, 1.., _) => Ok(Self::Data { stream: stream_of(stream)?, offset, length }),
            (2, _, 0, _) => Ok(Self::Gap { stream: stream_of(stream)?, to: offset }),
            (3, 0, 0, 0) => Ok(Self::Heartbeat),
            (4, 0, 1.., 0) => Ok(Self::End { length }),
            _ => Err(BadFrame::Header),
        }
    }

    /// Returns the number of bytes that follow the header.
    pub fn payload_bytes(self) -> usize {
        match self {
            Self::Data { length, .. } | Self::End { length } => length as usize,
            Self::Gap { .. } | Self::Heartbeat => 0,
        }
    }
}

fn stream_code(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
        Stream::Results => 3,
    }
}

fn stream_of(code: u8) -> Result<Stream, BadFrame> {
    match code {
        1 => Ok(Stream::Stdout),
        2 => Ok(Stream::Stderr),
        3 => Ok(Stream::Results),
        _ => Err(BadFrame::Header),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_decodes_encodes_to_the_same_bytes(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn no_payload_over_the_bound_is_accepted(kind in 1u8..5, length: u32, offset: u64) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[0] = kind;
            bytes[4..8].copy_from_slice(&length.to_be_bytes());
            bytes[8..].copy_from_slice(&offset.to_be_bytes());
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.payload_bytes() <= PAYLOAD_BYTES_MAX);
            }
        }
    }
}

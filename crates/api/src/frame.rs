//! The frames in which an exec's output travels from the guest.
//!
//! A frame is a header of [`HEADER_BYTES`] and, for data and the end, a payload. Bytes of the payload are never
//! looked at, so output that imitates a frame stays output. The reader treats every header as hostile.
//!
//! ```text
//! kind u8 · stream u8 · zero u16 · length u32 · offset u64     (big-endian)
//! ```

use crate::exec::Stream;

/// The size of a header.
pub const HEADER_BYTES: usize = 16;
/// The largest payload. A reader holds one frame at most.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// One frame without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// `length` bytes of a stream follow; the first has this offset.
    Data {
        /// Which stream.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
        /// How many bytes follow.
        length: u32,
    },
    /// Bytes of a stream that were not kept: from the offset at which the reader is, up to `to`.
    Gap {
        /// Which stream.
        stream: Stream,
        /// Offset of the first byte that can be had again.
        to: u64,
    },
    /// Nothing happened for a while; the exec is still there.
    Heartbeat,
    /// The exec has ended; `length` bytes of JSON follow, an [`crate::exec::ExecEnd`]. Nothing comes after.
    End {
        /// How many bytes follow.
        length: u32,
    },
}

/// Why bytes are not a frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// No such kind or stream, or bits set that mean nothing.
    #[error("invalid frame header")]
    Header,
    /// Longer than any frame may be.
    #[error("a frame announces {length} bytes, the maximum is {PAYLOAD_BYTES_MAX}")]
    Length {
        /// What was announced.
        length: u32,
    },
}

impl Header {
    /// The header as bytes.
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

    /// Reads a header.
    ///
    /// # Errors
    /// [`BadFrame`] for anything [`Header::encode`] would not have written, and for payloads over the bound.
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

    /// How many bytes follow the header.
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

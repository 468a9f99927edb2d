//! Encoding of requests and responses as *parts*: each part consists of a header and a payload.
//!
//! ```text
//! kind u8 · zero u8 u16 · length u32     (big-endian)
//! request    head: FileAsk       data…   end: {}
//! response   head: FileAnswer    data…   end: FileEnd
//! ```
//!
//! A request without an end part was interrupted and is not reported as done. A refusal is the last part.

use crate::limits;

/// Size of a header in bytes.
pub const PART_HEADER_BYTES: usize = 8;
/// Maximum size of a data payload in bytes.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// Header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Kind of the payload.
    pub kind: PartKind,
    /// Length of the payload.
    pub length: u32,
}

/// Kind of a part's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// JSON that begins a request or a response.
    Head,
    /// Data bytes.
    Data,
    /// JSON that ends a request or a response.
    End,
}

/// Error for bytes that are not a valid part header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid part header")]
pub struct BadPart;

impl Part {
    /// Encodes the header.
    pub fn encode(self) -> [u8; PART_HEADER_BYTES] {
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let kind = match self.kind {
            PartKind::Head => 1,
            PartKind::Data => 2,
            PartKind::End => 3,
        };
        [kind, 0, 0, 0, l0, l1, l2, l3]
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// Returns an error if [`Part::encode`] never writes such a header, or the payload is empty or too large.
    pub fn decode(bytes: [u8; PART_HEADER_BYTES]) -> Result<Self, BadPart> {
        let [kind, 0, 0, 0, l0, l1, l2, l3] = bytes else { return Err(BadPart) };
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let (kind, most) = match kind {
            1 => (PartKind::Head, limits::BODY_BYTES_MAX),
            2 => (PartKind::Data, PART_BYTES_MAX),
            3 => (PartKind::End, limits::BODY_BYTES_MAX),
            _ => return Err(BadPart),
        };
        if length as usize > most || length == 0 { Err(BadPart) } else { Ok(Self { kind, length }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_decodes_as_a_part_encodes_to_the_same_bytes(bytes: [u8; PART_HEADER_BYTES]) {
            if let Ok(part) = Part::decode(bytes) {
                prop_assert_eq!(part.encode(), bytes);
            }
        }

        #[test]
        fn no_part_over_its_bound_is_accepted(kind in 0u8..5, length: u32) {
            let [l0, l1, l2, l3] = length.to_be_bytes();
            if let Ok(part) = Part::decode([kind, 0, 0, 0, l0, l1, l2, l3]) {
                prop_assert!(part.length as usize <= limits::BODY_BYTES_MAX);
            }
        }
    }
}

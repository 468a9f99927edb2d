//! Decoder for the parts of a response to a file request. It accepts chunks of any size, and treats all input
//! as hostile.
//!
//! ```text
//! head ──▶ data… ──▶ end        nothing follows the end, or a head that is the whole response
//! ```
//!
//! Data is passed on as it arrives and never buffered. Heads and ends are buffered completely, within their
//! size limits.

use api::files::{FileEnd, PART_HEADER_BYTES, Part, PartKind};
use bytes::{Buf, Bytes, BytesMut};
use serde::de::DeserializeOwned;

use host::error::Error;

/// Decoder for the parts of one response.
pub struct Parts {
    /// Bytes that were received but have not been decoded yet.
    piece: Bytes,
    /// An incomplete header, or the incomplete payload of a head or an end.
    held: BytesMut,
    /// The header of the head or end that is being received.
    open: Option<Part>,
    /// Number of bytes of the current data part that have not been decoded yet.
    left: usize,
    stage: Stage,
    /// Maximum size of a head or an end in bytes.
    most: usize,
}

/// A decoded part.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodedPart<H> {
    /// The head of the response.
    Head(H),
    /// The bytes of a data part, or of a fragment of a data part.
    Data(Bytes),
    /// The end of the response.
    End(FileEnd),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Data,
    Ended,
}

impl Parts {
    /// Creates a decoder that accepts heads and ends of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        let (piece, held) = (Bytes::new(), BytesMut::new());
        Self { piece, held, open: None, left: 0, stage: Stage::Head, most }
    }

    /// Passes in the next chunk. The previous chunk must have been decoded completely, which [`Parts::next`]
    /// signals by returning `None`.
    pub fn take(&mut self, piece: Bytes) {
        self.piece = piece;
    }

    /// Returns true if a part has not been received completely.
    pub fn is_open(&self) -> bool {
        self.left > 0 || self.open.is_some() || !self.held.is_empty()
    }

    /// Decodes the next part or fragment. Returns `None` if more input is needed.
    ///
    /// # Errors
    /// Returns an error if the input violates the protocol.
    pub fn next<H: DeserializeOwned>(&mut self) -> Result<Option<DecodedPart<H>>, Error> {
        loop {
            if self.left > 0 {
                let bytes = self.piece.split_to(self.left.min(self.piece.len()));
                self.left -= bytes.len();
                return Ok(if bytes.is_empty() { None } else { Some(DecodedPart::Data(bytes)) });
            }
            let wanted = self.open.map_or(PART_HEADER_BYTES, |part| part.length as usize);
            let missing = wanted.saturating_sub(self.held.len()).min(self.piece.len());
            if self.stage == Stage::Ended && !self.piece.is_empty() {
                return Err(broken("data follows the end of a response"));
            }
            self.held.extend_from_slice(self.piece.get(..missing).unwrap_or_default());
            self.piece.advance(missing);
            if self.held.len() < wanted {
                return Ok(None);
            }
            let held = self.held.split();
            match self.open.take() {
                None => self.header(&held)?,
                Some(part) if part.kind == PartKind::Head => {
                    self.stage = Stage::Data;
                    return json(&held).map(|head| Some(DecodedPart::Head(head)));
                }
                Some(_) => {
                    self.stage = Stage::Ended;
                    return json(&held).map(|end| Some(DecodedPart::End(end)));
                }
            }
        }
    }

    /// Declares the response complete: any further input is an error.
    pub fn close(&mut self) {
        self.stage = Stage::Ended;
    }

    fn header(&mut self, held: &[u8]) -> Result<(), Error> {
        let part = held.first_chunk().and_then(|bytes| Part::decode(*bytes).ok());
        let part = part.ok_or_else(|| broken("malformed part header"))?;
        match (self.stage, part.kind) {
            (Stage::Data, PartKind::Data) => self.left = part.length as usize,
            (Stage::Head, PartKind::Head) | (Stage::Data, PartKind::End)
                if part.length as usize <= self.most =>
            {
                self.open = Some(part);
            }
            (Stage::Head, PartKind::Head) | (Stage::Data, PartKind::End) => {
                return Err(broken("a part exceeds the maximum size for this request"));
            }
            (Stage::Head | Stage::Data | Stage::Ended, PartKind::Head | PartKind::Data | PartKind::End) => {
                return Err(broken("a part arrived out of order"));
            }
        }
        Ok(())
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Protocol(format!("malformed part: {error}")))
}

fn broken(what: &str) -> Error {
    Error::Protocol(what.to_owned())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use api::files::FileAnswer;
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 1 << 16;

    fn part(kind: PartKind, payload: &[u8]) -> Vec<u8> {
        [&Part { kind, length: payload.len() as u32 }.encode()[..], payload].concat()
    }

    fn honest(data: &[u8]) -> Vec<u8> {
        let mut bytes = part(PartKind::Head, br#"{"answer":"streams"}"#);
        for piece in data.chunks(7) {
            bytes.extend(part(PartKind::Data, piece));
        }
        bytes.extend(part(PartKind::End, br#"{"end":"read","sha256":"","changed":false}"#));
        bytes
    }

    /// Decodes bytes in chunks of this size. Returns three values: true if a head was found, the data, and
    /// true if an end was found.
    fn read(bytes: &[u8], size: usize) -> Result<(bool, Vec<u8>, bool), Error> {
        let (mut parts, mut seen) = (Parts::new(MOST), (false, Vec::new(), false));
        for piece in bytes.chunks(size) {
            parts.take(Bytes::copy_from_slice(piece));
            while let Some(found) = parts.next::<FileAnswer>()? {
                match found {
                    DecodedPart::Head(_) => seen.0 = true,
                    DecodedPart::Data(bytes) => seen.1.extend_from_slice(&bytes),
                    DecodedPart::End(_) => seen.2 = true,
                }
            }
        }
        Ok(seen)
    }

    proptest! {
        #[test]
        fn parts_are_read_in_pieces_of_every_size(
            data in proptest::collection::vec(any::<u8>(), 0..100),
            size in 1_usize..200,
        ) {
            prop_assert_eq!(read(&honest(&data), size).unwrap(), (true, data, true));
        }

        #[test]
        fn noise_is_refused_or_incomplete_and_never_more_than_came(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            size in 1_usize..50,
        ) {
            if let Ok((_, data, end)) = read(&bytes, size) {
                prop_assert!(data.len() <= bytes.len() && !end);
            }
        }
    }

    #[test]
    fn parts_out_of_their_order_are_refused() {
        let (head, end) = (br#"{"answer":"streams"}"#, br#"{"end":"read","sha256":"","changed":false}"#);
        let (head, data) = (part(PartKind::Head, head), part(PartKind::Data, b"x"));
        let end = part(PartKind::End, end);
        for lie in [
            data.clone(),
            end.clone(),
            [head.clone(), head.clone()].concat(),
            [head.clone(), end.clone(), data.clone()].concat(),
            [head.clone(), end.clone(), vec![0]].concat(),
            [head.clone(), part(PartKind::End, b"{}")].concat(),
            part(PartKind::Head, b"null"),
        ] {
            assert!(matches!(read(&lie, 5), Err(Error::Protocol(_))), "{lie:?}");
        }
    }

    #[test]
    fn a_part_over_its_bound_is_refused_before_its_bytes_come() {
        for (kind, length) in [(1_u8, MOST as u32 + 1), (2, u32::MAX), (1, u32::MAX)] {
            let [l0, l1, l2, l3] = length.to_be_bytes();
            assert!(read(&[kind, 0, 0, 0, l0, l1, l2, l3], 8).is_err());
        }
    }
}

//! Converts exec output to lines of JSON, without ever splitting a character.

use api::exec::Stream;
use api::output::{OutputLine, PerStream};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Bytes of an incomplete character at the end of each stream, with the offset of the first of these bytes.
#[derive(Default)]
pub struct Carried(PerStream<(u64, Vec<u8>)>);

impl Carried {
    /// Returns lines for the carried bytes followed by these bytes. If the last character is incomplete,
    /// carries its bytes over to the next call.
    pub fn take(&mut self, stream: Stream, offset: u64, bytes: &[u8]) -> Vec<OutputLine> {
        let (at, carried) = self.0.get_mut(stream);
        let first = if carried.is_empty() { offset } else { *at };
        let mut whole = std::mem::take(carried);
        whole.extend_from_slice(bytes);
        let valid = match std::str::from_utf8(&whole) {
            Ok(_) => whole.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // The bytes are not valid UTF-8. Return all of them unchanged.
            Err(_) => return vec![data(stream, first, &whole)],
        };
        let rest = whole.split_off(valid);
        *carried = rest;
        *at = first + valid as u64;
        if whole.is_empty() { Vec::new() } else { vec![data(stream, first, &whole)] }
    }

    /// Returns the carried bytes of a stream, for use when no further bytes can complete their character.
    pub fn flush(&mut self, stream: Stream) -> Vec<OutputLine> {
        let (at, carried) = self.0.get_mut(stream);
        let bytes = std::mem::take(carried);
        if bytes.is_empty() { Vec::new() } else { vec![data(stream, *at, &bytes)] }
    }

    /// Returns the carried bytes of a stream if they begin before this offset.
    pub fn flush_before(&mut self, stream: Stream, offset: u64) -> Vec<OutputLine> {
        let (at, _) = self.0.get_mut(stream);
        if *at < offset { self.flush(stream) } else { Vec::new() }
    }

    /// Returns the carried bytes of all streams.
    pub fn flush_all(&mut self) -> Vec<OutputLine> {
        let mut lines = self.flush(Stream::Stdout);
        lines.extend(self.flush(Stream::Stderr));
        lines
    }
}

fn data(stream: Stream, offset: u64, bytes: &[u8]) -> OutputLine {
    match std::str::from_utf8(bytes) {
        Ok(text) => OutputLine::Data { stream, offset, text: Some(text.to_owned()), base64: None },
        Err(_) => OutputLine::Data { stream, offset, text: None, base64: Some(STANDARD.encode(bytes)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(lines: &[OutputLine]) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let mut texts = true;
        for line in lines {
            if let OutputLine::Data { offset, text, base64, .. } = line {
                assert_eq!(*offset, bytes.len() as u64);
                texts &= text.is_some();
                let part = match (text, base64) {
                    (Some(text), None) => text.clone().into_bytes(),
                    (None, Some(packed)) => STANDARD.decode(packed).unwrap(),
                    _ => panic!("both or neither"),
                };
                bytes.extend(part);
            }
        }
        (bytes, texts)
    }

    fn through(bytes: &[u8], cuts: usize) -> Vec<OutputLine> {
        let mut carried = Carried::default();
        let mut lines = Vec::new();
        let mut offset = 0;
        for piece in bytes.chunks(cuts) {
            lines.extend(carried.take(Stream::Stdout, offset, piece));
            offset += piece.len() as u64;
        }
        lines.extend(carried.flush_all());
        lines
    }

    #[test]
    fn characters_are_never_cut_in_two() {
        // The text arrives in pieces of 1 to 8 bytes.
        let text = "☕é😀a".repeat(1000);
        for cuts in 1..9 {
            assert_eq!(told(&through(text.as_bytes(), cuts)), (text.clone().into_bytes(), true), "{cuts}");
        }
    }

    #[test]
    fn half_a_character_is_told_before_the_result_that_follows_it() {
        let mut carried = Carried::default();
        let coffee = "☕".as_bytes();
        assert!(carried.take(Stream::Stdout, 0, &coffee[..2]).is_empty());
        assert!(carried.flush_before(Stream::Stdout, 0).is_empty(), "it was written after it");
        assert_eq!(told(&carried.flush_before(Stream::Stdout, 2)).0, &coffee[..2]);
    }

    proptest! {
        #[test]
        fn every_byte_is_told_once(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in 1_usize..20) {
            prop_assert_eq!(told(&through(&bytes, cuts)).0, bytes);
        }
    }
}

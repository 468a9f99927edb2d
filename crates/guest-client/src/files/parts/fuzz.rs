//! Fuzz target: the response to a file request, as a hostile guest sends it.

use api::files::FileAnswer;

use super::*;

/// Maximum size of a head or an end in this target.
const MOST: usize = 512;

/// Returns the head, the data, whether the response ended, and whether it violates the protocol.
fn received(input: &[u8], chunk: usize) -> (Option<FileAnswer>, Vec<u8>, bool, bool) {
    let mut parts = Parts::new(MOST);
    let (mut head, mut data, mut ended) = (None, Vec::new(), false);
    for piece in input.chunks(chunk) {
        parts.take(Bytes::copy_from_slice(piece));
        loop {
            match parts.next::<FileAnswer>() {
                Ok(None) => break,
                Ok(Some(DecodedPart::Head(answer))) => assert!(head.replace(answer).is_none(), "two heads"),
                Ok(Some(DecodedPart::Data(bytes))) => {
                    assert!(head.is_some() && !ended && !bytes.is_empty());
                    data.extend_from_slice(&bytes);
                }
                Ok(Some(DecodedPart::End(_))) => ended = true,
                Err(_) => return (head, data, ended, true),
            }
        }
        assert!(parts.held.len() <= MOST.max(PART_HEADER_BYTES));
    }
    (head, data, ended, false)
}

#[test]
fn a_response_in_pieces_is_the_same_as_a_response_in_one_piece() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Some((chunk, parts)) = input.split_first() else { return };
        let whole = received(parts, parts.len().max(1));
        assert_eq!(received(parts, usize::from(*chunk).max(1)), whole);
        assert_eq!(received(parts, 1), whole);
        assert!(whole.1.len() <= parts.len());
    });
}

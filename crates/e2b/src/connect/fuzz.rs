//! Fuzz target: envelopes in the body of a request.

use super::*;

/// Returns the messages, the number of bytes that remain, and whether the body is invalid.
fn received(input: &[u8], chunk: usize) -> (Vec<Bytes>, usize, bool) {
    let (mut envelopes, mut messages) = (Envelopes::default(), Vec::new());
    for piece in input.chunks(chunk) {
        envelopes.take(piece);
        loop {
            match envelopes.next() {
                Ok(None) => break,
                Ok(Some(message)) => messages.push(message),
                Err(_) => return (messages, 0, true),
            }
        }
        let missing = envelopes.unfinished();
        assert_eq!(missing.is_none(), envelopes.0.is_empty());
        assert!(
            missing.is_none_or(|bytes| envelopes.0.len() < bytes && bytes <= HEAD_BYTES + MESSAGE_BYTES_MAX)
        );
    }
    (messages, envelopes.0.len(), false)
}

#[test]
fn envelopes_in_pieces_are_the_same_as_envelopes_in_one_piece() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Some((chunk, body)) = input.split_first() else { return };
        let whole = received(body, body.len().max(1));
        assert_eq!(received(body, usize::from(*chunk).max(1)), whole);
        assert_eq!(received(body, 1), whole);
        let (messages, left, failed) = whole;
        let used: usize = messages.iter().map(|message| HEAD_BYTES + message.len()).sum();
        assert!(used + left <= body.len() && (failed || used + left == body.len()));
        assert_eq!(only(&Bytes::copy_from_slice(body)).ok(), messages.first().cloned());
    });
}

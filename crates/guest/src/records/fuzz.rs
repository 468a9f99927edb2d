//! Fuzz target: records of an interpreter.

use super::*;

fn received(input: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (mut unread, mut all) = (Unread::default(), Vec::new());
    for piece in input.chunks(chunk) {
        unread.add(piece);
        while let Some(record) = unread.take() {
            all.push(record);
        }
        assert!(unread.scanned <= unread.bytes.len() && unread.from <= unread.scanned);
    }
    (all, unread.bytes[unread.from..].to_vec())
}

#[test]
fn records_in_pieces_are_the_same_as_records_in_one_piece() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Some((chunk, bytes)) = input.split_first() else { return };
        let (records, rest) = received(bytes, bytes.len().max(1));
        assert_eq!(received(bytes, usize::from(*chunk).max(1)), (records.clone(), rest.clone()));
        let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
        assert_eq!(parts.pop().unwrap_or_default(), rest);
        assert_eq!(parts, records);
    });
}

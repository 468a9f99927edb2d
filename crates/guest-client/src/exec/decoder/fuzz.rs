//! Fuzz target: the output of an exec, as a hostile guest sends it.

use super::*;

/// What a reader of an exec's output receives. The division into chunks is not part of it.
#[derive(Debug, Default, PartialEq)]
struct Received {
    data: PerStream<Vec<u8>>,
    gaps: Vec<(Stream, u64, u64)>,
    results: Vec<(u64, u64)>,
    ended: bool,
    failed: bool,
}

fn received(input: &[u8], chunk: usize) -> Received {
    let (mut decoder, mut all) = (OutputDecoder::default(), Received::default());
    for piece in input.chunks(chunk) {
        decoder.take(piece);
        loop {
            match decoder.decode() {
                Ok(None) => break,
                Ok(Some(Event::Data { stream, bytes, .. })) => {
                    all.data.get_mut(stream).extend_from_slice(&bytes)
                }
                Ok(Some(Event::Gap { stream, from, to })) => {
                    assert!(from < to);
                    all.gaps.push((stream, from, to));
                }
                Ok(Some(Event::Result { offset, next, .. })) => {
                    assert!(offset < next);
                    all.results.push((offset, next));
                }
                Ok(Some(Event::End(_))) => {
                    all.ended = true;
                    return all;
                }
                Err(_) => {
                    all.failed = true;
                    return all;
                }
            }
        }
        assert!(decoder.buffer.len() <= input.len());
    }
    all
}

#[test]
fn output_in_pieces_is_the_same_as_output_in_one_piece() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Some((chunk, frames)) = input.split_first() else { return };
        let whole = received(frames, frames.len().max(1));
        assert_eq!(received(frames, usize::from(*chunk).max(1)), whole);
        assert_eq!(received(frames, 1), whole);
        let bytes: usize =
            [Stream::Stdout, Stream::Stderr].iter().map(|stream| whole.data.get(*stream).len()).sum();
        assert!(bytes <= frames.len());
    });
}

#[test]
fn output_beyond_the_largest_offset_is_refused() {
    for stream in [Stream::Stdout, Stream::Results] {
        let gap = Header::Gap { stream, to: u64::MAX }.encode();
        let data = Header::Data { stream, offset: u64::MAX, length: 1 }.encode();
        assert!(received(&[&gap[..], &data[..], b"\n"].concat(), 7).failed, "{stream:?}");
    }
}

//! Fuzz target: values of secrets in a response.

use super::*;

const VALUES: [&str; 3] = ["canary-abab", "abababab", "s3cr3t /+\"ä\""];

#[test]
fn a_response_in_pieces_is_masked_the_same_as_in_one_piece() {
    let values: Vec<SecretValue> = VALUES.iter().map(|value| SecretValue::new((*value).into())).collect();
    let (scrubber, forms) = (Scrubber::new(&values), VALUES.map(forms));
    bolero::check!().with_iterations(1000).for_each(move |input: &[u8]| {
        let Some((chunk, bytes)) = input.split_first() else { return };
        let whole = scrubber.whole(bytes);
        let (mut pieces, mut clear) =
            (Scrubber::of(Arc::clone(&scrubber.forms), BytesMut::new()), Vec::new());
        for piece in bytes.chunks(usize::from(*chunk).max(1)) {
            clear.extend_from_slice(&pieces.push(piece));
        }
        clear.extend_from_slice(&pieces.finish());
        assert_eq!(clear, whole);
        assert_eq!(whole.len(), bytes.len());
        for form in forms.iter().flatten() {
            assert!(!whole.windows(form.len()).any(|window| window == form), "{whole:?}");
        }
        assert!(bytes.iter().zip(&whole).all(|(before, after)| before == after || *after == MASK));
    });
}

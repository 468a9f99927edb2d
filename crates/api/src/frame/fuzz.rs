//! Fuzz target: headers of frames.

use super::*;

#[test]
fn a_header_that_decodes_encodes_to_the_same_bytes() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else { return };
        let Ok(header) = Header::decode(bytes) else { return };
        assert_eq!(header.encode(), *bytes);
        assert!(header.payload_bytes() <= PAYLOAD_BYTES_MAX);
    });
}

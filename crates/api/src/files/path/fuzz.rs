//! Fuzz target: percent-encoded paths.

use super::*;

#[test]
fn a_path_that_decodes_has_one_encoded_form() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(path) = FilePath::decode(text) else { return };
        assert!(!path.as_bytes().contains(&0) && path.as_bytes().len() <= PATH_BYTES_MAX);
        assert!(!path.as_bytes().split(|byte| *byte == b'/').any(|part| part == b".."));
        let encoded = path.encode();
        assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"%/-_.~".contains(&byte)));
        assert_eq!(FilePath::decode(&encoded).unwrap(), path);
        assert_eq!(FilePath::decode(&encoded).unwrap().encode(), encoded);
    });
}

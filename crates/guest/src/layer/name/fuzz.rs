//! Fuzz target: names of entries.

use super::*;

#[test]
fn a_name_written_differently_is_the_same_path() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(name) = Name::parse(input) else { return };
        assert!(name.parts.len() <= DEPTH_MAX);
        for part in &name.parts {
            assert!((1..=PART_BYTES_MAX).contains(&part.len()) && part != b"." && part != b"..");
            assert!(!part.contains(&b'/') && !part.contains(&0));
            if let Ok(Meaning::Hides(hidden)) = meaning(part) {
                assert!(!hidden.is_empty() && hidden != b"." && hidden != b"..");
            }
        }
        let plain = name.bytes();
        for other in [plain.clone(), [b"/", &*plain].concat(), [b"./", &*plain, b"/."].concat()] {
            if other.len() <= PATH_BYTES_MAX {
                assert_eq!(Name::parse(&other).unwrap(), name);
            }
        }
    });
}

//! Fuzz targets: archives that a sandbox sends.

use std::os::unix::fs::MetadataExt as _;

use super::tests::{archive, ground, unpack};
use super::*;

/// Unpacks an archive and checks everything that it created.
fn check(bytes: &[u8]) {
    let ground = ground();
    let unpacked = unpack(ground.path(), bytes);
    let created = created(&ground.path().join("inside"), 0);
    if let Ok(unpacked) = unpacked {
        assert!(unpacked.entries <= bytes.len() as u64 / 512);
        assert!(created <= unpacked.entries * u64::from(DEPTH_MAX));
    }
}

/// Returns the number of entries below a directory. Panics if one of them is not allowed there.
fn created(directory: &Path, depth: usize) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        let about = std::fs::symlink_metadata(&path).unwrap();
        let kind = about.file_type();
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "{path:?}");
        assert!(kind.is_symlink() || about.mode() & 0o7000 == 0, "{path:?}");
        assert!(!path.to_string_lossy().ends_with(".part"), "{path:?}");
        assert!(!kind.is_file() || about.nlink() == 1, "{path:?}");
        if kind.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            assert!(stays_inside(target.as_os_str().as_encoded_bytes(), depth), "{path:?} {target:?}");
        }
        count += 1 + if kind.is_dir() { created(&path, depth + 1) } else { 0 };
    }
    count
}

/// Builds an archive from lines of the form `KIND|NAME|TARGET|CONTENT`. `~` stands for NUL.
#[test]
fn an_archive_of_a_sandbox_unpacks_inside_its_directory_or_is_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| {
        let input: Vec<u8> = input.iter().map(|byte| if *byte == b'~' { 0 } else { *byte }).collect();
        let mut entries = Vec::new();
        for line in input.split(|byte| *byte == b'\n') {
            let mut fields = line.splitn(4, |byte| *byte == b'|');
            let mut next = |most: usize| {
                let field = fields.next().unwrap_or_default();
                &field[..field.len().min(most)]
            };
            let [kind, name, target, content] = [1, 100, 100, usize::MAX].map(&mut next);
            let Some(kind) = kind.first() else { continue };
            entries.push((*kind, name, target, content));
        }
        check(&archive(&entries));
    });
}

#[test]
fn raw_bytes_of_a_sandbox_unpack_inside_the_directory_or_are_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| check(input));
}

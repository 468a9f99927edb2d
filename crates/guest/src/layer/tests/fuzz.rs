//! Fuzz targets: layers of images, and their compression.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;

use super::super::source::Source;
use super::archive::{Archive, Head};
use super::*;

/// Maximum number of decompressed bytes that a target reads.
const READ_BYTES_MAX: usize = 32 << 20;

/// Builds layers from lines of the form `KIND|NAME|TARGET|CONTENT|MODE`. A line `=` ends a layer. `$` stands
/// for a line break, `~` for NUL and `@` for the path of a directory outside the layers.
fn layers(input: &[u8], outside: &str) -> Vec<Archive> {
    let mut all = vec![Archive::new()];
    for line in input.split(|byte| *byte == b'\n') {
        if line == b"=" {
            all.push(Archive::new());
            continue;
        }
        let field = |at: usize| {
            let mut bytes = Vec::new();
            for byte in line.split(|byte| *byte == b'|').nth(at).unwrap_or_default() {
                match byte {
                    b'$' => bytes.push(b'\n'),
                    b'~' => bytes.push(0),
                    b'@' => bytes.extend_from_slice(outside.as_bytes()),
                    byte => bytes.push(*byte),
                }
            }
            bytes
        };
        let [kind, name, target, content, mode] = [0, 1, 2, 3, 4].map(field);
        let Some(kind) = kind.first() else { continue };
        let mode = std::str::from_utf8(&mode).ok().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let mode = mode.unwrap_or(0o755) & 0o7777;
        let head = Head { kind: *kind, name: &name, target: &target, mode, ..Head::default() };
        let last = all.pop().unwrap();
        all.push(last.entry(&head, &content));
    }
    all
}

/// Checks everything in an unpacked layer: its types, its modes, and the paths that belong to the sandbox.
fn check(directory: &Path, depth: usize) {
    // Only root can read a directory without permissions.
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        let kind = about.file_type();
        let is_whiteout = kind.is_char_device() && about.rdev() == 0;
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink() || is_whiteout, "{path:?}");
        assert!(kind.is_symlink() || about.mode() & 0o6000 == 0, "{path:?}");
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        let is_closed = depth == 0 && ["proc", "sys", "dev", ".bellglass"].contains(&name);
        if kind.is_dir() {
            assert!(!is_closed || fs::read_dir(&path).unwrap().count() == 0, "{path:?}");
            check(&path, depth + 1);
        } else {
            assert!(!is_closed, "{path:?}");
        }
    }
}

#[test]
fn a_layer_unpacks_inside_its_directory_or_is_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| {
        let mut bench = Bench::new();
        let outside = bench.outside();
        for layer in layers(input, &outside) {
            let count = layer.bytes.len() / 512;
            let Ok(report) = bench.layer_with(&layer.end()) else { return };
            assert!(report.entries <= count as u64);
            check(bench.top(), 0);
        }
    });
}

#[test]
fn a_raw_archive_unpacks_inside_its_directory_or_is_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| {
        let mut bench = Bench::new();
        if bench.packed(input, Compression::sniff(input), false).is_ok() {
            check(bench.top(), 0);
        }
    });
}

/// Returns the decompressed bytes, at most [`READ_BYTES_MAX`], and whether the end was reached.
fn decompressed(input: &[u8], compression: Compression, chunk: usize) -> (Vec<u8>, bool) {
    let mut source = Source::new(Cursor::new(input), compression, Fault::default());
    let (mut all, mut buffer) = (Vec::new(), vec![0; chunk]);
    while all.len() < READ_BYTES_MAX {
        match source.read(&mut buffer) {
            Ok(0) => return (all, true),
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(_) => return (all, false),
        }
    }
    (all, false)
}

#[test]
fn a_compressed_layer_read_in_pieces_has_the_same_bytes() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        for compression in [Compression::Gzip, Compression::Zstd] {
            let (whole, ended) = decompressed(input, compression, 1 << 16);
            // Small reads of a large expansion take too long.
            if whole.len() > 1 << 20 {
                continue;
            }
            let (pieces, also) = decompressed(input, compression, 7);
            assert_eq!(also, ended);
            assert!(if ended {
                whole == pieces
            } else {
                whole.starts_with(&pieces) || pieces.starts_with(&whole)
            });
        }
    });
}

//! Fuzz target: archives that a client uploads.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

/// Builds an archive from lines of the form `KIND|NAME|TARGET|CONTENT|MODE`. `$` stands for a line break and
/// `~` for NUL.
fn archive(input: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for line in input.split(|byte| *byte == b'\n') {
        let field = |at: usize| {
            let bytes = line.split(|byte| *byte == b'|').nth(at).unwrap_or_default();
            let plain = |byte: &u8| match byte {
                b'$' => b'\n',
                b'~' => 0,
                byte => *byte,
            };
            bytes.iter().map(plain).collect::<Vec<u8>>()
        };
        let [kind, name, target, content, mode] = [0, 1, 2, 3, 4].map(field);
        let Some(kind) = kind.first() else { continue };
        let mode = std::str::from_utf8(&mode).ok().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(*kind));
        header.set_mode(mode.unwrap_or(0o6755) & 0o7777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        let fields = header.as_old_mut();
        fields.name.iter_mut().zip(&name).for_each(|(to, from)| *to = *from);
        fields.linkname.iter_mut().zip(&target).for_each(|(to, from)| *to = *from);
        header.set_cksum();
        builder.append(&header, content.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Returns the paths, modes, owners and contents of everything in a directory.
fn seen(directory: &Path) -> Vec<(std::path::PathBuf, u32, Vec<u8>)> {
    let mut all = vec![(directory.to_owned(), fs::metadata(directory).unwrap().mode(), Vec::new())];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            all.extend(seen(&path));
        } else {
            let content = if about.is_file() { fs::read(&path).unwrap_or_default() } else { Vec::new() };
            all.push((path, about.mode(), content));
        }
    }
    all
}

#[test]
fn an_uploaded_archive_unpacks_inside_its_directory_or_is_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| {
        let ground = tempfile::tempdir().unwrap();
        let (inside, outside) = (ground.path().join("inside"), ground.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o711)).unwrap();
        std::os::unix::fs::symlink("../outside", inside.join("out")).unwrap();
        let before = seen(&outside);
        let bytes = archive(input);
        let root = OwnedFd::from(fs::File::open(&inside).unwrap());
        let mut unpacker = ArchiveUnpacker {
            root,
            path: inside.as_os_str().as_bytes().to_vec(),
            last: None,
            report: ArchiveReport::default(),
        };
        let mut source = Archive::new(Source::new(bytes.as_slice(), Compression::None, Fault::default()));
        let _ = unpacker.all(&mut source);
        assert_eq!(seen(&outside), before);
        assert_eq!(fs::read_dir(ground.path()).unwrap().count(), 2);
        assert!(unpacker.report.entries + unpacker.report.skipped <= bytes.len() as u64 / 512);
        for (path, mode, _) in seen(&inside) {
            assert!([0o100_000, 0o040_000, 0o120_000].contains(&(mode & 0o170_000)), "{path:?} {mode:o}");
            assert!(mode & 0o7000 == 0, "{path:?} {mode:o}");
        }
    });
}

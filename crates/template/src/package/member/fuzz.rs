//! Fuzz targets: archives of images.

use std::io::{Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;

use super::*;

/// Indexes an archive and checks its members.
fn check(bytes: &[u8]) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    let Ok(members) = index(&file) else { return };
    assert!(members.len() <= MEMBERS_MAX);
    for (name, member) in &members {
        match member {
            Member::Content { offset, size } => {
                assert!(*offset >= 512 && *offset <= bytes.len() as u64 + 512, "{name:?}");
                let mut first = [0];
                if *size > 0 && *offset < bytes.len() as u64 {
                    assert_eq!(file.read_at(&mut first, *offset).unwrap(), 1);
                }
            }
            Member::Same(_) => {}
        }
    }
}

#[test]
fn an_archive_has_members_inside_itself_or_is_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| {
        let mut builder = tar::Builder::new(Vec::new());
        for line in input.split(|byte| *byte == b'\n') {
            let mut fields = line.splitn(4, |byte| *byte == b'|').map(|field| {
                let plain = |byte: &u8| if *byte == b'$' { b'\n' } else { *byte };
                field.iter().map(plain).collect::<Vec<u8>>()
            });
            let [kind, name, target, content] = [(); 4].map(|()| fields.next().unwrap_or_default());
            let Some(kind) = kind.first() else { continue };
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::new(*kind));
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            let old = header.as_old_mut();
            old.name.iter_mut().zip(&name).for_each(|(to, from)| *to = *from);
            old.linkname.iter_mut().zip(&target).for_each(|(to, from)| *to = *from);
            header.set_cksum();
            builder.append(&header, content.as_slice()).unwrap();
        }
        check(&builder.into_inner().unwrap());
    });
}

#[test]
fn a_raw_archive_has_members_inside_itself_or_is_refused() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| check(input));
}

#[test]
fn a_symlink_in_an_archive_stays_inside_it() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let (name, target) = text.split_once('\n').unwrap_or((text, ""));
        let name = name.trim_start_matches("./");
        let Some(other) = beside(name, target) else { return };
        assert!(!other.starts_with('/') || name.starts_with('/'), "{other:?}");
        let climbs = |path: &str| path.split('/').any(|part| part == "..");
        assert!(!climbs(&other) || climbs(name), "{other:?}");
    });
}

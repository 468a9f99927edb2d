//! The index of an image archive: the positions of its members, by name.
//!
//! The archive is untrusted. The number of members and the size of each header are limited. A name may occur
//! only once, so that all readers interpret the archive in the same way.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use host::error::Error;

use crate::unsound;

/// Maximum number of members of an archive. An image with all its layers, documents and directories has a few
/// hundred members.
pub(super) const MEMBERS_MAX: usize = 10_000;
/// Maximum size in bytes of an extended header, which holds a name and a few numbers for the next member.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;

const REGULAR: u8 = b'0';
const LINK: u8 = b'1';
const SYMLINK: u8 = b'2';
const DIRECTORY: u8 = b'5';
const PAX: u8 = b'x';
const PAX_GLOBAL: u8 = b'g';
const GNU_LONG_NAME: u8 = b'L';
const GNU_LONG_LINK: u8 = b'K';

/// The position of a member in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Content {
        offset: u64,
        size: u64,
    },
    /// A link to the member with this name, which has the content.
    Same(String),
}

/// Attributes of the next member, collected from extended headers.
#[derive(Default)]
struct Ahead {
    name: Option<String>,
    target: Option<String>,
}

impl Ahead {
    /// Processes one raw header. Returns the member, unless the header only describes the next member or has
    /// a type that is not used.
    fn take<R: Read>(&mut self, raw: &mut tar::Entry<'_, R>) -> Result<Option<(String, Member)>, String> {
        let header = raw.header().clone();
        let size = header.entry_size().map_err(|error| error.to_string())?;
        let kind = header.entry_type().as_byte();
        if [PAX, PAX_GLOBAL, GNU_LONG_NAME, GNU_LONG_LINK].contains(&kind) {
            if size > DESCRIPTION_BYTES_MAX {
                return Err(format!(
                    "a header has {size} bytes, the hard maximum is {DESCRIPTION_BYTES_MAX}"
                ));
            }
            let mut bytes = Vec::new();
            raw.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
            self.describe(kind, &bytes)?;
            return Ok(None);
        }
        let Self { name, target } = std::mem::take(self);
        let name = name.unwrap_or_else(|| String::from_utf8_lossy(&header.path_bytes()).into_owned());
        let name = name.trim_start_matches("./").to_owned();
        let target =
            target.or_else(|| Some(String::from_utf8_lossy(&header.link_name_bytes()?).into_owned()));
        Ok(match kind {
            REGULAR => Some((name, Member::Content { offset: raw.raw_file_position(), size })),
            SYMLINK => {
                target.and_then(|target| beside(&name, &target)).map(|other| (name, Member::Same(other)))
            }
            LINK => target.map(|target| (name, Member::Same(target.trim_start_matches("./").to_owned()))),
            DIRECTORY => None,
            // Images contain no members of other types.
            _ => None,
        })
    }

    fn describe(&mut self, kind: u8, bytes: &[u8]) -> Result<(), String> {
        let text = || String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
        match kind {
            GNU_LONG_NAME => self.name = Some(text()),
            GNU_LONG_LINK => self.target = Some(text()),
            PAX => {
                for record in tar::PaxExtensions::new(bytes) {
                    let record = record.map_err(|error| error.to_string())?;
                    let value = || String::from_utf8_lossy(record.value_bytes()).into_owned();
                    match record.key_bytes() {
                        b"path" => self.name = Some(value()),
                        b"linkpath" => self.target = Some(value()),
                        // Such a record occurs for a member of 8 GiB or more, or in an archive that was
                        // crafted so that readers interpret it differently.
                        b"size" => {
                            return Err(
                                "the size of a member is in an extended header, which is not supported"
                                    .into(),
                            );
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the positions of all members, by name.
pub(super) fn index(file: &File) -> Result<HashMap<String, Member>, Error> {
    // The message may contain bytes of the archive. Control characters are replaced, because they must not
    // reach a terminal.
    let not_sound = |why: String| {
        let why: String = why.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect();
        unsound(
            format!("the image is not a valid archive: {why}"),
            "Use a `docker save` archive or an OCI layout.",
        )
    };
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries_with_seek().map_err(|error| not_sound(error.to_string()))?;
    let mut members = HashMap::new();
    let mut ahead = Ahead::default();
    for (count, raw) in entries.raw(true).enumerate() {
        let mut raw = raw.map_err(|error| not_sound(error.to_string()))?;
        if count >= MEMBERS_MAX {
            return Err(Error::Request(api::limits::exceeded(
                "the number of archive members",
                count as u64 + 1,
                MEMBERS_MAX as u64,
            )));
        }
        let Some((name, member)) = ahead.take(&mut raw).map_err(not_sound)? else { continue };
        if members.insert(name.clone(), member).is_some() {
            return Err(not_sound(format!("duplicate member {name:?}")));
        }
    }
    Ok(members)
}

/// Returns the member to which a symlink at `name` points, or `None` if it points outside the archive.
fn beside(name: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_of_any_size_is_not_read() {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(GNU_LONG_NAME));
        header.set_size(8 << 30);
        header.set_cksum();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), header.as_bytes()).unwrap();
        assert!(index(file.as_file()).is_err());
    }

    #[test]
    fn symlinks_never_lead_out_of_the_archive() {
        assert_eq!(beside("a/b", "../c/d").as_deref(), Some("c/d"));
        assert_eq!(beside("a", "../../etc/passwd"), None);
        assert_eq!(beside("a/b", "/etc/passwd").as_deref(), Some("a/etc/passwd"));
    }
}

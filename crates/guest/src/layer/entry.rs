//! One entry of an archive, assembled from its headers.
//!
//! The `tar` crate returns only the raw headers. Headers that describe the next entry (long names, PAX
//! records) are parsed here, with a size limit, because a reader that trusts their stated sizes could use any
//! amount of memory. Archives that are known to be interpreted differently by different readers are refused.
//! So every other reader shows the same content as the unpacker.

use std::io::Read;

use api::Error;
use tar::Header;

use super::name::{Name, PATH_BYTES_MAX};
use super::refusal::{broken, over, refused};

/// Maximum size of a header that describes the next entry. The largest such content is extended attributes,
/// which file systems limit to 64 KiB.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;
/// Maximum user and group ID: the last ID in a sandbox's ID range.
const ID_MAX: u64 = api::limits::UID_RANGE as u64 - 1;
/// Maximum modification time: in the year 2106, which all file systems of a host can store.
const MTIME_MAX: u64 = u32::MAX as u64;

/// Types of entries, as encoded in the format.
const REGULAR: u8 = b'0';
const LINK: u8 = b'1';
const SYMLINK: u8 = b'2';
const CHARACTER_DEVICE: u8 = b'3';
const BLOCK_DEVICE: u8 = b'4';
const DIRECTORY: u8 = b'5';
const FIFO: u8 = b'6';
const CONTIGUOUS: u8 = b'7';
const PAX: u8 = b'x';
const PAX_GLOBAL: u8 = b'g';
const GNU_LONG_NAME: u8 = b'L';
const GNU_LONG_LINK: u8 = b'K';
const GNU_SPARSE: u8 = b'S';

/// Type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file; its content follows in the archive.
    File,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A hard link to another entry.
    Link(Name),
    /// A device node.
    Device,
    /// A FIFO.
    Fifo,
}

/// Owner, permissions and modification time of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Modification time in seconds since 1970.
    pub mtime: u32,
}

/// An entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveEntry {
    /// Name.
    pub name: Name,
    /// Type.
    pub kind: EntryKind,
    /// Owner, mode and time, as stated in the archive.
    pub meta: Meta,
    /// Size of the content.
    pub size: u64,
    /// Number of extended attributes of the entry.
    pub attributes: u64,
}

/// Information about the next entry from the headers read so far.
#[derive(Debug, Default)]
pub struct Ahead {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: Option<PaxRecords>,
    /// True if owners are ignored, because the unpacked files get a different owner.
    any_owner: bool,
}

/// The supported PAX records.
#[derive(Debug, Default, PartialEq, Eq)]
struct PaxRecords {
    path: Option<Vec<u8>>,
    linkpath: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    attributes: u64,
}

impl Ahead {
    /// Creates a reader for an archive whose files will all belong to the user that unpacks them.
    pub fn of_any_owner() -> Self {
        Self { any_owner: true, ..Self::default() }
    }

    /// Reads one raw header. Returns the entry, or `None` if the header describes the next entry.
    pub fn take<R: Read>(&mut self, raw: &mut tar::Entry<'_, R>) -> Result<Option<ArchiveEntry>, Error> {
        let header = raw.header().clone();
        let label = header.path_bytes().into_owned();
        check_header(&header, &label)?;
        let size = header.entry_size().map_err(|error| refused(&label, error))?;
        match header.entry_type().as_byte() {
            GNU_LONG_NAME => once(&mut self.name, text(raw, size, &label)?, &label)?,
            GNU_LONG_LINK => once(&mut self.target, text(raw, size, &label)?, &label)?,
            PAX => once(&mut self.records, PaxRecords::parse(&description(raw, size, &label)?)?, &label)?,
            PAX_GLOBAL => {
                // A global header may contain comments of the tool that created the archive, which are
                // harmless. Settings for all later entries are refused.
                let records = PaxRecords::parse(&description(raw, size, &label)?)?;
                if records != PaxRecords::default() {
                    return Err(refused(
                        &label,
                        "is a global header for all later entries, which is not supported",
                    ));
                }
            }
            _ => return self.finish(&header, size).map(Some),
        }
        Ok(None)
    }

    /// Returns an error if the archive ends with headers that describe a missing entry.
    pub fn end(&self) -> Result<(), Error> {
        match self {
            Self { name: None, target: None, records: None, any_owner: _ } => Ok(()),
            _ => Err(broken("it ends with headers that describe a missing entry")),
        }
    }

    /// Assembles an entry from its own header and the headers before it.
    fn finish(&mut self, header: &Header, size: u64) -> Result<ArchiveEntry, Error> {
        let any_owner = self.any_owner;
        let fresh = Self { any_owner, ..Self::default() };
        let Self { name, target, records, .. } = std::mem::replace(self, fresh);
        let records = records.unwrap_or_default();
        let spelled = either(name, records.path, &header.path_bytes())?
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let target = either(target, records.linkpath, &spelled)?
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        if records.size.is_some_and(|said| said != size) {
            return Err(refused(&spelled, "has two sizes"));
        }
        let name = Name::parse(&spelled)?;
        let kind = kind(header, &spelled, target)?;
        if size != 0 && kind != EntryKind::File {
            return Err(refused(&spelled, "has content, which its type does not allow"));
        }
        let id = |record: Option<u64>, field: std::io::Result<u64>| match record.map_or(field, Ok) {
            Ok(id) if id <= ID_MAX || any_owner => Ok(u32::try_from(id).unwrap_or_default()),
            Ok(id) => Err(over(
                format!("entry {name:?} has the user or group id {id}", name = show(&spelled)),
                ID_MAX,
            )),
            Err(_) if any_owner => Ok(0),
            Err(error) => Err(refused(&spelled, error)),
        };
        let meta = Meta {
            mode: header.mode().map_err(|error| refused(&spelled, error))? & 0o7777,
            uid: id(records.uid, header.uid())?,
            gid: id(records.gid, header.gid())?,
            // An unreadable time is no reason to refuse an image.
            mtime: u32::try_from(header.mtime().unwrap_or(0).min(MTIME_MAX)).unwrap_or(0),
        };
        Ok(ArchiveEntry { name, kind, meta, size, attributes: records.attributes })
    }
}

impl PaxRecords {
    /// Parses records of the form `LENGTH KEY=VALUE\n`. The length delimits a record, because its value may
    /// contain any byte, including a line break.
    fn parse(mut bytes: &[u8]) -> Result<Self, Error> {
        let malformed = || broken("a PAX record is malformed");
        let mut records = Self::default();
        while !bytes.is_empty() {
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let length = bytes.get(..space).and_then(decimal).ok_or_else(malformed)?;
            let length = usize::try_from(length).map_err(|_| malformed())?;
            let record = bytes.get(space + 1..length).ok_or_else(malformed)?;
            let record = record.strip_suffix(b"\n").ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (record.get(..equals), record.get(equals + 1..));
            records.heed(key.unwrap_or_default(), value.unwrap_or_default())?;
            bytes = bytes.get(length..).unwrap_or_default();
        }
        Ok(records)
    }

    fn heed(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let number = || decimal(value).ok_or_else(|| broken("a PAX record is not a number"));
        match key {
            b"path" => once(&mut self.path, value.to_vec(), value),
            b"linkpath" => once(&mut self.linkpath, value.to_vec(), value),
            b"size" => once(&mut self.size, number()?, key),
            b"uid" => once(&mut self.uid, number()?, key),
            b"gid" => once(&mut self.gid, number()?, key),
            _ if key.starts_with(b"GNU.sparse.") => Err(broken("sparse files are not supported")),
            _ => {
                let is_attribute = [&b"SCHILY.xattr."[..], b"LIBARCHIVE.xattr.", b"SCHILY.acl."];
                self.attributes += u64::from(is_attribute.iter().any(|start| key.starts_with(start)));
                Ok(())
            }
        }
    }
}

fn kind(header: &Header, spelled: &[u8], target: Option<Vec<u8>>) -> Result<EntryKind, Error> {
    let target =
        || target.filter(|target| !target.is_empty()).ok_or_else(|| refused(spelled, "links to nothing"));
    match header.entry_type().as_byte() {
        DIRECTORY => Ok(EntryKind::Directory),
        // Old archives have no type for directories, and mark a directory with a trailing slash.
        REGULAR | CONTIGUOUS if spelled.ends_with(b"/") => Ok(EntryKind::Directory),
        REGULAR | CONTIGUOUS => Ok(EntryKind::File),
        SYMLINK => {
            let target = target()?;
            if target.len() >= PATH_BYTES_MAX || target.contains(&0) {
                return Err(refused(spelled, "links to an invalid path"));
            }
            Ok(EntryKind::Symlink(target))
        }
        LINK => Ok(EntryKind::Link(Name::parse(&target()?)?)),
        CHARACTER_DEVICE | BLOCK_DEVICE => Ok(EntryKind::Device),
        FIFO => Ok(EntryKind::Fifo),
        GNU_SPARSE => Err(refused(spelled, "is sparse, which is not supported")),
        _ => Err(refused(spelled, "has an unknown type")),
    }
}

/// Refuses headers that some readers interpret as a different format, and sizes that `tar` would read
/// incorrectly.
fn check_header(header: &Header, label: &[u8]) -> Result<(), Error> {
    let fields = header.as_old();
    let bytes = header.as_bytes();
    let magic = bytes.get(257..262) == Some(&b"ustar"[..]);
    if magic && header.as_ustar().is_none() && header.as_gnu().is_none() {
        return Err(refused(label, "has an unknown archive format version"));
    }
    // The base-256 encoding of a size has twelve bytes, but `tar` reads only the last eight.
    let [first, second, third, fourth, ..] = fields.size;
    if first & 0x80 != 0 && (first != 0x80 || [second, third, fourth] != [0; 3]) {
        return Err(refused(label, "has an invalid size"));
    }
    Ok(())
}

/// Reads the content of a header that describes the next entry, up to the size limit.
fn description<R: Read>(raw: &mut tar::Entry<'_, R>, size: u64, label: &[u8]) -> Result<Vec<u8>, Error> {
    if size > DESCRIPTION_BYTES_MAX {
        return Err(over(
            format!("a header before entry {:?} has {size} bytes", show(label)),
            DESCRIPTION_BYTES_MAX,
        ));
    }
    let mut bytes = Vec::new();
    raw.take(size).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() as u64 != size {
        return Err(broken("it ends in the middle of a header"));
    }
    Ok(bytes)
}

/// Reads a long name, without its final NUL byte.
fn text<R: Read>(raw: &mut tar::Entry<'_, R>, size: u64, label: &[u8]) -> Result<Vec<u8>, Error> {
    let mut bytes = description(raw, size, label)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

/// Sets a value that may occur only once, because readers disagree on which of two values applies.
fn once<T>(slot: &mut Option<T>, value: T, label: &[u8]) -> Result<(), Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(refused(label, "is described twice")),
    }
}

fn either(gnu: Option<Vec<u8>>, pax: Option<Vec<u8>>, label: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    match (gnu, pax) {
        (Some(_), Some(_)) => Err(refused(label, "is described twice")),
        (one, other) => Ok(one.or(other)),
    }
}

fn decimal(bytes: &[u8]) -> Option<u64> {
    let all = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    all.then(|| std::str::from_utf8(bytes).ok()?.parse().ok()).flatten()
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_by_their_lengths() {
        let records = PaxRecords::parse(b"10 size=7\n29 SCHILY.xattr.user.a=\nb\n=c\n12 path=a/b\n").unwrap();
        assert_eq!(records.size, Some(7));
        assert_eq!(records.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!(records.attributes, 1);
    }

    #[test]
    fn records_that_are_malformed_or_said_twice_are_refused() {
        let bad: [&[u8]; 9] = [
            b"\n12 path=a/b\n",
            b"12 path=a/b",
            b"99 path=a/b\n",
            b"11 path=a/b\n",
            b"+12 path=a/b\n",
            b"8 size=\n",
            b"10 size=7\n10 size=7\n",
            b"5 abc\n",
            b"22 GNU.sparse.major=1\n",
        ];
        for bytes in bad {
            assert!(PaxRecords::parse(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}

//! Reading, writing, hashing and editing one file.
//!
//! Replacing a file is atomic: the new content is written to a temporary file next to it, which is renamed at
//! the end. Writing *at an offset* changes the file in place, so that an interrupted upload keeps its data
//! and can be resumed.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::Duration;

use api::files::{EDIT_BYTES_MAX, FileAnswer, FileEnd, FilePath, Hash, Hashing, READ_BYTES_MAX};
use api::{Error, Retry};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::digest::Digest;
use super::failure::{conflict, failed, failed_io, show};
use super::parts::{self, PartWriter};
use super::place::{FileLocation, describe, version};
use super::worker::{changed, unheard};

/// Size of one read or write of a file.
const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of attempts to lock a file that another request is writing.
const ALONE_LOOKS: u32 = 500;
const ALONE_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Permissions of a new file.
const MODE: u32 = 0o644;

/// A temporary file next to the file that it will replace. Dropping this value removes the temporary file.
pub struct Fresh<'a> {
    place: &'a FileLocation,
    name: Vec<u8>,
    /// The file itself.
    pub file: OwnedFd,
    placed: bool,
}

/// Hashes in a request to write a file.
pub struct HashRequest {
    /// Expected SHA-256, if the request states one.
    pub sha256: Option<String>,
    /// Kind of hash to compute and return.
    pub digest: Hashing,
}

/// Sends a range of a file's bytes.
pub fn read(
    path: &FilePath,
    from: u64,
    to: Option<u64>,
    wanted: Option<&str>,
    digest: Digest,
) -> Result<(), Error> {
    let place = FileLocation::find(path)?;
    let (file, stat) = place.open(OFlags::RDONLY)?;
    let seen = version(&stat);
    let compares = !api::defence::is_off("P-09");
    if compares && wanted.is_some_and(|wanted| wanted != seen) {
        return Err(conflict(
            format!("{} has changed since the requested version", show(&place.path)),
            "Get the current version of the file and read the file from the beginning.",
        ));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let to = to.unwrap_or(size).min(size);
    let from = from.min(to);
    if to - from > READ_BYTES_MAX {
        return Err(api::limits::exceeded(
            "the number of bytes to read in one request",
            to - from,
            READ_BYTES_MAX,
        ));
    }
    parts::head(&FileAnswer::Content { info: place.describe(&stat), from, to }).map_err(unheard)?;
    let end = match send(&file, from, to, digest) {
        Ok(Some(hash)) => {
            let changed = compares && rustix::fs::fstat(&file).map_or(true, |now| version(&now) != seen);
            FileEnd::Read { hash, changed }
        }
        Ok(None) => FileEnd::Failed {
            error: conflict(
                format!("{} was truncated while it was being read", show(&place.path)),
                "Read the file again when no process writes to it.",
            ),
        },
        Err(error) => FileEnd::Failed { error: failed_io("read", &place.path, &error) },
    };
    parts::end(&end).map_err(unheard)
}

/// Sends the bytes of a range. Returns their hash, or `None` if the file ends before the range does.
fn send(file: &OwnedFd, from: u64, to: u64, mut digest: Digest) -> io::Result<Option<Hash>> {
    let (mut at, mut outlet) = (from, PartWriter::default());
    while at < to {
        let sent = outlet.fill(to - at, |buffer| Ok(rustix::io::pread(file, buffer, at)?))?;
        if sent.is_empty() {
            return Ok(None);
        }
        digest.update(sent);
        at += sent.len() as u64;
    }
    Ok(Some(digest.finish()))
}

/// Replaces or creates a file.
pub fn replace(
    path: &FilePath,
    mode: Option<u32>,
    wanted: &HashRequest,
    sent: &mut impl Read,
) -> Result<FileAnswer, Error> {
    let place = FileLocation::find_or_make(path)?;
    let before = place.replaceable()?;
    let fresh = Fresh::new(&place, mode.or(before).unwrap_or(MODE))?;
    let mut digest = Digest::new(wanted.digest);
    take(sent, &fresh.file, &place.path, |bytes| digest.update(bytes))?;
    let hash = digest.finish();
    verify(&place, wanted, &hash)?;
    let stat = fresh.put()?;
    Ok(FileAnswer::Whole { info: describe(&place.path, &stat), hash })
}

/// Truncates a file at an offset and appends the received data, in place.
pub fn write_on(
    path: &FilePath,
    offset: u64,
    wanted: &HashRequest,
    sent: &mut impl Read,
) -> Result<FileAnswer, Error> {
    let place = FileLocation::find_or_make(path)?;
    let fault = |act: &'static str| move |errno| (act, errno);
    let tell = |(act, errno): (&str, Errno)| failed(act, &place.path, errno);
    if offset == 0 && place.replaceable()?.is_none() {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&place.parent, place.name.as_slice(), flags, Mode::from_raw_mode(MODE)) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("create", &place.path, errno)),
        }
    }
    let (file, _) = place.open(OFlags::RDWR)?;
    alone(&file, &place)?;
    let stat = rustix::fs::fstat(&file).map_err(fault("inspect")).map_err(tell)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size < offset {
        return Err(conflict(
            format!("{} has {size} bytes, fewer than the offset {offset}", show(&place.path)),
            "Get the size of the file and continue at that offset.",
        ));
    }
    rustix::fs::ftruncate(&file, offset).map_err(fault("truncate")).map_err(tell)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(offset)).map_err(fault("write to")).map_err(tell)?;
    changed();
    let mut digest = Digest::new(wanted.digest);
    take(sent, &file, &place.path, |bytes| {
        if offset == 0 {
            digest.update(bytes);
        }
    })?;
    let stat = rustix::fs::fstat(&file).map_err(fault("inspect")).map_err(tell)?;
    let hash = if offset == 0 { digest.finish() } else { hash_of(&file, &place.path, wanted.digest)? };
    verify(&place, wanted, &hash)?;
    Ok(FileAnswer::Whole { info: describe(&place.path, &stat), hash })
}

/// Waits until no other request is writing to the file. An interrupted request may still be writing the data
/// that it has received.
fn alone(file: &OwnedFd, place: &FileLocation) -> Result<(), Error> {
    for _ in 0..ALONE_LOOKS {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => std::thread::sleep(ALONE_LOOK_EVERY),
            Err(errno) => return Err(failed("lock", &place.path, errno)),
        }
    }
    Err(Error {
        retry: Retry::Safe,
        ..conflict(
            format!("another request is writing to {}", show(&place.path)),
            "Retry when that request has finished, or write to another path.",
        )
    })
}

/// Hashes a whole file.
pub fn hash(path: &FilePath, digest: Hashing) -> Result<FileAnswer, Error> {
    let place = FileLocation::find(path)?;
    let (file, stat) = place.open(OFlags::RDONLY)?;
    if u64::try_from(stat.st_size).unwrap_or(0) > READ_BYTES_MAX {
        return Err(api::limits::exceeded(
            "the size of the file",
            stat.st_size.unsigned_abs(),
            READ_BYTES_MAX,
        ));
    }
    let hash = hash_of(&file, &place.path, digest)?;
    Ok(FileAnswer::Whole { info: place.describe(&stat), hash })
}

/// Replaces the only occurrence of `old`, or all of them if `all` is set. Returns the number of replacements.
pub fn edit(path: &FilePath, old: &[u8], new: &[u8], all: bool) -> Result<u64, Error> {
    let place = FileLocation::find(path)?;
    let (file, stat) = place.open(OFlags::RDONLY)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > EDIT_BYTES_MAX {
        return Err(api::limits::exceeded("the size of a file to edit", size, EDIT_BYTES_MAX));
    }
    let mut before = Vec::new();
    let mut reading = std::fs::File::from(file).take(EDIT_BYTES_MAX);
    reading.read_to_end(&mut before).map_err(|error| failed_io("read", &place.path, &error))?;
    let (after, count) = substitute(&before, old, new);
    match count {
        0 => {
            return Err(conflict(
                format!("{} does not contain the text", show(&place.path)),
                "Read the file and give the text exactly as in the file, including spaces and line endings.",
            ));
        }
        2.. if !all => {
            return Err(conflict(
                format!("{} contains the text {count} times", show(&place.path)),
                "Include more of the surrounding text so that it occurs once, or request replacing all occurrences.",
            ));
        }
        _ => {}
    }
    let fresh = Fresh::new(&place, stat.st_mode & 0o777)?;
    take(&mut after.as_slice(), &fresh.file, &place.path, |_| {})?;
    // Fail if the file has changed since it was read, because the edit would overwrite that change.
    if place.stat().map_or(true, |now| version(&now) != version(&stat)) {
        return Err(conflict(
            format!("{} changed during the edit", show(&place.path)),
            "Read the file again and repeat the edit.",
        ));
    }
    fresh.put()?;
    Ok(count)
}

impl<'a> Fresh<'a> {
    /// Creates an empty temporary file next to the file at `place`.
    pub fn new(place: &'a FileLocation, mode: u32) -> Result<Self, Error> {
        let in_place = api::defence::is_off("U-08");
        let name = if in_place { place.name.clone() } else { place.beside()? };
        let creation = if in_place { OFlags::TRUNC } else { OFlags::EXCL };
        let flags = OFlags::WRONLY | OFlags::CREATE | creation | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&place.parent, name.as_slice(), flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| failed("create a temporary file next to", &place.path, errno))?;
        let fresh = Self { place, name, file, placed: false };
        rustix::fs::fchmod(&fresh.file, Mode::from_raw_mode(mode))
            .map_err(|errno| failed("set the permissions of", &place.path, errno))?;
        Ok(fresh)
    }

    /// Renames the file to its final name. Refuses to replace anything but a regular file.
    pub fn put(mut self) -> Result<Stat, Error> {
        self.place.replaceable()?;
        rustix::fs::renameat(
            &self.place.parent,
            self.name.as_slice(),
            &self.place.parent,
            self.place.name.as_slice(),
        )
        .map_err(|errno| failed("replace", &self.place.path, errno))?;
        self.placed = true;
        rustix::fs::fstat(&self.file).map_err(|errno| failed("inspect", &self.place.path, errno))
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if !self.placed {
            let _ = rustix::fs::unlinkat(&self.place.parent, self.name.as_slice(), AtFlags::empty());
        }
    }
}

/// Writes all received data to a file, and passes each chunk to `seen`. Returns the number of bytes.
pub fn take(
    sent: &mut impl Read,
    file: &OwnedFd,
    path: &[u8],
    mut seen: impl FnMut(&[u8]),
) -> Result<u64, Error> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut count = 0;
    loop {
        let read = sent.read(&mut buffer).map_err(|error| {
            Error::invalid(
                format!("the content for {} ended early after {count} bytes: {error}", show(path)),
                "Send the content again, or resume the write with `offset` at the position where it stopped.",
            )
        })?;
        let bytes = buffer.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(count);
        }
        seen(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = rustix::io::write(file, rest).map_err(|errno| failed("write to", path, errno))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        count += bytes.len() as u64;
    }
}

fn verify(place: &FileLocation, wanted: &HashRequest, hash: &Hash) -> Result<(), Error> {
    let came = hash.digits();
    match &wanted.sha256 {
        Some(wanted) if !wanted.eq_ignore_ascii_case(came) => Err(conflict(
            format!("the content for {} has the SHA-256 {came}, expected {wanted}", show(&place.path)),
            "The content was changed in transit, or the digest is wrong. Send the content again.",
        )),
        Some(_) | None => Ok(()),
    }
}

fn hash_of(file: &OwnedFd, path: &[u8], kind: Hashing) -> Result<Hash, Error> {
    let (mut digest, mut at, mut buffer) = (Digest::new(kind), 0, vec![0; CHUNK_BYTES]);
    loop {
        let count =
            rustix::io::pread(file, &mut buffer[..], at).map_err(|errno| failed("read", path, errno))?;
        if count == 0 || at > READ_BYTES_MAX {
            return Ok(digest.finish());
        }
        digest.update(buffer.get(..count).unwrap_or_default());
        at += count as u64;
    }
}

/// Replaces every `old` from left to right. Returns the new content and the number of replacements.
fn substitute(before: &[u8], old: &[u8], new: &[u8]) -> (Vec<u8>, u64) {
    let (mut after, mut rest, mut count) = (Vec::with_capacity(before.len()), before, 0);
    while let Some((first, tail)) = rest.split_first() {
        if rest.starts_with(old) && !old.is_empty() {
            after.extend_from_slice(new);
            rest = rest.get(old.len()..).unwrap_or_default();
            count += 1;
        } else {
            after.push(*first);
            rest = tail;
        }
    }
    (after, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_from_left_to_right_and_counted() {
        for (before, old, new, after, count) in [
            ("abcabc", "b", "x", "axcaxc", 2),
            ("aaaa", "aa", "b", "bb", 2),
            ("aaa", "aa", "b", "ba", 1),
            ("abc", "d", "x", "abc", 0),
            ("abc", "abc", "", "", 1),
            ("", "a", "b", "", 0),
        ] {
            let (got, seen) = substitute(before.as_bytes(), old.as_bytes(), new.as_bytes());
            assert_eq!((String::from_utf8(got).unwrap().as_str(), seen), (after, count), "{before} {old}");
        }
        assert_eq!(substitute(b"\xff\xfea", b"a", b"\xff").0, b"\xff\xfe\xff", "any bytes are content");
    }
}

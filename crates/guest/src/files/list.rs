//! Directory listings, page by page and sorted by name. Each directory comes before its entries.
//!
//! A directory can have a million entries, so they are never all held in memory. While a directory is read,
//! only the first names after the previous page are kept, at most as many as fit on a page.

use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;

use api::Error;
use api::files::{FileAnswer, FileInfo, FileKind, FilePath, PATH_BYTES_MAX};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::failure::{conflict, failed, show};
use super::place::{FileLocation, describe, enter, join, kind, target, unseen};

/// Maximum total length of the paths on a page, regardless of their number. With this limit, a page fits into
/// a response body even after escaping.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a name on Linux.
const NAME_BYTES_MAX: usize = 255;

/// A page that is being filled.
struct ListingPage {
    items: Vec<FileInfo>,
    limit: usize,
    bytes: usize,
    more: bool,
}

/// Returns one page of a listing.
pub fn page(path: &FilePath, depth: u32, after: Option<FilePath>, limit: u32) -> Result<FileAnswer, Error> {
    let place = FileLocation::find(path)?;
    let directory = open(&place)?;
    let after = match after {
        None => Vec::new(),
        Some(after) => below(&place.path, after.as_bytes())?,
    };
    if !has_room(&place.path) {
        return Err(too_long(&place.path));
    }
    let limit = usize::try_from(limit).unwrap_or(1);
    let mut page = ListingPage { items: Vec::new(), limit, bytes: 0, more: false };
    page.fill(&directory, &place.path, depth, &after).map_err(|errno| failed("list", &place.path, errno))?;
    Ok(FileAnswer::Page { items: page.items, more: page.more })
}

fn open(place: &FileLocation) -> Result<OwnedFd, Error> {
    // Follow a symlink at the requested path itself, as `ls DIRECTORY/` does.
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::openat(&place.parent, place.name.as_slice(), flags, Mode::empty()).map_err(
        |errno| match errno {
            rustix::io::Errno::NOTDIR => conflict(
                format!("{} is not a directory", show(&place.path)),
                "Check the type of the path (`stat`), or list its parent directory.",
            ),
            errno => failed("list", &place.path, errno),
        },
    )
}

/// Returns true if even an entry with the longest possible name has a path within the maximum length.
fn has_room(path: &[u8]) -> bool {
    path.len() + 1 + NAME_BYTES_MAX <= PATH_BYTES_MAX
}

fn too_long(path: &[u8]) -> Error {
    let most = (PATH_BYTES_MAX - NAME_BYTES_MAX - 1) as u64;
    let error = api::limits::exceeded("the path length of a directory to list", path.len() as u64, most);
    Error {
        fix: "List the directory with a command in the sandbox, or move it to a shorter path.".into(),
        ..error
    }
}

/// Returns the components of `path` relative to a directory above it.
fn below(directory: &[u8], path: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    let rest = path.strip_prefix(directory).and_then(|rest| rest.strip_prefix(b"/"));
    match rest {
        Some(rest) => Ok(rest.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()),
        None => {
            Err(Error::invalid("the cursor belongs to another listing", "Use `next` of the previous page."))
        }
    }
}

impl ListingPage {
    fn is_full(&self) -> bool {
        self.items.len() >= self.limit || self.bytes >= PAGE_BYTES_MAX
    }

    /// Adds the entries of a directory that come after the names in `after`, recursively.
    fn fill(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
        depth: u32,
        after: &[Vec<u8>],
    ) -> Result<(), rustix::io::Errno> {
        let mut last = Vec::new();
        if let Some((first, rest)) = after.split_first() {
            // The previous page ended at this entry or below it.
            self.descend(directory, &join(path, first), depth, rest);
            last.clone_from(first);
        }
        loop {
            if self.more {
                return Ok(());
            }
            let names = next(directory, &last, self.limit)?;
            let Some(end) = names.last() else { return Ok(()) };
            last.clone_from(end);
            for name in &names {
                if self.is_full() {
                    self.more = true;
                    return Ok(());
                }
                if self.add(directory, path, name) {
                    self.descend(directory, &join(path, name), depth, &[]);
                }
                if self.more {
                    return Ok(());
                }
            }
        }
    }

    /// Adds one entry. Returns true if it is a directory.
    fn add(&mut self, directory: &OwnedFd, path: &[u8], name: &[u8]) -> bool {
        let path = join(path, name);
        self.bytes += path.len();
        let info = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let mut info = describe(&path, &stat);
                if kind(&stat) == FileKind::Symlink {
                    info.target = target(directory, name);
                }
                info
            }
            // The entry was removed meanwhile, or this user may not inspect it. List the other entries
            // anyway.
            Err(errno) => unseen(&path, failed("inspect", &path, errno)),
        };
        let goes_down = info.kind == FileKind::Directory;
        self.items.push(info);
        goes_down
    }

    /// Adds the entries of a directory that is itself already on the page. If the directory cannot be read,
    /// stores the error in its entry.
    fn descend(&mut self, parent: &OwnedFd, path: &[u8], depth: u32, after: &[Vec<u8>]) {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if depth <= 1 {
            return;
        }
        if !has_room(path) {
            if let Some(last) = self.items.last_mut() {
                last.error = Some(too_long(path));
            }
            return;
        }
        let opened = enter(parent, name);
        let listed = opened.and_then(|inside| self.fill(&inside, path, depth - 1, after));
        if let (Err(errno), Some(last)) = (listed, self.items.last_mut())
            && last.error.is_none()
            && after.is_empty()
        {
            last.error = Some(failed("list", path, errno));
        }
    }
}

/// Returns the first `most` names of a directory that come after `last`, sorted.
fn next(directory: &OwnedFd, last: &[u8], most: usize) -> Result<Vec<Vec<u8>>, rustix::io::Errno> {
    let mut first: BinaryHeap<Vec<u8>> = BinaryHeap::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || name <= last {
            continue;
        }
        if first.len() == most {
            match first.peek() {
                Some(largest) if name < largest.as_slice() => drop(first.pop()),
                Some(_) | None => continue,
            }
        }
        first.push(name.to_vec());
    }
    Ok(first.into_sorted_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists everything below a directory, page by page.
    fn all(root: &std::path::Path, depth: u32, limit: u32) -> Vec<String> {
        let path = FilePath::new(root.to_str().unwrap()).unwrap();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let FileAnswer::Page { items, more } = page(&path, depth, after.take(), limit).unwrap() else {
                panic!("no page");
            };
            assert!(items.len() <= limit as usize && (!more || !items.is_empty()));
            after = items.last().map(|info| info.exact().unwrap());
            let prefix = root.to_str().unwrap().len() + 1;
            seen.extend(items.iter().map(|info| info.path[prefix..].to_owned()));
            if !more {
                return seen;
            }
        }
    }

    #[test]
    fn pages_of_every_size_give_the_same_listing_in_order() {
        let root = tempfile::tempdir().unwrap();
        for path in ["a/b/c", "a/b/d", "a.b", "b", "a/e", "z/y/x/w"] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink("/", root.path().join("link")).unwrap();
        let whole = ["a", "a/b", "a/b/c", "a/b/d", "a/e", "a.b", "b", "link", "z", "z/y", "z/y/x", "z/y/x/w"];
        for limit in 1..14 {
            assert_eq!(all(root.path(), 9, limit), whole, "pages of {limit}: no symlink is followed");
        }
        assert_eq!(all(root.path(), 1, 2), ["a", "a.b", "b", "link", "z"]);
        assert_eq!(all(root.path(), 2, 3), ["a", "a/b", "a/e", "a.b", "b", "link", "z", "z/y"]);
    }

    #[test]
    fn a_cursor_of_another_listing_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = FilePath::new(root.path().to_str().unwrap()).unwrap();
        assert!(page(&path, 1, Some(FilePath::new("/elsewhere/x").unwrap()), 1).is_err());
    }

    #[test]
    fn a_tree_with_paths_longer_than_any_path_is_listed_as_far_as_they_can_be_told() {
        let root = tempfile::tempdir().unwrap();
        let mut directory =
            rustix::fs::openat(rustix::fs::CWD, root.path(), OFlags::PATH, Mode::empty()).unwrap();
        let name = "d".repeat(NAME_BYTES_MAX);
        for _ in 0..20 {
            rustix::fs::mkdirat(&directory, &*name, Mode::RWXU).unwrap();
            directory = rustix::fs::openat(&directory, &*name, OFlags::PATH, Mode::empty()).unwrap();
        }
        std::fs::write(root.path().join("z"), "").unwrap();
        let path = FilePath::new(root.path().to_str().unwrap()).unwrap();
        let FileAnswer::Page { items, more } = page(&path, 256, None, 1000).unwrap() else {
            panic!("no page")
        };
        assert!(!more && items.iter().all(|info| info.exact().is_ok()));
        let errors: Vec<_> = items.iter().filter_map(|info| info.error.as_ref()).collect();
        assert_eq!(errors.len(), 1, "the last directory that could be told: {errors:?}");
        assert_eq!(errors[0].code, api::ErrorCode::LimitExceeded);
        assert!(items.last().unwrap().path.ends_with("/z"), "what comes after it is listed");
    }
}

//! The rules for each entry of a layer.
//!
//! | entry | result |
//! |---|---|
//! | directory, file, symlink | the same, with owner, permissions and time |
//! | hard link | a link inside this layer, or a copy of a lower layer's file |
//! | `.wh.NAME`, `.wh..wh..opq` | an overlay's whiteout or opaque directory |
//! | device, FIFO | omitted and counted |
//! | set-user-ID, set-group-ID, extended attributes | omitted and counted |
//! | any entry at a path reserved for the sandbox | omitted and counted |
//! | a name that occurs again | replaced by the later entry; a directory keeps its entries |

use std::io::Read;
use std::os::fd::OwnedFd;

use api::Error;
use api::layer::Skipped;

use super::entry::{Ahead, ArchiveEntry, EntryKind, Meta};
use super::merged::Canonical;
use super::name::{self, Meaning, Name, PathComponent};
use super::refusal::{broken, failed, over, refused};
use super::source::Source;
use super::tree::{self, EntryLocation, Tree};

/// Maximum number of entries of one layer: ten times the number of entries in all layers of a large
/// development image.
const ENTRIES_MAX: u64 = 1_000_000;

/// Mode bits to keep. A directory also keeps the sticky bit, which makes `/tmp` safe to share.
const FILE_MODE: u32 = 0o777;
const DIRECTORY_MODE: u32 = 0o1777;

/// Unpacker for the entries of a layer, one after another.
pub struct LayerUnpacker {
    tree: Tree,
    entries: u64,
    skipped: Skipped,
    /// Directories that contain the current entry. Their times are set after their last entry.
    unfinished: Vec<(Vec<PathComponent>, OwnedFd, u32)>,
    /// Location of the last file. Cached, because archives list a directory's files together.
    last: Option<EntryLocation>,
}

impl LayerUnpacker {
    /// Creates an unpacker for this tree.
    pub fn new(tree: Tree) -> Self {
        Self { tree, entries: 0, skipped: Skipped::default(), unfinished: Vec::new(), last: None }
    }

    /// Unpacks all entries.
    pub fn all<R: Read>(&mut self, archive: &mut tar::Archive<Source<R>>) -> Result<(), Error> {
        let mut ahead = Ahead::default();
        for raw in archive.entries().map_err(broken)?.raw(true) {
            let mut raw = raw.map_err(broken)?;
            if let Some(entry) = ahead.take(&mut raw)? {
                self.one(&entry, &mut raw)?;
            }
        }
        ahead.end()
    }

    /// Finishes unpacking. Returns the tree, the number of entries, and the counts of omitted entries.
    pub fn done(mut self) -> Result<(Tree, u64, Skipped), Error> {
        self.leave(None)?;
        Ok((self.tree, self.entries, self.skipped))
    }

    fn one(&mut self, entry: &ArchiveEntry, content: &mut dyn Read) -> Result<(), Error> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            let message = format!("the layer has too many entries, starting at {:?}", show(&entry.name));
            return Err(over(message, ENTRIES_MAX));
        }
        self.skipped.attributes += entry.attributes;
        match entry.kind {
            EntryKind::Device => self.skipped.devices += 1,
            EntryKind::Fifo => self.skipped.fifos += 1,
            EntryKind::Directory | EntryKind::File | EntryKind::Symlink(_) | EntryKind::Link(_) => {
                let Some((parents, last)) = entry.name.split() else { return self.root(entry) };
                match name::meaning(last)? {
                    Meaning::Thing => return self.thing(entry, parents, last, content),
                    Meaning::Hides(hidden) => return self.hide(parents, &hidden),
                    Meaning::HidesAll => return self.hide_all(parents),
                    Meaning::Note => self.skipped.whiteouts += 1,
                }
            }
        }
        Ok(())
    }

    fn root(&mut self, entry: &ArchiveEntry) -> Result<(), Error> {
        if entry.kind != EntryKind::Directory {
            return Err(refused(b"/", "is the root but not a directory"));
        }
        let meta = self.stripped(entry.meta, DIRECTORY_MODE);
        self.tree.root(meta)
    }

    fn thing(
        &mut self,
        entry: &ArchiveEntry,
        parents: &[PathComponent],
        last: &PathComponent,
        content: &mut dyn Read,
    ) -> Result<(), Error> {
        let Some(place) = self.place(parents, last)? else {
            self.skipped.reserved += 1;
            return Ok(());
        };
        let is_directory = entry.kind == EntryKind::Directory;
        if name::is_closed(&place.path) || (name::is_reserved(&place.path) && !is_directory) {
            self.skipped.reserved += 1;
            return Ok(());
        }
        self.leave(Some(&place.path))?;
        match &entry.kind {
            EntryKind::Directory => {
                let meta = self.stripped(entry.meta, DIRECTORY_MODE);
                let made = self.tree.directory(&place, meta)?;
                self.last = None;
                self.unfinished.push((place.path, made, meta.mtime));
                return Ok(());
            }
            EntryKind::File => {
                let meta = self.stripped(entry.meta, FILE_MODE);
                self.tree.file(&place, meta, entry.size, content)?;
            }
            EntryKind::Symlink(text) => self.tree.symlink(&place, entry.meta, text)?,
            EntryKind::Link(source) => self.link(&place, source)?,
            EntryKind::Device | EntryKind::Fifo => {}
        }
        // Creating a file cannot change how a path without symlinks resolves, so the directory can be reused.
        let keeps =
            entry.kind == EntryKind::File && place.path.split_last().is_some_and(|(_, path)| path == parents);
        self.last = keeps.then_some(place);
        Ok(())
    }

    fn link(&self, place: &EntryLocation, source: &Name) -> Result<(), Error> {
        let lost = || refused(&place.path.join(&b'/'), "is a hard link to a missing file");
        let (parents, last) = source.split().ok_or_else(lost)?;
        match self.tree.merged().canonical(parents)? {
            Canonical::Closed => Err(lost()),
            Canonical::Path(mut path) => {
                path.push(last.clone());
                self.tree.link(place, &path)
            }
        }
    }

    fn hide(&mut self, parents: &[PathComponent], hidden: &PathComponent) -> Result<(), Error> {
        self.last = None;
        let lowest = self.tree.merged().is_lowest();
        let place = if lowest { None } else { self.place(parents, hidden)? };
        let place = place.filter(|place| !name::is_closed(&place.path) && !name::is_reserved(&place.path));
        let hides = match place {
            Some(place) => self.tree.hide(&place)?,
            None => false,
        };
        self.skipped.whiteouts += u64::from(!hides);
        Ok(())
    }

    fn hide_all(&mut self, parents: &[PathComponent]) -> Result<(), Error> {
        self.last = None;
        if let Canonical::Path(path) = self.tree.merged().canonical(parents)?
            && !self.tree.merged().is_lowest()
            && !name::is_closed(&path)
            && self.tree.merged().look_below(&path)?.is_some()
        {
            let directory = self.tree.directory_at(&path)?;
            return self.tree.hide_all(&directory, &path);
        }
        self.skipped.whiteouts += 1;
        Ok(())
    }

    /// Resolves a name to a location. Returns `None` if the location is reserved for the sandbox.
    fn place(
        &mut self,
        parents: &[PathComponent],
        last: &PathComponent,
    ) -> Result<Option<EntryLocation>, Error> {
        if let Some(mut place) = self.last.take()
            && place.path.split_last().is_some_and(|(_, path)| path == parents)
        {
            place.path.pop();
            place.path.push(last.clone());
            return Ok(Some(place));
        }
        let Canonical::Path(mut path) = self.tree.merged().canonical(parents)? else { return Ok(None) };
        // Check the full path first, so that no parent directories are created inside a closed directory.
        path.push(last.clone());
        if name::is_closed(&path) {
            return Ok(None);
        }
        let directory = self.tree.directory_at(path.get(..path.len() - 1).unwrap_or_default())?;
        Ok(Some(EntryLocation { directory, path }))
    }

    /// Sets the times of unfinished directories that do not contain `path`: the archive has left them.
    fn leave(&mut self, path: Option<&[PathComponent]>) -> Result<(), Error> {
        let is_above = |above: &[PathComponent]| {
            path.is_some_and(|path| path.len() > above.len() && path.starts_with(above))
        };
        while let Some((left, directory, mtime)) = self.unfinished.pop_if(|(above, ..)| !is_above(above)) {
            tree::touch(&directory, mtime).map_err(|errno| failed("own", &left.join(&b'/'), errno))?;
        }
        Ok(())
    }

    fn stripped(&mut self, meta: Meta, keep: u32) -> Meta {
        self.skipped.mode_bits += u64::from(meta.mode & !keep != 0);
        Meta { mode: meta.mode & keep, ..meta }
    }
}

fn show(name: &Name) -> String {
    String::from_utf8_lossy(&name.bytes()).chars().take(256).collect()
}

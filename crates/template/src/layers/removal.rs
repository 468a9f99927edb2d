//! The removal of incomplete layers that dead commands left behind, and of complete layers that are unused.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use api::SandboxId;
use host::error::Error;
use rustix::fs::FlockOperation;

use super::{is_key, try_lock};
use crate::{Store, Template, cache, failed, mounts};

/// The sandboxes and layers that servers on this machine use, according to their journals.
pub struct InUse {
    /// The sandboxes that have a record.
    pub sandboxes: Vec<SandboxId>,
    /// The layers of these sandboxes; `None` if a record cannot be read.
    pub layers: Option<Vec<String>>,
}

/// Removes incomplete layers that dead commands left behind, and layers that no template, no recently used
/// cache entry and no sandbox uses. Journals record the layers that a server's sandboxes use. A sandbox
/// without a record was started by a command and may use any layer, so no complete layer is removed while
/// such a sandbox exists. Call this function after the sandboxes of dead commands have been removed.
///
/// # Errors
/// A layer could not be removed, or the state of this machine could not be read.
pub fn tidy(data: &Path, in_use: impl FnOnce() -> Result<InUse, Error>) -> Result<(), Error> {
    let path = data.join("layers");
    let lock = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("open", &path))?,
    };
    if !try_lock(&lock, FlockOperation::NonBlockingLockExclusive, &path)? {
        return Ok(());
    }
    let sandboxes = names(&data.join("sandboxes"))?;
    let InUse { sandboxes: journalled, layers } = in_use()?;
    let accounted = sandboxes.iter().all(|name| journalled.iter().any(|id| id.as_str() == name));
    let in_use = layers.filter(|_| accounted);
    // If a template cannot be read, its layers are unknown, so no complete layer is removed.
    let templates = Store::new(data).list().ok();
    let of_steps = cache::layers_kept(data)?;
    let names_it = |key: &String, templates: &[Template]| {
        templates.iter().any(|one| one.layers.contains(key)) || of_steps.contains(key)
    };
    for name in names(&path)? {
        let left = name.strip_prefix("making-").is_some_and(|rest| {
            let id = rest.split_once('-').map_or("", |(_, id)| id);
            !sandboxes.iter().any(|sandbox| sandbox == id)
        });
        let unnamed = templates.as_deref().is_some_and(|templates| !names_it(&name, templates));
        let idle = in_use.as_ref().is_some_and(|layers| !layers.contains(&name));
        let unused = is_key(&name) && idle && unnamed;
        if left || unused {
            remove(&path.join(name))?;
        }
    }
    Ok(())
}

/// Removes a tree. The standard library's implementation works on descriptors and follows no symlinks, but it
/// would descend into mounts. A tree that contains a mount is therefore refused.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    if mounts::any_below(path).map_err(failed("look for mounts below", path))? {
        return Err(failed("remove", path)(io::Error::other(
            "a file system is mounted below this directory; unmount it first",
        )));
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failed("remove", path)),
    }
}

pub(super) fn names(path: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed("list", path))?.file_name().into_string());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use api::layer::LayerReport;

    use super::super::{EMPTY, Layers};
    use super::*;

    fn nothing() -> Result<InUse, Error> {
        Ok(InUse { sandboxes: Vec::new(), layers: Some(Vec::new()) })
    }

    #[tokio::test]
    async fn what_is_left_half_made_goes_once_nobody_makes() {
        let data = tempfile::tempdir().unwrap();
        let layers = Layers::open(data.path()).await.unwrap();
        layers.making(&"s1".parse().unwrap()).unwrap();
        layers
            .making(&"s2".parse().unwrap())
            .unwrap()
            .keep(&"b".repeat(64), &LayerReport::default())
            .unwrap();
        layers.empty().unwrap();
        fs::create_dir_all(data.path().join("sandboxes/s1")).unwrap();
        let left = || names(&data.path().join("layers")).unwrap().len();
        tidy(data.path(), nothing).unwrap();
        assert_eq!(left(), 3, "layers are being made");
        drop(layers);
        tidy(data.path(), nothing).unwrap();
        assert_eq!(left(), 3, "the sandbox that fills it is there");
        fs::remove_dir(data.path().join("sandboxes/s1")).unwrap();
        tidy(data.path(), nothing).unwrap();
        assert_eq!(names(&data.path().join("layers")).unwrap(), [EMPTY]);
    }
}

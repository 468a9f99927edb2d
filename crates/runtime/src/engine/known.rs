//! Records the image ID for each image name that this data directory uses.
//!
//! Any user who can load an archive into the engine can move a tag to a different image, so a tag proves
//! nothing. Sandboxes are therefore started from an image ID. The ID for a name is recorded when the image is
//! created or loaded. Tags only help people find the images, and protect the images from `docker image
//! prune`.

use std::path::PathBuf;

use bollard::models::ImageInspect;
use bollard::query_parameters::{RemoveImageOptionsBuilder, TagImageOptionsBuilder};

use super::{CONFLICT, Engine, status, unless_gone};
use crate::{Error, files};

/// Prefix of an image ID.
const ID_PREFIX: &str = "sha256:";
/// Number of hexadecimal digits of an ID.
const ID_DIGITS: usize = 64;

impl Engine {
    /// Records that `name` refers to the image with this ID, and tags the image with `name` and `others`.
    ///
    /// # Errors
    /// Returns an error if there is no such image, the engine does not respond, or the data directory cannot
    /// be written.
    pub async fn adopt(&self, id: &str, name: &str, others: &[String]) -> Result<(), Error> {
        for tag in std::iter::once(name).chain(others.iter().map(String::as_str)) {
            self.tag(id, tag).await?;
        }
        files::directory(&self.records(), 0o700)?;
        // The first line is the image ID. The other lines are the tags to remove with the image.
        let lines: Vec<&str> = std::iter::once(id).chain(others.iter().map(String::as_str)).collect();
        let draft = format!("{}-{:?}", std::process::id(), std::thread::current().id());
        files::replace_by(&self.record(name), &lines.join("\n"), &draft)
    }

    /// Returns the image ID that is recorded for this name.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub fn id_of(&self, name: &str) -> Result<Option<String>, Error> {
        if api::defence::is_off("I-10") {
            return Ok(Some(name.to_owned()));
        }
        let record = files::read_if_there(&self.record(name))?;
        Ok(record.and_then(|text| text.lines().next().map(str::to_owned)).filter(|id| is_id(id)))
    }

    /// Returns the image that is recorded for this name, if it still exists.
    pub(super) async fn known(&self, name: &str) -> Result<Option<ImageInspect>, Error> {
        let Some(id) = self.id_of(name)? else { return Ok(None) };
        let found = self.docker().await?.inspect_image(&id).await;
        unless_gone(found).map_err(|error| self.failed("find an image", error))
    }

    /// Adds a tag to an image.
    ///
    /// # Errors
    /// Returns an error if there is no such image or the engine does not respond.
    pub async fn tag(&self, image: &str, name: &str) -> Result<(), Error> {
        let (repo, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
        let options = TagImageOptionsBuilder::new().repo(repo).tag(tag).build();
        let tagged = self.docker().await?.tag_image(image, Some(options)).await;
        tagged.map_err(|error| self.failed("tag an image", error))
    }

    /// Removes a tag if it refers to the image with this ID. The image is removed with its last tag.
    ///
    /// # Errors
    /// Returns an error if the engine does not respond or the image is in use.
    pub async fn untag(&self, id: &str, name: &str) -> Result<(), Error> {
        let docker = self.docker().await?;
        let failed = |error| self.failed("remove an image", error);
        let found = unless_gone(docker.inspect_image(name).await).map_err(failed)?;
        if found.is_none_or(|found| with_prefix(&found.id.unwrap_or_default()) != id) {
            return Ok(());
        }
        let options = RemoveImageOptionsBuilder::new().noprune(false).build();
        unless_gone(docker.remove_image(name, Some(options), None).await).map_err(failed)?;
        Ok(())
    }

    /// Removes the images, including the sealed ones, for every recorded name that is not in `keep`. Images
    /// that a sandbox still uses are left for a later call.
    ///
    /// # Errors
    /// Returns an error if the engine does not respond or the records cannot be read.
    pub async fn forget_all_but(&self, keep: &[String]) -> Result<(), Error> {
        let kept: Vec<PathBuf> = keep.iter().map(|name| self.record(name)).collect();
        for entry in entries(&self.records())? {
            let text = files::read(&entry)?;
            let mut lines = text.lines();
            let (Some(id), Some(name)) = (lines.next(), name_of(&entry)) else { continue };
            if kept.contains(&entry) || !is_id(id) || !self.forget_sealed(id).await? {
                continue;
            }
            for tag in lines.chain([name.as_str()]) {
                self.untag(id, tag).await?;
            }
            files::remove_file(&entry)?;
        }
        Ok(())
    }

    /// Removes the sealed images of a root file system. Returns true if none are left.
    async fn forget_sealed(&self, id: &str) -> Result<bool, Error> {
        let root = id.trim_start_matches(ID_PREFIX);
        let mut all = true;
        for note in entries(&self.notes())? {
            let is_of =
                note.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(root));
            if !is_of {
                continue;
            }
            let sealed = files::read(&note)?;
            let options = RemoveImageOptionsBuilder::new().noprune(false).build();
            match unless_gone(self.docker().await?.remove_image(&sealed, Some(options), None).await) {
                Ok(_) => files::remove_file(&note)?,
                Err(error) if status(&error) == Some(CONFLICT) => all = false,
                Err(error) => return Err(self.failed("remove an image", error)),
            }
        }
        Ok(all)
    }

    fn records(&self) -> PathBuf {
        self.shared.written.home().with_file_name(format!("{}-images", self.place().kind.name()))
    }

    fn record(&self, name: &str) -> PathBuf {
        self.records().join(name.replace('/', "+"))
    }
}

/// Returns the image name that a record belongs to.
fn name_of(record: &std::path::Path) -> Option<String> {
    Some(record.file_name()?.to_str()?.replace('+', "/"))
}

/// Returns the ID with its `sha256:` prefix, which some engines omit.
pub(super) fn with_prefix(id: &str) -> String {
    format!("{ID_PREFIX}{}", id.trim_start_matches(ID_PREFIX))
}

/// Returns true if `text` is a complete image ID and not a name.
pub(super) fn is_id(text: &str) -> bool {
    text.strip_prefix(ID_PREFIX).is_some_and(|digits| {
        digits.len() == ID_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Returns the paths of a directory's files, or an empty list if the directory does not exist.
fn entries(path: &std::path::Path) -> Result<Vec<PathBuf>, Error> {
    match std::fs::read_dir(path) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(files::failed("list", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_id_is_taken_for_one() {
        let id = format!("sha256:{}", "a".repeat(64));
        assert!(is_id(&id));
        assert_eq!(with_prefix(id.trim_start_matches("sha256:")), id);
        for name in ["localhost/bellglass/good:latest", "sha256:abc", "", &id[7..], &format!("{id}/x")] {
            assert!(!is_id(name), "{name}");
        }
    }
}

//! Sealed images: an engine's root file systems with the guest added.
//!
//! A sandbox's root file system is read-only, and engines cannot copy files into such a container before it
//! starts. Therefore there is a sealed image for each combination of a root file system and a guest version.
//! Each sealed image is created once: the guest is copied into a container that is never started, and the
//! container is committed as an image.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerConfig, ContainerCreateBody};
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CommitContainerOptionsBuilder, ContainerArchiveInfoOptionsBuilder,
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, ImportImageOptionsBuilder,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

use super::{Engine, EngineKind, known, unless_gone};
use crate::{Error, files};

/// Name of the empty root file system.
pub const EMPTY: &str = "localhost/bellglass/empty:latest";
/// Repository of the sealed images.
const SEALED: &str = "localhost/bellglass/sealed";
/// Name prefix of a container that is used for sealing an image. The owner follows it. The owner is part of
/// the name because a label would remain in the image.
const SEALING: &str = "bellglass-sealing";
/// Directories where a sandbox mounts file systems, parents first.
const MOUNT_POINTS: [&str; 12] = [
    "/.bellglass",
    "/.bellglass/spool",
    "/dev",
    "/etc",
    "/home",
    "/home/sandbox",
    "/proc",
    "/run",
    "/sys",
    "/tmp",
    "/var",
    "/workspace",
];
/// The directory bit in Go's file modes.
const GO_MODE_DIRECTORY: u32 = 1 << 31;
/// Age in seconds after which a container for sealing counts as abandoned. Sealing takes much less time.
const OLD_SECONDS: u64 = 600;
/// Timeout for loading an image. It is enough for a large image over a slow connection.
const LOADED_WITHIN: Duration = Duration::from_secs(3600);
/// Size of the chunks for reading an archive.
const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of characters of a build's last output line in an error.
const TAIL_CHARS_MAX: usize = 200;
/// Number of leading digits of the container ID that form the sealed image's tag.
const DIGITS: usize = 16;

/// A request to build an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageBuild<'a> {
    /// Name of the Containerfile in the archive.
    pub file: &'a str,
    /// Name of the new image.
    pub name: &'a str,
    /// True if the build needs network access.
    pub reaches_out: bool,
    /// True if the engine's build cache must not be used.
    pub fresh: bool,
}

impl Engine {
    /// Loads an image from an archive that contains no image name, and returns the image's ID.
    ///
    /// # Errors
    /// Returns an error if the engine does not respond, cannot read the archive, or does not report an ID.
    pub async fn load(&self, archive: File) -> Result<String, Error> {
        // The engine responds only after it has received the whole archive.
        let docker = self.docker().await?.clone().with_timeout(LOADED_WITHIN);
        let mut said = std::pin::pin!(docker.import_image_stream(
            ImportImageOptionsBuilder::new().quiet(true).build(),
            stream::unfold(Some(archive), piece),
            None,
        ));
        let mut name = None;
        while let Some(line) = said.next().await {
            let line = line.map_err(|error| self.failed("load an image", error))?;
            let said = line.stream.unwrap_or_default();
            // The line is `Loaded image: NAME`, or `Loaded image ID: sha256:…` if the image has no name.
            name = said.trim().split_once(": ").map(|(_, name)| name.to_owned()).or(name);
        }
        let is_sound = |name: &String| known::is_id(name) || api::defence::is_off("I-10");
        name.filter(is_sound).ok_or_else(|| Error::Unavailable {
            what: format!("{} failed to load an image", self.place().kind.name()),
            why: "it did not report the id of the loaded image".into(),
            fix: "Look for the image in the engine's list of images, or use a newer engine.".into(),
        })
    }

    /// Builds an image from an archive with a Containerfile.
    ///
    /// # Errors
    /// Returns an error if a step fails or the engine does not respond.
    pub async fn build(
        &self,
        archive: File,
        image: &ImageBuild<'_>,
        says: &(dyn Fn(&str) + Sync),
    ) -> Result<(), Error> {
        let ImageBuild { file, name, reaches_out, fresh } = *image;
        let docker = self.docker().await?;
        let options = BuildImageOptionsBuilder::new().dockerfile(file).t(name).rm(true).forcerm(true);
        // A build has no network access unless the recipe requests it.
        let options = if reaches_out { options } else { options.networkmode("none") };
        let body = bollard::body_try_stream(stream::unfold(Some(archive), piece));
        let mut said = std::pin::pin!(docker.build_image(options.nocache(fresh).build(), None, Some(body)));
        let mut tail = String::new();
        while let Some(line) = said.next().await {
            let line = line.map_err(|error| self.failed(&format!("build {name}, after {tail:?}"), error))?;
            let text = line.stream.unwrap_or_default();
            if let Some(last) = text.lines().rfind(|line| !line.trim().is_empty()) {
                says(last);
                tail = last.chars().take(TAIL_CHARS_MAX).collect();
            }
        }
        Ok(())
    }

    /// Returns the digest of an image, in hexadecimal.
    ///
    /// # Errors
    /// Returns an error if there is no such image or the engine does not respond.
    pub async fn digest(&self, image: &str) -> Result<String, Error> {
        let found = self.docker().await?.inspect_image(image).await;
        let found = found.map_err(|error| self.failed("inspect an image", error))?;
        Ok(known::with_prefix(&found.id.unwrap_or_default()).trim_start_matches("sha256:").to_owned())
    }

    /// Returns the ID of the sealed image for a root file system and this guest. Creates the image if it does
    /// not exist.
    pub(super) async fn sealed(&self, docker: &Docker, image: &str, guest: &Path) -> Result<String, Error> {
        let found = match self.known(image).await? {
            Some(found) => found,
            None if image == EMPTY => self.make_empty(docker).await?,
            None => return Err(self.no_image(image)),
        };
        if found
            .config
            .as_ref()
            .and_then(|config| config.volumes.as_ref())
            .is_some_and(|volumes| !volumes.is_empty())
        {
            return Err(Error::Unsupported {
                what: "disk_bytes",
                why: format!(
                    "the image {image} declares volumes, which {} would store on its disk without a limit; remove VOLUME from the image",
                    self.place().kind.name()
                ),
            });
        }
        let root = found.id.unwrap_or_default();
        let root = root.trim_start_matches("sha256:");
        // The name of the guest's directory contains the guest's hash, so it changes with an upgrade.
        let named = guest.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        // The ID of the sealed image is recorded only here. Any user who can load an image can give it any
        // name, so names are not trusted.
        let note = self.notes().join(format!("{root}-{named}"));
        if let Some(sealed) = files::read_if_there(&note)?
            && self.is_there(docker, &sealed).await?
        {
            return Ok(sealed);
        }
        let sealed = self.seal(docker, root, guest).await?;
        files::directory(&self.notes(), 0o700)?;
        files::replace_by(&note, &sealed, &std::process::id().to_string())?;
        Ok(sealed)
    }

    async fn is_there(&self, docker: &Docker, id: &str) -> Result<bool, Error> {
        let found = unless_gone(docker.inspect_image(id).await);
        Ok(found.map_err(|error| self.failed("find an image", error))?.is_some())
    }

    /// Returns the directory that records the IDs of the sealed images.
    pub(super) fn notes(&self) -> PathBuf {
        self.shared.written.home().with_file_name(format!("{}-sealed", self.place().kind.name()))
    }

    /// Creates a sealed image and returns its ID. Two concurrent calls create two images, but only one of
    /// them is recorded and used from then on.
    async fn seal(&self, docker: &Docker, root: &str, guest: &Path) -> Result<String, Error> {
        let failed = |error| self.failed("add the guest to an image", error);
        self.remove_old_seals(docker).await.map_err(failed)?;
        let body = ContainerCreateBody {
            image: Some(root.to_owned()),
            entrypoint: Some(vec!["/.bellglass/guest".into()]),
            cmd: Some(Vec::new()),
            network_disabled: Some(true),
            ..ContainerCreateBody::default()
        };
        let name = format!("{}-{}", self.sealing(), crate::written::random_name()?);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let made = docker.create_container(Some(options), body).await.map_err(failed)?;
        let sealed = match self.check_mount_points(docker, &made.id).await {
            Ok(()) => self.fill(docker, &made.id, guest).await.map_err(failed),
            Err(error) => Err(error),
        };
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        let removed = docker.remove_container(&made.id, Some(options)).await.map_err(failed);
        sealed.and_then(|sealed| removed.map(|()| sealed))
    }

    /// Returns the name prefix of all containers that this owner uses for sealing images.
    fn sealing(&self) -> String {
        format!("{SEALING}-{}", self.shared.owner)
    }

    /// Refuses an image if a mount point in it is anything other than a directory. Engines follow symbolic
    /// links at mount points, so with `/workspace -> /etc`, the user's workspace would be mounted at `/etc`.
    async fn check_mount_points(&self, docker: &Docker, id: &str) -> Result<(), Error> {
        for path in MOUNT_POINTS.iter().filter(|_| !api::defence::is_off("I-13")) {
            let options = ContainerArchiveInfoOptionsBuilder::new().path(path).build();
            let found = unless_gone(docker.get_container_archive_info(id, Some(options)).await);
            let Some(found) = found.map_err(|error| self.failed("inspect the files of an image", error))?
            else {
                continue;
            };
            if found.file_mode & GO_MODE_DIRECTORY == 0
                || !(found.link_target.is_empty() || found.link_target == *path)
            {
                return Err(Error::Unsupported {
                    what: "this image",
                    why: format!(
                        "{path} is not a directory in the image, but sandboxes mount a file system there; rebuild the image with a directory at this path, or without the path"
                    ),
                });
            }
        }
        Ok(())
    }

    async fn fill(&self, docker: &Docker, id: &str, guest: &Path) -> Result<String, bollard::errors::Error> {
        let put = UploadToContainerOptionsBuilder::new().path("/").build();
        let podman = self.facts().await.is_ok_and(|facts| facts.is_podman);
        let archive = archive(guest, podman)?;
        docker.upload_to_container(id, Some(put), bollard::body_full(archive.into())).await?;
        // Each sealed image has its own tag, because `docker image prune` removes images without tags.
        let tag: String = id.chars().take(DIGITS).collect();
        let keep =
            CommitContainerOptionsBuilder::new().container(id).repo(SEALED).tag(&tag).pause(false).build();
        Ok(docker.commit_container(keep, ContainerConfig::default()).await?.id)
    }

    /// Removes the containers left behind by processes that died while sealing an image.
    async fn remove_old_seals(&self, docker: &Docker) -> Result<(), bollard::errors::Error> {
        let prefix = self.sealing();
        let filters = HashMap::from([("name", vec![prefix.clone()]), ("status", vec!["created".to_owned()])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        for one in docker.list_containers(Some(options)).await? {
            let age =
                now.as_secs().saturating_sub(one.created.and_then(|at| u64::try_from(at).ok()).unwrap_or(0));
            // Engines match the filter's text anywhere in a name, so check the prefix here.
            let ours =
                one.names.iter().flatten().any(|name| name.trim_start_matches('/').starts_with(&prefix));
            if let Some(id) = one.id.filter(|_| ours && age > OLD_SECONDS) {
                let options = RemoveContainerOptionsBuilder::new().force(true).build();
                unless_gone(docker.remove_container(&id, Some(options)).await)?;
            }
        }
        Ok(())
    }

    async fn make_empty(&self, docker: &Docker) -> Result<bollard::models::ImageInspect, Error> {
        let failed = |error| self.failed("create an empty image", error);
        // The temporary name is unpredictable, so no other user can have moved it to a different image.
        let (repo, _) = EMPTY.split_once(':').unwrap_or((EMPTY, ""));
        let tag = crate::written::random_name()?;
        let name = format!("{repo}:{tag}");
        let options = CreateImageOptionsBuilder::new().from_src("-");
        // Podman accepts the tag only as part of the name.
        let options = match self.place().kind {
            EngineKind::Podman => options.repo(&name),
            EngineKind::Docker => options.repo(repo).tag(&tag),
        };
        let options = options.build();
        let mut root = tar::Builder::new(Vec::new());
        let made = ["proc/", "dev/", "sys/", "tmp/", "workspace/", "home/sandbox/"]
            .iter()
            .try_for_each(|path| {
                root.append_data(&mut header(tar::EntryType::Directory, 0, 0o755), path, std::io::empty())
            })
            .and_then(|()| root.into_inner());
        let root = made.map_err(|error| failed(error.into()))?;
        let mut said =
            std::pin::pin!(docker.create_image(Some(options), Some(bollard::body_full(root.into())), None));
        while let Some(line) = said.next().await {
            line.map_err(failed)?;
        }
        let found = docker.inspect_image(&name).await.map_err(failed)?;
        let id = known::with_prefix(found.id.as_deref().unwrap_or_default());
        self.adopt(&id, EMPTY, &[]).await?;
        self.untag(&id, &name).await?;
        Ok(found)
    }

    fn no_image(&self, image: &str) -> Error {
        let name = self.place().kind.name();
        Error::Unavailable {
            what: format!("{name} has no image for this template"),
            why: format!("{image} does not exist"),
            fix: "Build the image with `bellglass build-sandbox NAME`, where NAME is the template or its recipe. If the template was imported, import the template again.".into(),
        }
    }
}

/// Reads the next chunk of a file. Returns `None` after the last chunk or after an error.
async fn piece(archive: Option<File>) -> Option<(std::io::Result<Bytes>, Option<File>)> {
    let mut file = archive?;
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; PIECE_BYTES];
        let count = file.read(&mut bytes)?;
        bytes.truncate(count);
        Ok((Bytes::from(bytes), file))
    });
    match read.await.unwrap_or_else(|error| Err(error.into())) {
        Ok((bytes, _)) if bytes.is_empty() => None,
        Ok((bytes, file)) => Some((Ok(bytes), Some(file))),
        Err(error) => Some((Err(error), None)),
    }
}

/// Returns an archive that contains the guest at its path in the sandbox.
fn archive(guest: &Path, podman: bool) -> Result<Vec<u8>, bollard::errors::Error> {
    let bytes = std::fs::read(guest)?;
    let mut archive = tar::Builder::new(Vec::new());
    // A mounted file system has the mode of its mount point, regardless of the options passed to the engine.
    // Podman cannot set the owner either, so with Podman all users may write to these directories.
    let open: &[(&str, u32)] =
        if podman { &[("workspace/", 0o1777), ("home/sandbox/", 0o1777)] } else { &[] };
    for (path, mode) in [(".bellglass/", 0o755), (".bellglass/spool/", 0o700)].iter().chain(open).copied() {
        archive.append_data(&mut header(tar::EntryType::Directory, 0, mode), path, std::io::empty())?;
    }
    let size = bytes.len() as u64;
    archive.append_data(
        &mut header(tar::EntryType::Regular, size, 0o555),
        ".bellglass/guest",
        bytes.as_slice(),
    )?;
    Ok(archive.into_inner()?)
}

fn header(kind: tar::EntryType, size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header
}

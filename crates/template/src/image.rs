//! The validated metadata of an image: its layers with their digests, environment variables and working
//! directory.
//!
//! The image's user and start command are ignored: every sandbox runs only the commands that it is given, as
//! the sandbox's own user.

use std::collections::{BTreeMap, BTreeSet};

use api::layer::LAYERS_MAX;
use host::error::Error;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::note::{LABEL, Note};
use crate::package::{self, Package, shown};
use crate::{keys, layers, unsound};

/// Maximum nesting depth of indexes. A multi-platform image has one index inside the outermost one.
const DEPTH_MAX: usize = 4;
/// Maximum number of an image's environment variables, and their maximum total size in bytes, including their
/// names: half of the limit for the arguments and variables of an exec.
const VARIABLES_MAX: usize = 1024;
const VARIABLES_BYTES_MAX: usize = api::limits::ARGV_ENV_BYTES_MAX / 2;
/// `PATH_MAX` on Linux.
const PATH_BYTES_MAX: usize = 4096;
/// Top-level directories in which no exec may start. A path below them could refer to an open descriptor of a
/// process.
const NO_PLACES: [&str; 4] = ["proc", "sys", "dev", ".bellglass"];

/// The metadata of an image.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// The image's layers, lowest first.
    pub(super) layers: Vec<Layer>,
    /// The image's environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// The working directory that the image sets, if any.
    pub(super) cwd: Option<String>,
    /// The template fields that the image format lacks, if the image was exported from a template.
    pub(super) note: Option<Note>,
    /// The image's configuration, unmodified.
    pub(super) configuration: Vec<u8>,
}

/// One layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// The name of the layer's archive in the package.
    pub(super) blob: String,
    /// The digest of the archive as stored, if the image states it.
    pub(super) digest: Option<String>,
    /// The digest of the uncompressed archive.
    pub(super) diff_id: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// One image of a `docker save` archive.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Configuration {
    architecture: String,
    os: String,
    #[serde(default)]
    config: Option<Wishes>,
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Wishes {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

impl Image {
    /// Reads the metadata of the image for this machine. The package must contain exactly one such image.
    pub(super) fn read(package: &Package) -> Result<Self, Error> {
        // Newer `docker save` archives contain both formats. The OCI layout is preferred, because it has
        // digests for all parts.
        if package.has("index.json") {
            let index: Index = strict("index.json", &package.document("index.json", None)?, &keys::INDEX)?;
            return Self::pick(package, &index.manifests, 0);
        }
        if package.has("manifest.json") {
            return Self::saved(package);
        }
        Err(unsound(
            "this is not an OCI layout or a `docker save` archive: it has neither index.json nor manifest.json",
            "Export the image with `docker save`, `podman save` or `skopeo copy docker://… oci:DIRECTORY`.",
        ))
    }

    /// Finds the image for this machine in an index, which must contain exactly one such image.
    fn pick(package: &Package, manifests: &[Descriptor], depth: usize) -> Result<Self, Error> {
        if depth >= DEPTH_MAX {
            return Err(Error::Request(api::limits::exceeded(
                "the nesting depth of indexes in the image",
                depth as u64 + 1,
                DEPTH_MAX as u64,
            )));
        }
        let fit: BTreeMap<&str, &Descriptor> = manifests
            .iter()
            .filter(|one| !one.annotations.contains_key("vnd.docker.reference.type"))
            .filter(|one| one.platform.as_ref().is_none_or(|on| is_ours(&on.os, &on.architecture)))
            .map(|one| (one.digest.as_str(), one))
            .collect();
        let (Some(chosen), 1) = (fit.values().next(), fit.len()) else {
            return Err(no_choice(fit.len(), manifests));
        };
        let name = blob(&chosen.digest)?;
        let text = package.document(&name, Some(&chosen.digest))?;
        if chosen.media_type.contains("index") || chosen.media_type.contains("manifest.list") {
            let index: Index = strict(&name, &text, &keys::INDEX)?;
            return Self::pick(package, &index.manifests, depth + 1);
        }
        let manifest: Manifest = strict(&name, &text, &keys::MANIFEST)?;
        let config = package.document(&blob(&manifest.config.digest)?, Some(&manifest.config.digest))?;
        let mut blobs = Vec::new();
        for layer in &manifest.layers {
            if !layer.media_type.contains("tar") || layer.media_type.contains("encrypted") {
                return Err(unsound(
                    format!("unknown layer type {:?}", shown(&layer.media_type)),
                    "Export the image with layers that are tar archives, uncompressed or compressed with gzip or Zstandard.",
                ));
            }
            let name = blob(&layer.digest)?;
            let size = package.blob(&name)?.size;
            if size != layer.size {
                return Err(package::mismatch(
                    &name,
                    &format!("{} bytes", layer.size),
                    &format!("{size} bytes"),
                ));
            }
            blobs.push((name, Some(layer.digest.clone())));
        }
        Self::new("the configuration", config, blobs)
    }

    /// Reads the image of a `docker save` archive, which must contain exactly one image.
    fn saved(package: &Package) -> Result<Self, Error> {
        let text = package.document("manifest.json", None)?;
        let images: Vec<Saved> = strict("manifest.json", &text, &keys::SAVED)?;
        let [image] = images.as_slice() else { return Err(no_choice(images.len(), &[])) };
        let config = package.document(&image.config, named(&image.config).as_deref())?;
        let blobs = image.layers.iter().map(|name| (name.clone(), named(name))).collect();
        Self::new(&image.config, config, blobs)
    }

    fn new(name: &str, text: Vec<u8>, blobs: Vec<(String, Option<String>)>) -> Result<Self, Error> {
        let Configuration { architecture, os, config, rootfs } = strict(name, &text, &keys::CONFIGURATION)?;
        if !is_ours(&os, &architecture) {
            return Err(foreign(&format!("{}/{}", shown(&os), shown(&architecture))));
        }
        let diff_ids = rootfs.diff_ids;
        if blobs.is_empty() || blobs.len() != diff_ids.len() {
            return Err(unsound(
                format!("the image has {} layers but {} layer digests", blobs.len(), diff_ids.len()),
                "Export an image that has at least one layer.",
            ));
        }
        if blobs.len() > LAYERS_MAX {
            let exceeded =
                api::limits::exceeded("the number of layers", blobs.len() as u64, LAYERS_MAX as u64);
            let fix = "Squash the image into fewer layers, for example with `docker export`.".into();
            return Err(Error::Request(api::Error { fix, ..exceeded }));
        }
        let layers = blobs
            .into_iter()
            .zip(diff_ids)
            .map(|((blob, digest), diff_id)| check_digest(&diff_id).map(|()| Layer { blob, digest, diff_id }))
            .collect::<Result<_, _>>()?;
        let wishes = config.unwrap_or_default();
        Ok(Self {
            layers,
            env: variables(&wishes)?,
            cwd: directory(&wishes)?,
            note: note(&wishes)?,
            configuration: text,
        })
    }
}

/// Reads the template fields that the image format lacks from a label, and validates them like the fields of
/// a request.
fn note(wishes: &Wishes) -> Result<Option<Note>, Error> {
    let Some(text) = wishes.labels.as_ref().and_then(|labels| labels.get(LABEL)) else { return Ok(None) };
    let note: Note = parse("the label of the template", text.as_bytes())?;
    note.check()?;
    Ok(Some(note))
}

fn variables(wishes: &Wishes) -> Result<BTreeMap<String, String>, Error> {
    let listed = wishes.env.as_deref().unwrap_or_default();
    if listed.len() > VARIABLES_MAX {
        let exceeded = api::limits::exceeded(
            "the number of environment variables in the image",
            listed.len() as u64,
            VARIABLES_MAX as u64,
        );
        return Err(Error::Request(exceeded));
    }
    let bytes: usize = listed.iter().map(String::len).sum();
    if bytes > VARIABLES_BYTES_MAX {
        let (bytes, most) = (bytes as u64, VARIABLES_BYTES_MAX as u64);
        return Err(Error::Request(api::limits::exceeded(
            "the total size of the environment variables in bytes",
            bytes,
            most,
        )));
    }
    let mut variables = BTreeMap::new();
    for text in listed {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        if !crate::recipe::is_variable(name, value) {
            return Err(unsound(
                format!("the image has an invalid environment variable {:?}", shown(text)),
                "Rebuild the image without this variable.",
            ));
        }
        variables.insert(name.to_owned(), value.to_owned());
    }
    Ok(variables)
}

fn directory(wishes: &Wishes) -> Result<Option<String>, Error> {
    let Some(path) = wishes.working_dir.as_deref().filter(|path| !path.is_empty()) else { return Ok(None) };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let sound = path.starts_with('/')
        && path.len() < PATH_BYTES_MAX
        && !path.contains('\0')
        && !parts.contains(&"..")
        && !parts.first().is_some_and(|first| NO_PLACES.contains(first));
    if !sound {
        return Err(unsound(
            format!("the image has an invalid working directory {:?}", shown(path)),
            "Rebuild the image with an absolute WORKDIR that has no `..` and is not in /proc, /sys, /dev or /.bellglass.",
        ));
    }
    // `/` is Docker's default and counts as unset, so that the sandbox's default applies.
    Ok((!parts.is_empty()).then(|| format!("/{}", parts.join("/"))))
}

fn no_choice(count: usize, manifests: &[Descriptor]) -> Error {
    if count > 1 {
        return unsound(
            format!("the archive or layout contains {count} images"),
            "Export only one image, for example with `docker save NAME:TAG`.",
        );
    }
    let platforms: BTreeSet<String> = manifests
        .iter()
        .filter_map(|one| one.platform.as_ref())
        .map(|on| format!("{}/{}", shown(&on.os), shown(&on.architecture)))
        .collect();
    if platforms.is_empty() {
        return unsound("the archive or layout contains no image", "Export the image again.");
    }
    foreign(&platforms.into_iter().take(16).collect::<Vec<_>>().join(", "))
}

fn foreign(platforms: &str) -> Error {
    unsound(
        format!("the image is for {platforms}, but this machine is linux/{}", architecture()),
        &format!("Export the image with `--platform linux/{}`.", architecture()),
    )
}

fn is_ours(os: &str, named: &str) -> bool {
    os == "linux" && named == architecture()
}

/// Returns this machine's architecture, as images name it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the name of the blob with this digest.
fn blob(digest: &str) -> Result<String, Error> {
    check_digest(digest)?;
    Ok(format!("blobs/{}", digest.replacen(':', "/", 1)))
}

fn check_digest(digest: &str) -> Result<(), Error> {
    match digest.strip_prefix("sha256:") {
        Some(rest) if layers::is_key(rest) => Ok(()),
        _ => Err(unsound(
            format!("the image has the digest {:?}, which is not SHA-256", shown(digest)),
            "Export the image again with SHA-256 digests.",
        )),
    }
}

/// Returns the digest that is part of a file name, if there is one.
fn named(name: &str) -> Option<String> {
    let last = name.rsplit('/').next()?;
    let bare = last.strip_suffix(".json").unwrap_or(last);
    layers::is_key(bare).then(|| format!("sha256:{bare}"))
}

/// Parses a document that other programs also read, and rejects it if they could interpret it differently.
fn strict<T: DeserializeOwned>(name: &str, text: &[u8], shape: &'static keys::Shape) -> Result<T, Error> {
    match keys::check(text, shape) {
        Err(error) if !api::defence::is_off("I-10") => Err(unsound(
            format!("{:?} of the image is invalid: {error}", shown(name)),
            "Save the image again with `docker save`, `podman save` or `skopeo copy`.",
        )),
        _ => parse(name, text),
    }
}

fn parse<T: DeserializeOwned>(name: &str, text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| {
        unsound(format!("{name:?} of the image is invalid: {error}"), "Export the image again.")
    })
}

#[cfg(test)]
mod tests;

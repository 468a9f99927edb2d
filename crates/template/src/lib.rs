//! Templates: importing, building, storing and cleaning them up.
//!
//! | module | holds |
//! |---|---|
//! | `store` | the templates of this machine, by name |
//! | `layers` | their layers, by content, and the removal of unused and incomplete layers |
//! | `unpack` | unpacking of one layer, streamed into a dedicated sandbox |
//! | `package` | an image on disk (an archive or a directory), whose members are read by name |
//! | `image` | the validated metadata of an image |
//! | `keys` | checks of the keys in an image's JSON documents, which all readers must interpret in the same way |
//! | `loadable` | an image rewritten without names, to be loaded into an engine |
//! | `mounts` | detection of mounts in a tree, so that a removal does not cross into them |
//! | `note` | the template fields that the image format lacks, stored in a label of the image |
//! | `base` | a Debian system built from packages |
//! | `recipe` | the definition of a template, in steps, and its validation |
//! | `build` | the build of a recipe, step by step |
//! | `step` | one step that runs in a sandbox, and the changes that it makes |
//! | `copy` | the files that a recipe copies |
//! | [`sent`] | files that a client uploaded for a build |
//! | [`shipped`] | the recipes that ship with Bellglass |
//! | `cache` | the cached layers of steps, and build logs |
//! | `registry` | pulling of images from registries |
//! | `containerfile` | conversion of a recipe to a Containerfile, for engines and for other build tools |
//! | [`engine`] | templates that exist only in an engine |
//! | `export` | a template as one file, which is also an OCI image |
//!
//! ```text
//! FILE ─▶ package ─▶ image ─▶ for each layer, lowest first: blob ──stream──▶ guest unpacks ─▶ stored under its key
//! step: commands in a sandbox ─▶ its changes ────────── archive ──stream──▶ guest unpacks ─▶ stored under its key
//! mmdebstrap ───────────────────────────────── archive ──stream──▶ guest unpacks ─▶ stored under its key ─▶ template
//! ```
//!
//! Invariants: the host never opens anything inside a layer. Only a complete layer is stored under its key. A
//! template references only complete layers.

mod base;
mod build;
mod cache;
mod containerfile;
mod copy;
pub mod engine;
mod export;
mod image;
mod keys;
mod layers;
mod loadable;
mod mounts;
mod note;
mod package;
pub mod recipe;
mod registry;
pub mod sent;
pub mod shipped;
mod step;
mod store;
mod unpack;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use api::SandboxId;
use api::layer::LayerReport;
use egress::gate::upstream::Upstreams;
use egress::{Broker, Gate};
use host::error::Error;
use host::machine::Machine;
use runtime::{Runtime, Tier};

pub use build::BuildOrder;
pub use layers::{InUse, tidy, using};
pub use store::{Posture, Store, Template, apply, root};

use image::Image;
use layers::Layers;
use package::Package;
use unpack::{Source, Unpack};

/// Progress of an import, a build or an export.
#[derive(Clone, Copy, Debug)]
pub enum TemplateProgress<'a> {
    /// A layer is being unpacked.
    Layer {
        /// The layer's number, counted from 1.
        number: usize,
        /// The total number of layers.
        count: usize,
        /// The layer's size on disk, if known.
        bytes: Option<u64>,
    },
    /// A layer already exists on this machine.
    Kept {
        /// The layer's number, counted from 1.
        number: usize,
        /// The total number of layers.
        count: usize,
    },
    /// A step of a recipe starts.
    Step {
        /// The step's number, counted from 1.
        number: usize,
        /// The total number of steps.
        count: usize,
        /// A short description of the step.
        what: &'a str,
        /// True if the step's layer is taken from the cache.
        kept: bool,
    },
    /// The number of bytes of the current layer transferred so far.
    Bytes(u64),
    /// A message to show to the user, for example a line that the build program printed.
    Says(&'a str),
    /// Output of a step's commands, as it arrives.
    Output(&'a [u8]),
}

/// The callback that receives progress messages.
pub type ProgressSink<'a> = &'a (dyn Fn(TemplateProgress<'_>) + Sync);

/// Builder of templates on one machine, with one runtime.
pub struct Builder {
    runtime: Arc<dyn Runtime>,
    data: PathBuf,
    guest: PathBuf,
    broker: Arc<Broker>,
    /// IDs of the sandboxes created so far, so that `abandon` can stop them if a caller drops a build.
    made: Mutex<Vec<SandboxId>>,
}

impl Builder {
    /// Creates a builder that stores templates in the machine's data directory, runs steps in sandboxes of
    /// this runtime, and downloads packages from the machine's package sources.
    pub fn new(machine: &Machine, runtime: Arc<dyn Runtime>) -> Self {
        let data = machine.data().to_owned();
        let reserve = host::admission::Bounds::default().disk_reserve_bytes;
        let gate = Gate::new(&guest_client::egress::packages(&data), Upstreams::of_this_machine(), reserve);
        let broker = Arc::new(Broker::new(gate));
        Self { runtime, data, guest: machine.guest().to_owned(), broker, made: Mutex::default() }
    }

    /// Creates a builder for this data directory, with the container runtime of this machine.
    ///
    /// # Errors
    /// The data directory cannot be opened, or the machine has no such runtime.
    pub fn below(data: &Path) -> Result<Self, Error> {
        let machine = Machine::open(data)?;
        Ok(Self::new(&machine, machine.at_least(Tier::Container)?))
    }

    /// Stops the sandboxes that an abandoned import, build or export left behind. Call this method after the
    /// future of the operation has been dropped.
    ///
    /// # Errors
    /// A sandbox could not be stopped. A later command tries again.
    pub async fn abandon(&self) -> Result<(), Error> {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for id in made {
            self.runtime.stop(&id, std::time::Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Returns a new sandbox ID and records it for `abandon`.
    fn fresh_id(&self) -> Result<SandboxId, Error> {
        let id = host::machine::fresh_id()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        Ok(id)
    }

    /// Imports a template from an image: a `docker save` archive, or an OCI layout as an archive or a
    /// directory.
    ///
    /// # Errors
    /// The image is invalid, is for a different architecture, or exceeds a limit, or an operation on this
    /// machine failed. Existing templates and their layers stay unchanged.
    pub async fn import(&self, name: &str, file: &Path, watch: ProgressSink<'_>) -> Result<Template, Error> {
        store::check_name(name)?;
        let package = Package::open(file)?;
        let layers = Layers::open(&self.data).await?;
        let template = self.import_package(name, &package, &layers, watch).await?;
        Store::new(&self.data).save(&template)?;
        Ok(template)
    }

    /// Unpacks the layers of an image. The template is returned but not saved.
    async fn import_package(
        &self,
        name: &str,
        package: &Package,
        layers: &Layers,
        watch: ProgressSink<'_>,
    ) -> Result<Template, Error> {
        let image = Image::read(package)?;
        let count = image.layers.len();
        let diff_ids: Vec<String> = image.layers.iter().map(|layer| layer.diff_id.clone()).collect();
        let mut keys: Vec<String> = Vec::new();
        for (index, layer) in image.layers.iter().enumerate() {
            let number = index + 1;
            let key = layers::key(diff_ids.get(..number).unwrap_or_default(), number == count);
            if layers.has(&key, &layer.diff_id)? {
                watch(TemplateProgress::Kept { number, count });
                keys.push(key);
                continue;
            }
            let blob = package.blob(&layer.blob)?;
            watch(TemplateProgress::Layer { number, count, bytes: Some(blob.size) });
            let source = Source::blob(blob, layer.digest.clone())?;
            let done = keys.iter().map(|key| layers.tree(key)).collect();
            let position = LayerPosition { done, top: number == count };
            let (making, unpacked) = self.unpack(layers, source, position, watch).await?;
            if unpacked.report.digest != layer.diff_id {
                making.discard()?;
                return Err(package::mismatch(&layer.blob, &layer.diff_id, &unpacked.report.digest));
            }
            making.keep(&key, &unpacked.report)?;
            keys.push(key);
        }
        let template = Template { layers: keys, env: image.env, cwd: image.cwd, ..Template::of(name) };
        Ok(image.note.map_or(template.clone(), |note| note.written_on(template)))
    }

    /// Unpacks one layer. On failure, the incomplete layer is removed.
    async fn unpack(
        &self,
        layers: &Layers,
        source: Source,
        position: LayerPosition,
        watch: ProgressSink<'_>,
    ) -> Result<(layers::Making, Unpacked), Error> {
        let id = self.fresh_id()?;
        let making = layers.making(&id)?;
        let unpack = Unpack {
            runtime: Arc::clone(&self.runtime),
            id,
            empty: layers.empty()?,
            guest: self.guest.clone(),
            target: making.tree(),
            done: position.done,
            top: position.top,
        };
        match unpack.run(source, watch).await {
            Ok(unpacked) => Ok((making, unpacked)),
            Err(error) => {
                // If the sandbox could not be stopped, it may still write to the layer. A later command then
                // removes the layer.
                if error.stopped {
                    making.discard()?;
                }
                Err(error.cause)
            }
        }
    }
}

/// Returns the directory of a layer that contains only the mount points of a sandbox.
///
/// # Errors
/// The data directory cannot be written.
pub async fn empty(data: &Path) -> Result<PathBuf, Error> {
    Layers::open(data).await?.empty()
}

/// The position of a layer in its image.
struct LayerPosition {
    /// The directories of the layers below, lowest first.
    done: Vec<PathBuf>,
    /// True if the layer is the topmost layer of its image.
    top: bool,
}

/// The result of unpacking a layer.
struct Unpacked {
    /// The report of the guest that unpacked the layer.
    report: LayerReport,
    /// The digest of the bytes sent to the guest, computed on the host.
    digest: String,
}

/// Returns an error if writing `bytes` bytes next to `path` would leave less free disk space than the
/// machine's reserve.
fn check_room(path: &Path, bytes: u64) -> Result<(), Error> {
    let reserve = host::admission::Bounds::default().disk_reserve_bytes;
    let free = host::admission::disk_free_bytes(path.parent().unwrap_or(path));
    if free >= bytes.saturating_add(reserve) {
        return Ok(());
    }
    Err(Error::Runtime(runtime::Error::Capacity {
        what: "the template",
        why: format!("{bytes} more bytes are required, {free} are free, and {reserve} of those are reserved"),
    }))
}

/// Returns the error for an invalid image, recipe or name, with the suggested fix.
fn unsound(message: impl Into<String>, fix: &str) -> Error {
    Error::Request(api::Error::invalid(message, fix))
}

fn failed<'a>(act: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + use<'a> {
    move |source| Error::System { act: format!("{act} {}", path.display()), source }
}

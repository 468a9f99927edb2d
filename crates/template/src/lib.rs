//! What sandboxes are made from: imported, built, kept, tidied.
//!
//! | module | holds |
//! |---|---|
//! | `store` | the templates of this machine, by name |
//! | `layers` | their layers, by content; what was left half-made |
//! | `unpack` | one layer, streamed into a sandbox made for nothing else |
//! | `package` | an image as it lies on disk: an archive or a directory, read by name |
//! | `image` | what an image says of itself, checked |
//! | `keys` | the keys of its documents, which all readers must read alike |
//! | `loadable` | an image as an engine is given it, without names |
//! | `mounts` | whether a tree can be removed without leaving it |
//! | `note` | what only a template has, as a label of an image |
//! | `base` | a Debian system from packages |
//! | `recipe` | what a template is made from, in steps, checked |
//! | `build` | a recipe, step by step |
//! | `step` | one step, run in a sandbox, and what it changed |
//! | `copy` | files from beside a recipe |
//! | [`sent`] | files that somebody sent for a build |
//! | [`shipped`] | the recipes that come with Bellglass |
//! | `cache` | what steps became, and what they said |
//! | `registry` | an image from a registry |
//! | `containerfile` | a recipe for engines, and for people who build with their own tools |
//! | [`engine`] | templates that only an engine has |
//! | `export` | a template as one file, which is an image too |
//!
//! ```text
//! FILE ─▶ package ─▶ image ─▶ for each layer, lowest first: blob ──stream──▶ guest unpacks ─▶ kept by its key
//! step: commands in a sandbox ─▶ what they changed ──── archive ──stream──▶ guest unpacks ─▶ kept by its key
//! mmdebstrap ───────────────────────────────── archive ──stream──▶ guest unpacks ─▶ kept by its key ─▶ template
//! ```
//!
//! Invariants: the host never opens anything inside a layer; a layer is complete or it has another name; a template
//! names only layers that are complete.

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

pub use build::Order;
pub use layers::{InUse, tidy, using};
pub use store::{Posture, Store, Template, apply, root};

use image::Image;
use layers::Layers;
use package::Package;
use unpack::{Source, Unpack};

/// What happens while a template is made.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A layer is being unpacked.
    Layer {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        count: usize,
        /// Its size as it lies on disk, where that is known.
        bytes: Option<u64>,
    },
    /// A layer is here already.
    Kept {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        count: usize,
    },
    /// A step of a recipe begins.
    Step {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        count: usize,
        /// What it is, in a few words.
        what: &'a str,
        /// Whether it was made before.
        kept: bool,
    },
    /// So many bytes of the layer have been sent.
    Bytes(u64),
    /// The program that builds says something.
    Says(&'a str),
    /// What a step writes, as it comes.
    Output(&'a [u8]),
}

/// Takes what happens.
pub type Watch<'a> = &'a (dyn Fn(Progress<'_>) + Sync);

/// Makes templates on one machine, with one runtime.
pub struct Builder {
    runtime: Arc<dyn Runtime>,
    data: PathBuf,
    guest: PathBuf,
    broker: Arc<Broker>,
    /// The sandboxes that were made, to be ended should nobody wait for the end.
    made: Mutex<Vec<SandboxId>>,
}

impl Builder {
    /// Makes templates in the machine's data directory, with sandboxes of this runtime, and packages from where this machine has them.
    pub fn new(machine: &Machine, runtime: Arc<dyn Runtime>) -> Self {
        let data = machine.data().to_owned();
        let reserve = host::admission::Bounds::default().disk_reserve_bytes;
        let gate = Gate::new(&guest_client::egress::packages(&data), Upstreams::of_this_machine(), reserve);
        let broker = Arc::new(Broker::new(gate));
        Self { runtime, data, guest: machine.guest().to_owned(), broker, made: Mutex::default() }
    }

    /// Makes templates in this data directory, with the containers of this machine.
    ///
    /// # Errors
    /// It has none.
    pub fn below(data: &Path) -> Result<Self, Error> {
        let machine = Machine::open(data)?;
        Ok(Self::new(&machine, machine.at_least(Tier::Container)?))
    }

    /// Ends what is left when something that was being made is given up: call it after the future of that was dropped.
    ///
    /// # Errors
    /// A sandbox could not be ended. The next command tries again.
    pub async fn abandon(&self) -> Result<(), Error> {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for id in made {
            self.runtime.stop(&id, std::time::Duration::ZERO).await?;
        }
        Ok(())
    }

    /// A name for a sandbox of this builder.
    fn fresh_id(&self) -> Result<SandboxId, Error> {
        let id = host::machine::fresh_id()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        Ok(id)
    }

    /// Makes a template of an image: a `docker save` archive, or an OCI layout as an archive or a directory.
    ///
    /// # Errors
    /// The image is not sound, is for another machine, goes over a limit, or the machine failed. Nothing named by a
    /// template is changed then.
    pub async fn import(&self, name: &str, file: &Path, watch: Watch<'_>) -> Result<Template, Error> {
        store::check_name(name)?;
        let package = Package::open(file)?;
        let layers = Layers::open(&self.data).await?;
        let template = self.import_package(name, &package, &layers, watch).await?;
        Store::new(&self.data).save(&template)?;
        Ok(template)
    }

    /// Makes the layers of an image. The template is not kept.
    async fn import_package(
        &self,
        name: &str,
        package: &Package,
        layers: &Layers,
        watch: Watch<'_>,
    ) -> Result<Template, Error> {
        let image = Image::read(package)?;
        let count = image.layers.len();
        let diff_ids: Vec<String> = image.layers.iter().map(|layer| layer.diff_id.clone()).collect();
        let mut keys: Vec<String> = Vec::new();
        for (index, layer) in image.layers.iter().enumerate() {
            let number = index + 1;
            let key = layers::key(diff_ids.get(..number).unwrap_or_default(), number == count);
            if layers.has(&key, &layer.diff_id)? {
                watch(Progress::Kept { number, count });
                keys.push(key);
                continue;
            }
            let blob = package.blob(&layer.blob)?;
            watch(Progress::Layer { number, count, bytes: Some(blob.size) });
            let source = Source::blob(blob, layer.digest.clone())?;
            let done = keys.iter().map(|key| layers.tree(key)).collect();
            let (making, unpacked) = self.unpack(layers, source, (done, number == count), watch).await?;
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

    /// Unpacks one layer; if that fails nothing of it is left.
    async fn unpack(
        &self,
        layers: &Layers,
        source: Source,
        (done, top): (Vec<PathBuf>, bool),
        watch: Watch<'_>,
    ) -> Result<(layers::Making, Unpacked), Error> {
        let id = self.fresh_id()?;
        let making = layers.making(&id)?;
        let unpack = Unpack {
            runtime: Arc::clone(&self.runtime),
            id,
            empty: layers.empty()?,
            guest: self.guest.clone(),
            target: making.tree(),
            done,
            top,
        };
        match unpack.run(source, watch).await {
            Ok(unpacked) => Ok((making, unpacked)),
            Err(error) => {
                // What a sandbox that could not be stopped may still write is left to the next command.
                if error.stopped {
                    making.discard()?;
                }
                Err(error.cause)
            }
        }
    }
}

/// A layer with nothing in it but the places that a sandbox mounts things on.
///
/// # Errors
/// The data directory cannot be written.
pub async fn empty(data: &Path) -> Result<PathBuf, Error> {
    Layers::open(data).await?.empty()
}

/// What came of unpacking a layer.
struct Unpacked {
    /// What the guest says.
    report: LayerReport,
    /// The digest of what was sent, computed here.
    digest: String,
}

/// Refuses what would leave the machine without the room that it needs for itself.
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

/// The error for something about an image that is not as it should be.
fn unsound(message: impl Into<String>, fix: &str) -> Error {
    Error::Request(api::Error::invalid(message, fix))
}

fn failed<'a>(act: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + use<'a> {
    move |source| Error::System { act: format!("{act} {}", path.display()), source }
}

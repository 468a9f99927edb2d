//! What sandboxes are made from: imported, built, kept, tidied.
//!
//! | module | holds |
//! |---|---|
//! | `store` | the templates of this machine, by name |
//! | `layers` | their layers, by content; what was left half-made |
//! | `unpack` | one layer, streamed into a sandbox made for nothing else |
//! | `package` | an image as it lies on disk: an archive or a directory, read by name |
//! | `image` | what an image says of itself, checked |
//! | `mounts` | whether a tree can be removed without leaving it |
//! | `base` | a Debian system from packages |
//!
//! ```text
//! FILE ─▶ package ─▶ image ─▶ for each layer, lowest first: blob ──stream──▶ guest unpacks ─▶ kept by its key
//! mmdebstrap ───────────────────────────────── archive ──stream──▶ guest unpacks ─▶ kept by its key ─▶ template
//! ```
//!
//! Invariants: the host never opens anything inside a layer; a layer is complete or it has another name; a template
//! names only layers that are complete.

mod base;
mod image;
mod layers;
mod mounts;
mod package;
mod store;
mod unpack;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::layer::LayerReport;
use runtime::Runtime;

pub use base::Base;
pub use layers::{tidy, tree as layer_directory, using};
pub use store::{Store, Template, apply};

use crate::error::Error;
use crate::machine::Machine;
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
    /// So many bytes of the layer have been sent.
    Bytes(u64),
    /// The program that builds says something.
    Says(&'a str),
}

/// Takes what happens.
pub type Watch<'a> = &'a (dyn Fn(Progress<'_>) + Sync);

/// Makes templates on one machine, with one runtime.
pub struct Builder {
    runtime: Arc<dyn Runtime>,
    data: PathBuf,
    guest: PathBuf,
}

impl Builder {
    /// Makes templates in the machine's data directory, with sandboxes of this runtime.
    pub fn new(machine: &Machine, runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, data: machine.data().to_owned(), guest: machine.guest().to_owned() }
    }

    /// Makes a template of an image: a `docker save` archive, or an OCI layout as an archive or a directory.
    ///
    /// # Errors
    /// The image is not sound, is for another machine, goes over a limit, or the machine failed. Nothing named by a
    /// template is changed then.
    pub async fn import(&self, name: &str, file: &Path, watch: Watch<'_>) -> Result<Template, Error> {
        store::check_name(name)?;
        let package = Package::open(file)?;
        let image = Image::read(&package)?;
        let layers = Layers::open(&self.data).await?;
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
            let (making, unpacked) = self.unpack(&layers, source, (done, number == count), watch).await?;
            if unpacked.report.digest != layer.diff_id {
                making.discard()?;
                return Err(image::mismatch(&layer.blob, &layer.diff_id, &unpacked.report.digest));
            }
            making.keep(&key, &unpacked.report)?;
            keys.push(key);
        }
        self.save(name, keys, image)
    }

    /// Makes a template of a Debian system, from packages.
    ///
    /// # Errors
    /// `mmdebstrap` is missing or failed, or the machine did.
    pub async fn build_base(&self, name: &str, base: &Base, watch: Watch<'_>) -> Result<Template, Error> {
        store::check_name(name)?;
        let layers = Layers::open(&self.data).await?;
        watch(Progress::Layer { number: 1, count: 1, bytes: None });
        let source = base.start(layers.scratch())?;
        let (making, unpacked) = self.unpack(&layers, source, (Vec::new(), true), watch).await?;
        // The archive passes through here as it is: its digest is ours, and the guest's must agree.
        if unpacked.report.digest != unpacked.digest {
            making.discard()?;
            return Err(Error::Protocol("the guest read another archive than the one that was sent".into()));
        }
        let key = layers::key(std::slice::from_ref(&unpacked.digest), true);
        making.keep(&key, &unpacked.report)?;
        self.save(name, vec![key], Image::default())
    }

    /// Unpacks one layer; if that fails nothing of it is left.
    async fn unpack(
        &self,
        layers: &Layers,
        source: Source,
        (done, top): (Vec<PathBuf>, bool),
        watch: Watch<'_>,
    ) -> Result<(layers::Making, Unpacked), Error> {
        let id = crate::machine::fresh_id()?;
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

    fn save(&self, name: &str, layers: Vec<String>, image: Image) -> Result<Template, Error> {
        let built_at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let template = Template {
            name: name.to_owned(),
            layers,
            env: image.env,
            cwd: image.cwd,
            policy: api::policy::Policy::default(),
            built_at: built_at.map_or(0, |since| since.as_secs()),
        };
        Store::new(&self.data).save(&template)?;
        Ok(template)
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

/// The error for something about an image that is not as it should be.
fn unsound(message: impl Into<String>, fix: &str) -> Error {
    Error::Request(api::Error::invalid(message, fix))
}

fn failed<'a>(act: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + use<'a> {
    move |source| Error::System { act: format!("{act} {}", path.display()), source }
}

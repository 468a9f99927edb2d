//! Root file systems of Bellglass's templates. Local targets share them, so that all targets run the same
//! files.
//!
//! The templates come from the data directory in `BELLGLASS_TEMPLATES`. If this variable is not set, the
//! bench builds the templates once, in a data directory that it keeps ([`KEPT`]). A template consists of
//! layers. For targets that do not support layers, an overlay mount combines the layers into one directory.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::process;
use crate::target::{Image, TargetFailure};

/// Data directory for templates that the bench builds itself.
pub const KEPT: &str = "/var/tmp/bellglass-bench";
/// Timeout for building a template. The template with the data stack installs several hundred megabytes.
const BUILT_WITHIN: Duration = Duration::from_secs(900);
/// Timeout for a mount command, which normally takes milliseconds.
const MOUNTED_WITHIN: Duration = Duration::from_secs(20);

/// Number of leading characters of a layer's key that identify the layer.
const KEY_SHOWN: usize = 32;

/// Root file systems of all images.
pub struct Rootfs {
    data: PathBuf,
    plain: Root,
    data_stack: Root,
}

/// Root file system of one template.
pub struct Root {
    /// Name of the template.
    pub name: String,
    /// Directory with all files. Containers share it read-only.
    pub directory: PathBuf,
    /// Environment variables that programs in the template expect.
    pub env: BTreeMap<String, String>,
    layers: Vec<String>,
    /// Overlay mount, which is unmounted when this value is dropped.
    _mounted: Mounted,
}

/// Fields of a template's record that the bench needs.
#[derive(Deserialize)]
struct TemplateRecord {
    layers: Vec<String>,
    env: BTreeMap<String, String>,
}

/// Mount point that is unmounted when this value is dropped.
struct Mounted(PathBuf);

impl Rootfs {
    /// Finds the templates, or builds them if necessary, and mounts them.
    pub async fn find(binary: &Path, scratch: &Path) -> Result<Self, TargetFailure> {
        let given = std::env::var_os("BELLGLASS_TEMPLATES").map(PathBuf::from);
        let data = given.clone().unwrap_or_else(|| KEPT.into());
        for image in [Image::Plain, Image::Data] {
            let name = template(image);
            if record(&data, name).is_none() && given.is_none() {
                let mut build = process::command(binary);
                build.arg("--data").arg(&data).args(["template", "build", name]);
                process::run(&mut build, BUILT_WITHIN).await?;
            }
        }
        Ok(Self {
            plain: Root::mount(&data, template(Image::Plain), scratch).await?,
            data_stack: Root::mount(&data, template(Image::Data), scratch).await?,
            data,
        })
    }

    /// Returns the root file system of an image.
    pub fn of(&self, image: Image) -> &Root {
        match image {
            Image::Plain => &self.plain,
            Image::Data => &self.data_stack,
        }
    }

    /// Makes the templates available in a different server's data directory, without copying their layers.
    pub fn lend(&self, to: &Path) -> std::io::Result<()> {
        let (layers, templates) = (to.join("layers"), to.join("templates"));
        std::fs::create_dir_all(&layers)?;
        std::fs::create_dir_all(&templates)?;
        // Each sandbox accesses these directories as its own user.
        for directory in [to, layers.as_path()] {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711))?;
        }
        for root in [&self.plain, &self.data_stack] {
            let name = format!("{}.json", root.name);
            std::fs::copy(self.data.join("templates").join(&name), templates.join(&name))?;
            for key in root.layers.iter().filter(|key| !layers.join(key).exists()) {
                symlink(self.data.join("layers").join(key), layers.join(key))?;
            }
        }
        Ok(())
    }
}

impl Root {
    /// Returns a name that identifies exactly these files. The key of the topmost layer serves this purpose,
    /// because it depends on all layers below it.
    pub fn key(&self) -> &str {
        self.layers.last().and_then(|key| key.get(..KEY_SHOWN)).unwrap_or(&self.name)
    }

    async fn mount(data: &Path, name: &str, scratch: &Path) -> Result<Self, TargetFailure> {
        let missing = || {
            let fix = format!("build it: bellglass --data {} template build {name}", data.display());
            TargetFailure::new("no_templates", format!("no template `{name}` in {}; {fix}", data.display()))
        };
        let record = record(data, name).ok_or_else(missing)?;
        let directory = scratch.join(name);
        let [top, work] = ["upper", "work"].map(|kind| scratch.join(format!("{name}.{kind}")));
        for directory in [&directory, &top, &work] {
            std::fs::create_dir_all(directory).map_err(|error| cannot("create", directory, &error))?;
        }
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o755))
            .map_err(|error| cannot("change", &top, &error))?;
        // An overlay lists the topmost layer first, but a record lists the lowest layer first.
        let trees = record.layers.iter().rev().map(|key| data.join("layers").join(key).join("fs"));
        let lower: Vec<String> = trees.map(|tree| tree.display().to_string()).collect();
        let (lower, top, work) = (lower.join(":"), top.display(), work.display());
        let options = format!("lowerdir={lower},upperdir={top},workdir={work},userxattr");
        let mut mount = process::command("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&directory);
        process::run(&mut mount, MOUNTED_WITHIN).await?;
        let mounted = Mounted(directory.clone());
        Ok(Self { name: name.into(), directory, env: record.env, layers: record.layers, _mounted: mounted })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Returns the name of the template for an image.
pub fn template(image: Image) -> &'static str {
    match image {
        Image::Plain => "base",
        Image::Data => "interpreter",
    }
}

/// Returns the failure for a file operation that did not succeed.
pub fn cannot(act: &str, path: &Path, error: &std::io::Error) -> TargetFailure {
    TargetFailure::new("files", format!("cannot {act} {}: {error}", path.display()))
}

fn record(data: &Path, name: &str) -> Option<TemplateRecord> {
    let text = std::fs::read(data.join("templates").join(format!("{name}.json"))).ok()?;
    serde_json::from_slice(&text).ok()
}

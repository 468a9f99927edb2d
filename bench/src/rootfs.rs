//! The root file systems that targets on this machine share, so that the same files are compared: those of Bellglass's templates.
//!
//! They are read where `BELLGLASS_TEMPLATES` says, which is a data directory of Bellglass's; without it they are built, once, in one that is
//! kept ([`KEPT`]). A template is a number of layers. What knows no layers is shown them as one directory, by an overlay.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::process;
use crate::target::{Failure, Image};

/// Where templates are kept that nobody else has built.
pub const KEPT: &str = "/var/tmp/bellglass-bench";
/// The template with the data stack installs some hundred megabytes.
const BUILT_WITHIN: Duration = Duration::from_secs(900);
/// A mount takes milliseconds.
const MOUNTED_WITHIN: Duration = Duration::from_secs(20);

/// As much of a key as tells layers apart.
const KEY_SHOWN: usize = 32;

/// The root file systems of both images.
pub struct Rootfs {
    data: PathBuf,
    plain: Root,
    data_stack: Root,
}

/// One root file system.
pub struct Root {
    /// The name of its template.
    pub name: String,
    /// All of it, as one directory, which containers share read-only.
    pub directory: PathBuf,
    /// Variables that its programs expect.
    pub env: BTreeMap<String, String>,
    layers: Vec<String>,
    /// Undone last.
    _mounted: Mounted,
}

/// What of a template's record is of interest.
#[derive(Deserialize)]
struct Record {
    layers: Vec<String>,
    env: BTreeMap<String, String>,
}

/// A mount that goes with this value.
struct Mounted(PathBuf);

impl Rootfs {
    /// Finds the templates, or builds them.
    pub async fn find(binary: &Path, scratch: &Path) -> Result<Self, Failure> {
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

    /// The root file system of an image.
    pub fn of(&self, image: Image) -> &Root {
        match image {
            Image::Plain => &self.plain,
            Image::Data => &self.data_stack,
        }
    }

    /// Gives the templates to a server with a data directory of its own, without copying layers.
    pub fn lend(&self, to: &Path) -> std::io::Result<()> {
        let (layers, templates) = (to.join("layers"), to.join("templates"));
        std::fs::create_dir_all(&layers)?;
        std::fs::create_dir_all(&templates)?;
        // Sandboxes walk there as users of their own.
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
    /// A name for exactly these files: the key of a layer depends on all below it.
    pub fn key(&self) -> &str {
        self.layers.last().and_then(|key| key.get(..KEY_SHOWN)).unwrap_or(&self.name)
    }

    async fn mount(data: &Path, name: &str, scratch: &Path) -> Result<Self, Failure> {
        let missing = || {
            let fix = format!("build it: bellglass --data {} template build {name}", data.display());
            Failure::new("no_templates", format!("no template `{name}` in {}; {fix}", data.display()))
        };
        let record = record(data, name).ok_or_else(missing)?;
        let directory = scratch.join(name);
        let [top, work] = ["upper", "work"].map(|kind| scratch.join(format!("{name}.{kind}")));
        for directory in [&directory, &top, &work] {
            std::fs::create_dir_all(directory).map_err(|error| cannot("create", directory, &error))?;
        }
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o755))
            .map_err(|error| cannot("change", &top, &error))?;
        // An overlay wants the topmost first; a record has the lowest first.
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

/// The template that an image is.
pub fn template(image: Image) -> &'static str {
    match image {
        Image::Plain => "base",
        Image::Data => "interpreter",
    }
}

/// Something that could not be done to a file.
pub fn cannot(act: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new("files", format!("cannot {act} {}: {error}", path.display()))
}

fn record(data: &Path, name: &str) -> Option<Record> {
    let text = std::fs::read(data.join("templates").join(format!("{name}.json"))).ok()?;
    serde_json::from_slice(&text).ok()
}

//! The templates of this machine, by name: `<data>/templates/<name>.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use api::exec::ExecSpec;
use api::layer::LAYERS_MAX;
use api::limits::WantedLimits;
use api::policy::Policy;
use host::error::Error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{failed, layers, unsound};

/// Maximum length of a template name in bytes. Names are used in file names, and people type them.
const NAME_BYTES_MAX: usize = 63;

/// Name under which engines store the images of templates. It contains a host, because Podman would otherwise
/// add the host of Docker Hub. No registry serves this host.
const IMAGES: &str = "localhost/bellglass/template";
/// Number of hexadecimal digits of a digest in the tag of an image.
const IMAGE_DIGITS: usize = 32;

/// A template, from which sandboxes are created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The template's name.
    pub name: String,
    /// The keys of the template's layers, lowest first.
    pub layers: Vec<String>,
    /// Default variables of every exec.
    pub env: BTreeMap<String, String>,
    /// Default working directory of execs.
    pub cwd: Option<String>,
    /// Default egress policy of the template's sandboxes.
    #[serde(default)]
    pub policy: Policy,
    /// The command that is started together with every sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// The command that must succeed before a sandbox counts as started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Vec<String>>,
    /// Modules that Python imports in advance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// Default limits of sandboxes.
    #[serde(default, skip_serializing_if = "WantedLimits::is_default")]
    pub limits: WantedLimits,
    /// The part of its own file system that a sandbox may change.
    #[serde(default, skip_serializing_if = "Posture::is_default")]
    pub posture: Posture,
    /// Time of creation, in seconds since 1970.
    pub built_at: u64,
}

/// The part of its own file system that a sandbox may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Posture {
    /// The sandbox may change only `/workspace`, its home directory and `/tmp`.
    #[default]
    Run,
    /// The sandbox may change every path that its user has permission to write. Changes are stored on the
    /// sandbox's disk. This posture is for people and agents who install software.
    Workstation,
}

impl Posture {
    /// Returns true for the default posture.
    pub fn is_default(&self) -> bool {
        *self == Self::Run
    }

    /// Returns the runtime profile of sandboxes with this posture.
    pub fn profile(self) -> runtime::Profile {
        match self {
            Self::Run => runtime::Profile::Run,
            Self::Workstation => runtime::Profile::Workstation,
        }
    }
}

/// The templates of one data directory.
#[derive(Clone, Debug)]
pub struct Store {
    data: PathBuf,
}

impl Template {
    /// Creates an empty template with this name and the current time.
    pub fn of(name: &str) -> Self {
        let built_at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            name: name.to_owned(),
            layers: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            policy: Policy::default(),
            start: None,
            ready: None,
            imports: Vec::new(),
            limits: WantedLimits::default(),
            posture: Posture::Run,
            built_at: built_at.map_or(0, |since| since.as_secs()),
        }
    }

    /// Checks that this is a valid template name.
    ///
    /// # Errors
    /// The name is too long, or contains characters that names must not contain.
    pub fn check_name(name: &str) -> Result<(), Error> {
        check_name(name)
    }

    /// Returns the directories of the template's layers, lowest first.
    pub fn layer_directories(&self, data: &Path) -> Vec<PathBuf> {
        root(data, &self.layers).0
    }

    /// Returns the name of the template's image in engines.
    pub fn image(&self) -> String {
        image(&self.layers)
    }

    /// Adds the template's variables and working directory to an exec, unless the exec sets its own.
    #[must_use]
    pub fn apply(&self, spec: ExecSpec) -> ExecSpec {
        apply(&self.env, self.cwd.as_ref(), spec)
    }
}

/// Returns the root file system that consists of these layers, lowest first, in two forms: the directories of
/// the layers, and the name of their image in engines.
pub fn root(data: &Path, layers: &[String]) -> (Vec<PathBuf>, String) {
    (layers.iter().map(|key| layers::tree(data, key)).collect(), image(layers))
}

/// Derives the image name from the keys of all layers: different layers have different image names, whatever
/// their template is called.
fn image(layers: &[String]) -> String {
    let digest = layers::hexadecimal(&Sha256::digest(layers.join("\n")));
    format!("{IMAGES}:{}", digest.get(..IMAGE_DIGITS).unwrap_or_default())
}

/// Adds these variables and this working directory to an exec, unless the exec sets its own.
#[must_use]
pub fn apply(env: &BTreeMap<String, String>, cwd: Option<&String>, mut spec: ExecSpec) -> ExecSpec {
    for (name, value) in env {
        spec.env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    spec.cwd = spec.cwd.or_else(|| cwd.cloned());
    spec
}

impl Store {
    /// Creates a store for the templates in this data directory.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned() }
    }

    /// Returns all templates, sorted by name.
    ///
    /// # Errors
    /// A template cannot be read.
    pub fn list(&self) -> Result<Vec<Template>, Error> {
        let directory = self.directory();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed("list", &directory))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed("list", &directory))?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
        names.sort();
        names.iter().map(|name| self.load(name)).collect()
    }

    /// Returns the template with this name.
    ///
    /// # Errors
    /// The template does not exist, or its record is damaged.
    pub fn load(&self, name: &str) -> Result<Template, Error> {
        check_name(name)?;
        let path = self.path(name);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(name)),
            other => other.map_err(failed("read", &path))?,
        };
        let template: Template =
            serde_json::from_slice(&text).map_err(io::Error::from).map_err(failed("read", &path))?;
        let sound = template.name == name
            && (1..=LAYERS_MAX).contains(&template.layers.len())
            && template.layers.iter().all(|key| layers::is_key(key));
        if sound { Ok(template) } else { Err(failed("use", &path)(io::ErrorKind::InvalidData.into())) }
    }

    /// Returns true if a template with this name exists.
    pub fn has(&self, name: &str) -> bool {
        check_name(name).is_ok() && self.path(name).exists()
    }

    /// Returns the log of the last build of a template.
    ///
    /// # Errors
    /// No build log exists on this machine, or it cannot be read.
    pub fn build_log(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = crate::cache::log_path(&self.data, name)?;
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Request(api::Error {
                fix: "Build logs are stored by template name. See `bellglass template list`.".into(),
                ..api::Error::not_found(format!("no build log for template {name} on this machine"))
            })),
            other => other.map_err(failed("read", &path)),
        }
    }

    /// Saves a template atomically, replacing any existing template with the same name.
    ///
    /// # Errors
    /// The name is invalid, or a file system operation failed.
    pub fn save(&self, template: &Template) -> Result<(), Error> {
        check_name(&template.name)?;
        let directory = self.directory();
        fs::create_dir_all(&directory).map_err(failed("create directory", &directory))?;
        let path = self.path(&template.name);
        let text = serde_json::to_vec_pretty(template).map_err(io::Error::from);
        let text = text.map_err(failed("write", &path))?;
        let fresh = directory.join(format!("new-{}-{}.part", std::process::id(), template.name));
        layers::write(&fresh, &text)?;
        fs::rename(&fresh, &path).map_err(failed("write", &path))
    }

    /// Removes a template. A later [`crate::tidy`] removes its layers once they are no longer in use.
    ///
    /// # Errors
    /// The template does not exist, or a file system operation failed.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(name)),
            other => other.map_err(failed("remove", &path))?,
        }
        let log = crate::cache::log_path(&self.data, name)?;
        match fs::remove_file(&log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &log)(error)),
            _ => Ok(()),
        }
    }

    fn directory(&self) -> PathBuf {
        self.data.join("templates")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.json"))
    }
}

/// Checks that this is a valid template name.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let letters = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c));
    if starts && letters && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    Err(unsound(
        format!("{shown:?} is not a valid template name"),
        "Use at most 63 lower-case letters, digits, `-`, `_` and `.`, starting with a letter or digit.",
    ))
}

fn missing(name: &str) -> Error {
    let fix = match name {
        "base" => "Build the template with `bellglass template build base`.",
        _ => {
            "See `bellglass template list`, or create the template with `bellglass template build` or `bellglass template import`."
        }
    };
    Error::Request(api::Error {
        fix: fix.into(),
        ..api::Error::not_found(format!("there is no template {name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(name: &str) -> Template {
        let env = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned()), ("A".to_owned(), "1".to_owned())]);
        let layers = vec!["a".repeat(64)];
        Template { layers, env, cwd: Some("/srv".into()), built_at: 5, ..Template::of(name) }
    }

    #[test]
    fn templates_are_kept_by_name() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::new(data.path());
        assert_eq!(store.list().unwrap(), []);
        for name in ["two", "one"] {
            store.save(&template(name)).unwrap();
        }
        assert_eq!(store.list().unwrap(), [template("one"), template("two")]);
        store.remove("one").unwrap();
        let code = |error: Error| error.to_api().code;
        assert_eq!(code(store.load("one").unwrap_err()), api::ErrorCode::NotFound);
        assert_eq!(code(store.remove("one").unwrap_err()), api::ErrorCode::NotFound);
        assert!(template("two").layer_directories(data.path())[0].ends_with("fs"));
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        for name in ["", "..", "a/b", "../a", ".a", "A", "a b", &"a".repeat(64)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name("python3.11-slim").is_ok());
    }

    #[test]
    fn a_record_that_names_other_paths_is_refused() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::new(data.path());
        store.save(&Template { layers: vec!["../../etc".into()], ..template("a") }).unwrap();
        assert!(store.load("a").is_err());
    }

    #[test]
    fn an_exec_has_its_own_say_first() {
        let env = BTreeMap::from([("A".to_owned(), "2".to_owned())]);
        let spec = template("a").apply(ExecSpec { env, ..ExecSpec::default() });
        assert_eq!((spec.env["A"].as_str(), spec.env["PATH"].as_str()), ("2", "/bin"));
        assert_eq!(spec.cwd.as_deref(), Some("/srv"));
        let spec = template("a").apply(ExecSpec { cwd: Some("/x".into()), ..ExecSpec::default() });
        assert_eq!(spec.cwd.as_deref(), Some("/x"));
    }
}

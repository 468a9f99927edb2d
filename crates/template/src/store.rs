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

/// What a name may have: it is a file's name, and a label people type.
const NAME_BYTES_MAX: usize = 63;

/// Where engines keep images of templates. With a host, or Podman takes them for Docker Hub's; this one is nobody's.
const IMAGES: &str = "localhost/bellglass/template";
/// How much of a digest names one.
const IMAGE_DIGITS: usize = 32;

/// What sandboxes are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// The keys of its layers, the lowest first.
    pub layers: Vec<String>,
    /// Variables that every exec gets, unless it says otherwise.
    pub env: BTreeMap<String, String>,
    /// Where execs start, unless they say otherwise.
    pub cwd: Option<String>,
    /// What may leave its sandboxes, unless they say otherwise.
    #[serde(default)]
    pub policy: Policy,
    /// What runs in every sandbox from its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// What has to succeed before a sandbox counts as started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Vec<String>>,
    /// Modules that Python imports ahead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// What sandboxes may use, unless they say otherwise.
    #[serde(default, skip_serializing_if = "WantedLimits::is_default")]
    pub limits: WantedLimits,
    /// How much of its own file system a sandbox may change.
    #[serde(default, skip_serializing_if = "Posture::is_default")]
    pub posture: Posture,
    /// When it was made, in seconds since 1970.
    pub built_at: u64,
}

/// How much of its own file system a sandbox may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Posture {
    /// `/workspace`, its home and `/tmp`.
    #[default]
    Run,
    /// Everything that its user may write, on the sandbox's disk: for people and agents who install things.
    Workstation,
}

impl Posture {
    /// Whether it is the usual one.
    pub fn is_default(&self) -> bool {
        *self == Self::Run
    }

    /// What a runtime is asked for.
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
    /// A template of this name, made now, with nothing in it yet.
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

    /// Refuses what cannot be the name of one.
    ///
    /// # Errors
    /// It has other letters than names have, or too many.
    pub fn check_name(name: &str) -> Result<(), Error> {
        check_name(name)
    }

    /// The directories of its layers, the lowest first.
    pub fn layer_directories(&self, data: &Path) -> Vec<PathBuf> {
        root(data, &self.layers).0
    }

    /// The name by which engines know it.
    pub fn image(&self) -> String {
        image(&self.layers)
    }

    /// What an exec is asked to do, with the template's variables and directory where it has none of its own.
    #[must_use]
    pub fn apply(&self, spec: ExecSpec) -> ExecSpec {
        apply(&self.env, self.cwd.as_ref(), spec)
    }
}

/// The root file system that these layers are, the lowest first: their directories, and the name by which engines know them.
pub fn root(data: &Path, layers: &[String]) -> (Vec<PathBuf>, String) {
    (layers.iter().map(|key| layers::tree(data, key)).collect(), image(layers))
}

/// A name that is made of all keys: other layers have another one, whatever their template is called.
fn image(layers: &[String]) -> String {
    let digest = layers::hexadecimal(&Sha256::digest(layers.join("\n")));
    format!("{IMAGES}:{}", digest.get(..IMAGE_DIGITS).unwrap_or_default())
}

/// What an exec is asked to do, with these variables and this directory where it has none of its own.
#[must_use]
pub fn apply(env: &BTreeMap<String, String>, cwd: Option<&String>, mut spec: ExecSpec) -> ExecSpec {
    for (name, value) in env {
        spec.env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    spec.cwd = spec.cwd.or_else(|| cwd.cloned());
    spec
}

impl Store {
    /// The templates below this data directory.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned() }
    }

    /// All templates, by name.
    ///
    /// # Errors
    /// One of them cannot be read.
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

    /// The template of that name.
    ///
    /// # Errors
    /// There is none, or its record is damaged.
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

    /// Whether there is one of that name.
    pub fn has(&self, name: &str) -> bool {
        check_name(name).is_ok() && self.path(name).exists()
    }

    /// What the last build of a template said.
    ///
    /// # Errors
    /// None was built here.
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

    /// Writes a template, in one step, over the one of that name if there is one.
    ///
    /// # Errors
    /// What the file system said.
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

    /// Removes a template. Its layers go with the next [`crate::tidy`], when nothing can be using them.
    ///
    /// # Errors
    /// There is none of that name, or what the file system said.
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

/// Refuses what cannot be the name of a template.
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

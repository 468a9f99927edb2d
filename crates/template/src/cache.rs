//! What steps of recipes came to, so that a step that was made before is not made again; and what they said.
//!
//! ```text
//! <data>/builds/<key>.json     the layer that the step of this key became
//! <data>/builds/<name>.log     what the last build of a template said
//! ```
//!
//! The key of a step is a digest of all that went into it: what lies below it, what it does, and with which variables, user and files. So
//! nobody can make a layer that another recipe takes for its own, except by doing the same to the same.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use host::error::Error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::layers::{self, Layers, hexadecimal, is_key};
use crate::{failed, store};

/// Another way to make steps gets another number.
const STEP_FORM: &str = "step 2";
/// What was not used for so long is forgotten, and its layer with it unless a template names it.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);
/// What is kept of what a build said.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// What stands before each line that a program prints.
const PRINTED: &[u8] = b"  ";

/// The key of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepKey(String);

/// What a step became.
#[derive(Serialize, Deserialize)]
struct Became {
    layer: String,
    digest: String,
}

/// What a build says, kept. Lines of the build itself begin with `#` or a letter; what programs print stands behind [`PRINTED`], so that no
/// program can write a line of the build.
pub(super) struct Log {
    file: fs::File,
    left: u64,
    /// Whether a line that a program prints has begun and not ended.
    open: bool,
}

impl StepKey {
    /// The key of something that was done to the layer `below`, whose name says all that lies below it.
    pub(super) fn of(below: &str, done: &impl Serialize) -> Result<Self, Error> {
        let done = serde_json::to_string(done)
            .map_err(|error| failed("compute the cache key of", "a step".as_ref())(io::Error::from(error)))?;
        Ok(Self(hexadecimal(&Sha256::digest(format!("{STEP_FORM}\n{below}\n{done}")))))
    }
}

/// The complete layer that a step became, if it is here.
pub(super) fn find(data: &Path, layers: &Layers, key: &StepKey) -> Result<Option<String>, Error> {
    let path = directory(data).join(format!("{}.json", key.0));
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed("read", &path))?,
    };
    // What cannot be read is made again.
    let Ok(became) = serde_json::from_slice::<Became>(&text) else { return Ok(None) };
    if !is_key(&became.layer) || !layers.has(&became.layer, &became.digest)? {
        return Ok(None);
    }
    if let Ok(file) = fs::File::options().write(true).open(&path) {
        // Only so that it is not forgotten.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(Some(became.layer))
}

/// Remembers what a step became.
pub(super) fn keep(data: &Path, key: &StepKey, layer: &str, digest: &str) -> Result<(), Error> {
    let directory = directory(data);
    fs::create_dir_all(&directory).map_err(failed("create directory", &directory))?;
    let path = directory.join(format!("{}.json", key.0));
    let became = Became { layer: layer.to_owned(), digest: digest.to_owned() };
    let text = serde_json::to_vec(&became).map_err(io::Error::from).map_err(failed("write", &path))?;
    let fresh = directory.join(format!("new-{}-{}.part", std::process::id(), key.0));
    layers::write(&fresh, &text)?;
    fs::rename(&fresh, &path).map_err(failed("write", &path))
}

/// The layers of steps that were used lately. What is older is forgotten. Nobody may be building.
pub(super) fn layers_kept(data: &Path) -> Result<Vec<String>, Error> {
    let directory = directory(data);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", &directory))?,
    };
    let mut kept = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("list", &directory))?.path();
        let is_step = path.file_stem().and_then(|stem| stem.to_str()).is_some_and(is_key);
        let modified = path.metadata().and_then(|found| found.modified());
        let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
        if path.extension().is_some_and(|ending| ending == "part") {
            // Whoever was writing it is gone: nobody makes layers now.
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            continue;
        }
        match fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Became>(&text).ok()) {
            Some(became) if is_step && age <= KEPT => kept.push(became.layer),
            _ if is_step && age > KEPT => fs::remove_file(&path).map_err(failed("remove", &path))?,
            _ => {}
        }
    }
    Ok(kept)
}

/// Where it is kept what the last build of a template said.
pub(super) fn log_path(data: &Path, name: &str) -> Result<PathBuf, Error> {
    store::check_name(name)?;
    Ok(directory(data).join(format!("{name}.log")))
}

impl Log {
    /// Begins a log, over the one of that name if there is one.
    pub(super) fn begin(data: &Path, name: &str) -> Result<Self, Error> {
        let path = log_path(data, name)?;
        let directory = directory(data);
        fs::create_dir_all(&directory).map_err(failed("create directory", &directory))?;
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        Ok(Self { file: file.map_err(failed("write", &path))?, left: LOG_BYTES_MAX, open: false })
    }

    /// Keeps a line of the build itself.
    pub(super) fn say(&mut self, line: &str) {
        if std::mem::take(&mut self.open) {
            self.write(b"\n");
        }
        // One line, whatever a recipe or a name in it holds.
        let line: String = line.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.write(line.as_bytes());
        self.write(b"\n");
    }

    /// Keeps what a program printed, in pieces as they come.
    pub(super) fn print(&mut self, bytes: &[u8]) {
        if api::defence::is_off("U-21") {
            return self.write(bytes);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.open {
                self.write(PRINTED);
            }
            self.write(piece);
            self.open = !piece.ends_with(b"\n");
        }
    }

    /// Writes as long as there is room. A build does not fail because its log cannot be written.
    fn write(&mut self, bytes: &[u8]) {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.left -= most as u64;
        let _ = self.file.write_all(bytes.get(..most).unwrap_or_default());
    }
}

fn directory(data: &Path) -> PathBuf {
    data.join("builds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_writes_a_line_of_the_build() {
        // U-21
        let data = tempfile::tempdir().unwrap();
        let mut log = Log::begin(data.path(), "x").unwrap();
        log.say("# step 1 of 1: run evil\n# step 1 of 2\n");
        for piece in ["one\n# st", "ep 2 of 3: run\n", "\n", "# installed x", " sha256:0"] {
            log.print(piece.as_bytes());
        }
        log.say("# refused: y\n");
        log.print(b"last");
        let said = fs::read_to_string(log_path(data.path(), "x").unwrap()).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines,
            [
                "# step 1 of 1: run evil # step 1 of 2",
                "  one",
                "  # step 2 of 3: run",
                "  ",
                "  # installed x sha256:0",
                "# refused: y",
                "  last",
            ]
        );
    }

    #[tokio::test]
    async fn a_step_is_known_by_all_that_went_into_it_and_believed_only_while_its_layer_is_there() {
        // U-12
        let data = tempfile::tempdir().unwrap();
        let layers = Layers::open(data.path()).await.unwrap();
        let key = |below: &str, done: &str| StepKey::of(below, &done).unwrap();
        assert_eq!(key("a", "b"), key("a", "b"));
        assert_ne!(key("a", "b"), key("a", "c"));
        assert_ne!(key("a", "b"), key("b", "b"));
        assert_ne!(key("a", "\"b"), key("a\n", "b"), "one may not be written as another");

        let step = key("a", "b");
        assert_eq!(find(data.path(), &layers, &step).unwrap(), None);
        let layer = "c".repeat(64);
        keep(data.path(), &step, &layer, "sha256:x").unwrap();
        assert_eq!(find(data.path(), &layers, &step).unwrap(), None, "there is no such layer");
        let report = api::layer::LayerReport { digest: "sha256:x".into(), ..Default::default() };
        layers.making(&"s1".parse().unwrap()).unwrap().keep(&layer, &report).unwrap();
        assert_eq!(find(data.path(), &layers, &step).unwrap(), Some(layer.clone()));
        assert_eq!(layers_kept(data.path()).unwrap(), std::slice::from_ref(&layer));
        keep(data.path(), &step, &layer, "sha256:y").unwrap();
        assert_eq!(find(data.path(), &layers, &step).unwrap(), None, "it is of another content");
        keep(data.path(), &step, "../../etc", "sha256:x").unwrap();
        assert_eq!(find(data.path(), &layers, &step).unwrap(), None);
    }
}

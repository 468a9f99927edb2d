//! The cache of step results, so that an unchanged step is not run again, and the logs of builds.
//!
//! ```text
//! <data>/builds/<key>.json     the layer that the step with this key produced
//! <data>/builds/<name>.log     the log of the last build of a template
//! ```
//!
//! The key of a step is a digest of all its inputs: the layers below it, its commands, and their variables,
//! user and files. A recipe can therefore reuse a layer of another recipe only if both perform the same step
//! on the same layers.

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

/// Version of the procedure that runs steps. Increase it when the procedure changes, so that old results are
/// not reused.
const STEP_FORM: &str = "step 2";
/// How long unused results are retained. An expired result is removed, together with its layer if nothing
/// else uses the layer.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);
/// Maximum size of a build log in bytes.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Prefix of each line that a program prints.
const PRINTED: &[u8] = b"  ";

/// The key of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepKey(String);

/// The result of a step.
#[derive(Serialize, Deserialize)]
struct Became {
    layer: String,
    digest: String,
}

/// The log of a build. The build's own lines begin with `#` or a letter. Lines that programs print are
/// prefixed with [`PRINTED`], so that no program can forge a line of the build.
pub(super) struct Log {
    file: fs::File,
    left: u64,
    /// True if a program has started a line and not yet finished it.
    open: bool,
}

impl StepKey {
    /// Returns the key of the operation `done` on top of the layer `below`. The key of that layer covers all
    /// layers below it.
    pub(super) fn of(below: &str, done: &impl Serialize) -> Result<Self, Error> {
        let done = serde_json::to_string(done)
            .map_err(|error| failed("compute the cache key of", "a step".as_ref())(io::Error::from(error)))?;
        Ok(Self(hexadecimal(&Sha256::digest(format!("{STEP_FORM}\n{below}\n{done}")))))
    }
}

/// Returns the layer that a step produced, if the layer is cached and complete.
pub(super) fn find(data: &Path, layers: &Layers, key: &StepKey) -> Result<Option<String>, Error> {
    let path = directory(data).join(format!("{}.json", key.0));
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed("read", &path))?,
    };
    // An unreadable entry counts as missing: the step runs again.
    let Ok(became) = serde_json::from_slice::<Became>(&text) else { return Ok(None) };
    if !is_key(&became.layer) || !layers.has(&became.layer, &became.digest)? {
        return Ok(None);
    }
    if let Ok(file) = fs::File::options().write(true).open(&path) {
        // The modification time serves as the time of last use.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(Some(became.layer))
}

/// Records the layer that a step produced.
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

/// Returns the layers of recently used results, and removes expired results and unfinished files. Must not be
/// called while a build is running.
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
            // No build is running, so the process that wrote this file is gone.
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

/// Returns the path of the log of a template's last build.
pub(super) fn log_path(data: &Path, name: &str) -> Result<PathBuf, Error> {
    store::check_name(name)?;
    Ok(directory(data).join(format!("{name}.log")))
}

impl Log {
    /// Creates the log with this name, replacing any existing log.
    pub(super) fn begin(data: &Path, name: &str) -> Result<Self, Error> {
        let path = log_path(data, name)?;
        let directory = directory(data);
        fs::create_dir_all(&directory).map_err(failed("create directory", &directory))?;
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        Ok(Self { file: file.map_err(failed("write", &path))?, left: LOG_BYTES_MAX, open: false })
    }

    /// Writes a line of the build itself.
    pub(super) fn say(&mut self, line: &str) {
        if std::mem::take(&mut self.open) {
            self.write(b"\n");
        }
        // Control characters are replaced, so that no recipe or name can start a second line.
        let line: String = line.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.write(line.as_bytes());
        self.write(b"\n");
    }

    /// Writes a chunk of a program's output.
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

    /// Writes until the size limit is reached. Write errors are ignored: a build does not fail because of its
    /// log.
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
        // Covers attack U-21.
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
        // Covers attack U-12.
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

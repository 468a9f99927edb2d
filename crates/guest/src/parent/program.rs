//! The program of the parent interpreter, and the Python that runs it. User code can write to neither.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags};

/// Source of the entry program, which loads all other files from `SOURCES`.
const BOOT: &str = include_str!("../interpreter/boot.py");

macro_rules! sources {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../interpreter/", $name, ".py")))),*] };
}
/// Names and sources of all other Python files of the interpreter.
const SOURCES: &[(&str, &str)] = &sources!["boxes" "channel" "charts" "context" "ending" "errors" "figures" "fork" "hooks" "identity" "missing" "packages" "pages" "parent" "plain" "results" "run" "shadow" "shell" "threads" "variables" "warm"];
/// Directories that user code can write to. The parent's Python must not come from any of them.
const WRITABLE: [&str; 4] = ["/workspace", "/home", "/tmp", "/dev"];

/// Creates one sealed, unnamed file with the whole program. All other sources are strings in its first line.
pub(super) fn program() -> std::io::Result<OwnedFd> {
    let sources: std::collections::BTreeMap<_, _> = SOURCES.iter().copied().collect();
    // A JSON string is also a Python string literal.
    let text = format!("SOURCES = {}\n{BOOT}", serde_json::to_string(&sources)?);
    let memory = rustix::fs::memfd_create("interpreter", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(memory);
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    // Forks inherit this descriptor, for interpreters that are started separately (`plain.py`). The seals
    // keep one fork from changing code that other forks run.
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file.into())
}

/// Searches a `PATH` for `python3`. Ignores directories and programs that user code can write to.
pub(super) fn trusted(path: &str) -> Option<String> {
    let ours = |path: &Path| !WRITABLE.iter().any(|place| path.starts_with(place));
    path.split(':').filter(|directory| directory.starts_with('/')).find_map(|directory| {
        let directory = Path::new(directory).canonicalize().ok().filter(|directory| ours(directory))?;
        let python = directory.join("python3");
        python.canonicalize().ok().filter(|file| file.is_file() && ours(file))?;
        python.to_str().map(str::to_owned)
    })
}

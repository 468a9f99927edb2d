//! The observable privileges of a user process.
//!
//! The command `/.bellglass/guest posture` runs as an ordinary exec, so its result holds for every exec.

use std::collections::BTreeMap;
use std::process::ExitCode;

use api::posture::{Posture, cgroup_limits};

const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// Prints the posture of this process as JSON.
pub fn print() -> ExitCode {
    match own() {
        Ok(text) => write(text.as_bytes()),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes text to standard output in a single write. Fails if the write is partial.
pub fn write(text: &[u8]) -> ExitCode {
    match rustix::io::write(rustix::stdio::stdout(), text) {
        Ok(written) if written == text.len() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Returns the posture of this process as JSON.
pub fn own() -> std::io::Result<String> {
    // List the descriptors first: reading any file opens another one.
    let descriptors = descriptors();
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let mut posture = Posture::parse(&read("status"), &read("limits"));
    posture.descriptors = descriptors;
    // Get this flag with a system call, because gVisor's `/proc` does not show it.
    posture.no_new_privileges = rustix::thread::no_new_privs().unwrap_or(false);
    posture.namespaces = NAMESPACES
        .into_iter()
        .filter_map(|kind| {
            let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
            Some((kind.to_owned(), link.to_string_lossy().into_owned()))
        })
        .collect();
    posture.cgroup = cgroup_limits(|file| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok());
    Ok(serde_json::to_string(&posture)?)
}

fn descriptors() -> BTreeMap<u32, String> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return BTreeMap::new() };
    let listed: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // Skip the descriptor that listed the directory: it is closed by now, so its link cannot be read.
    listed
        .into_iter()
        .filter_map(|number| {
            let link = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
            Some((number, link.to_string_lossy().into_owned()))
        })
        .collect()
}

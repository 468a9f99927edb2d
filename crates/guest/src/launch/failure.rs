//! The errors of a start.

use std::io;

use api::exec::ExecSpec;
use api::{Error, ErrorCode, Layer, Ran, Retry, limits};

use super::environment::DIRECTORY;

/// Returns the error for a sandbox whose terminals are all in use, by execs or by user code.
pub fn no_terminal() -> Error {
    Error {
        code: ErrorCode::Capacity,
        message: format!("the sandbox has no free terminals; the maximum is {}", limits::TERMINALS_MAX),
        layer: Layer::Sandbox,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Close some terminals of the sandbox, or stop programs in it that open their own terminals."
            .into(),
    }
}

pub(super) fn spawn_failed(spec: &ExecSpec, error: &io::Error) -> Error {
    let directory = spec.cwd.as_deref().unwrap_or(DIRECTORY);
    let program = spec.argv.first().map_or("", String::as_str);
    let shown: String = program.chars().take(limits::ARGV_SHOWN_BYTES).collect();
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) => format!(
            "Check that {shown:?} (or the interpreter named in its first line) exists in the sandbox and is in PATH, \
             and that the directory {directory:?} exists."
        ),
        Some(libc::EACCES) => format!(
            "Make {shown:?} executable for the user (chmod +x), and check that the directory {directory:?} is \
             accessible."
        ),
        Some(libc::ENOEXEC) => {
            "The file is not executable on this machine and has no #! line. Run it with its interpreter."
                .into()
        }
        Some(libc::E2BIG) => {
            "Shorten argv and env, or pass the data through standard input or a file.".into()
        }
        Some(libc::EAGAIN) => "Stop some processes in the sandbox, or request a larger `pids` limit.".into(),
        _ if error.kind() == io::ErrorKind::TimedOut => {
            "Retry. If the error persists, check what else runs in the sandbox (`bellglass top`).".into()
        }
        _ => "Check the program, its interpreter and its working directory.".into(),
    };
    // The sandbox has run out of descriptors or memory, which is not the command's fault.
    if let Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) = error.raw_os_error()
        && !api::defence::is_off("C-38")
    {
        return Error {
            code: ErrorCode::Capacity,
            message: format!("cannot start {shown:?}: {error}"),
            layer: Layer::Sandbox,
            ran: Ran::No,
            retry: Retry::Safe,
            fix: "Stop the processes in the sandbox that hold the most open files or memory (`bellglass top`), then retry.".into(),
        };
    }
    let passes = error.raw_os_error() == Some(libc::EAGAIN) || error.kind() == io::ErrorKind::TimedOut;
    Error {
        code: ErrorCode::SpawnFailed,
        message: format!("cannot start {shown:?} in {directory:?}: {error}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: if passes { Retry::Safe } else { Retry::Useless },
        fix,
    }
}

//! `bellglass cat`: prints the contents of files in a sandbox.

use std::ffi::OsString;
use std::process::ExitCode;

use api::{Error, SandboxId};

use crate::command::{cp, ls};
use crate::connect::ServerConnection;
use crate::show::Heard;

/// Arguments of `bellglass cat`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass cat build notes.txt\n  bellglass cat build /workspace/a /workspace/b | less"
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Files to print, relative to /workspace.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Writes the files to standard output, one after another.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let files = connection.client()?.files(&arguments.sandbox);
    for path in &arguments.paths {
        if cp::pour(&files, &ls::path(path)?).await? == Heard::No {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

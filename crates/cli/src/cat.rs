//! `belljar cat`: the bytes of files of a sandbox.

use std::ffi::OsString;
use std::process::ExitCode;

use api::{Error, SandboxId};

use crate::connect::Connection;
use crate::show::Heard;
use crate::{cp, ls};

/// Which files.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar cat build notes.txt\n  belljar cat build /workspace/a /workspace/b | less"
)]
pub struct Arguments {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The files, relative to /workspace.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Writes them to standard output, one after the other.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let files = connection.client()?.files(&arguments.sandbox);
    for path in &arguments.paths {
        if cp::pour(&files, &ls::path(path)?).await? == Heard::No {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

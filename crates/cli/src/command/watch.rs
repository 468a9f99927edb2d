//! `bellglass watch`: prints changes to files in a sandbox as they happen.

use std::ffi::OsString;
use std::process::ExitCode;

use api::files::{Change, FileEvent};
use api::{Error, SandboxId};

use crate::command::ls;
use crate::connect::{ServerConnection, explain};
use crate::show;
use crate::show::Heard;

/// Arguments of `bellglass watch`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass watch build\n  bellglass watch --deep --json build src | jq -r .path"
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Directory or file, relative to /workspace.
    #[arg(value_name = "PATH", default_value = ".")]
    path: OsString,
    /// Also watch the directories below PATH.
    #[arg(long)]
    deep: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Prints events until the command is interrupted or the reader of standard output closes it.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let files = connection.client()?.files(&arguments.sandbox);
    let mut watch = files.watch(&ls::path(&arguments.path)?, arguments.deep);
    watch.begin().await.map_err(|error| explain(&error))?;
    show::note("watching for changes");
    loop {
        let event = watch.next().await.map_err(|error| explain(&error))?;
        let text = if arguments.json { show::json_text(&event)? } else { words(&event) };
        if show::text(&format!("{text}\n"))? == Heard::No {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn words(event: &FileEvent) -> String {
    let what = match event.event {
        Change::Created => "created",
        Change::Modified => "modified",
        Change::Removed => "removed",
        Change::Overflow => return "some changes were missed; list the files with: bellglass ls".into(),
    };
    format!("{what} {}", show::escape(event.path.as_deref().unwrap_or_default()))
}

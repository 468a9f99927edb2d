//! `bellglass pause` and `bellglass resume`: pause and resume sandboxes.

use std::process::ExitCode;

use api::{Error, SandboxId};
use client::Client;

use crate::command::stop;
use crate::connect::ServerConnection;

/// Arguments of `bellglass pause`.
#[derive(clap::Args)]
#[command(
    after_help = "A paused sandbox keeps its processes and their memory. Any command that uses it resumes it.\n\n\
    Examples:\n  bellglass pause build\n  bellglass create --on-timeout pause --idle 5m"
)]
pub struct PauseArguments {
    #[command(flatten)]
    sandboxes: Sandboxes,
}

/// Arguments of `bellglass resume`.
#[derive(clap::Args)]
#[command(
    after_help = "The idle timeout and the time to live restart with their full lengths.\n\nExample:\n  bellglass resume build"
)]
pub struct ResumeArguments {
    #[command(flatten)]
    sandboxes: Sandboxes,
}

#[derive(clap::Args)]
struct Sandboxes {
    /// Sandboxes, by id or name.
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<SandboxId>,
    /// Print the sandboxes as JSON.
    #[arg(long)]
    json: bool,
}

/// Pauses all given sandboxes. If a sandbox cannot be paused, continues with the next.
pub async fn pause(connection: &ServerConnection, arguments: PauseArguments) -> Result<ExitCode, Error> {
    let Sandboxes { sandboxes, json } = arguments.sandboxes;
    stop::each(connection, &sandboxes, json, |client: Client, id| async move { client.pause(&id).await })
        .await
}

/// Resumes all given sandboxes. If a sandbox cannot be resumed, continues with the next.
pub async fn resume(connection: &ServerConnection, arguments: ResumeArguments) -> Result<ExitCode, Error> {
    let Sandboxes { sandboxes, json } = arguments.sandboxes;
    stop::each(connection, &sandboxes, json, |client: Client, id| async move { client.resume(&id).await })
        .await
}

//! `bellglass stop`: stops sandboxes and waits until they are completely removed.

use std::process::ExitCode;

use api::sandbox::Sandbox;
use api::{Error, SandboxId};
use client::Client;

use crate::command::list;
use crate::connect::{ServerConnection, answer, explain};
use crate::{fleet, show};

/// Arguments of `bellglass stop`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass stop build\n  bellglass list --quiet | xargs -r bellglass stop"
)]
pub struct Arguments {
    /// Sandboxes, by id or name.
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<SandboxId>,
    /// Print the sandboxes as JSON.
    #[arg(long)]
    json: bool,
}

/// Stops all given sandboxes. If a sandbox cannot be stopped, continues with the next.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let Arguments { sandboxes, json } = arguments;
    each(connection, &sandboxes, json, |client: Client, id| async move { client.stop(&id).await }).await
}

/// Sends a request for each sandbox, and prints the resulting sandboxes and the errors.
pub async fn each<F>(
    connection: &ServerConnection,
    sandboxes: &[SandboxId],
    json: bool,
    request: impl Fn(Client, SandboxId) -> F,
) -> Result<ExitCode, Error>
where
    F: Future<Output = Result<Sandbox, client::Error>> + Send + 'static,
{
    let client = connection.client()?;
    let asking = async { Ok(fleet::each(&client, sandboxes, request).await) };
    let (mut done, mut failed) = (Vec::new(), false);
    for result in answer(&client, asking).await? {
        match result {
            Ok(sandbox) => done.push(sandbox),
            Err(error) => {
                failed = true;
                show::error(&explain(&error));
            }
        }
    }
    if json {
        show::json(&done)?;
    } else {
        for sandbox in &done {
            show::note(&format!("{} is {}", sandbox.id, list::state(sandbox)));
        }
    }
    Ok(if failed { ExitCode::from(crate::FAILED) } else { ExitCode::SUCCESS })
}

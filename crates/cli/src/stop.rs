//! `bellglass stop`: ends sandboxes and waits until nothing of them is left.

use std::process::ExitCode;

use api::{Error, SandboxId};

use crate::connect::{Connection, answer, explain};
use crate::{fleet, list, show};

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

/// Stops all of them, also when one of them cannot be stopped.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let stopping = async {
        Ok(fleet::each(&client, &arguments.sandboxes, async |client: client::Client, id| {
            client.stop(&id).await
        })
        .await)
    };
    let (mut stopped, mut failed) = (Vec::new(), false);
    for result in answer(&client, stopping).await? {
        match result {
            Ok(sandbox) => stopped.push(sandbox),
            Err(error) => {
                failed = true;
                show::error(&explain(&error));
            }
        }
    }
    if arguments.json {
        show::json(&stopped)?;
    } else {
        for sandbox in &stopped {
            show::note(&format!("{} is {}", sandbox.id, list::state(sandbox)));
        }
    }
    Ok(if failed { ExitCode::from(crate::FAILED) } else { ExitCode::SUCCESS })
}

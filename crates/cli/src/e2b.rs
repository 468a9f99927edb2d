//! `belljar e2b env`: what programs that use E2B's SDKs need to find this server instead.

use std::process::ExitCode;

use api::Error;

use crate::connect::{Connection, answer};
use crate::show;

/// What its SDKs take for a key begins with this, and goes on in hexadecimal as ours do.
const PREFIX: &str = "e2b_";

/// What to do for clients of E2B's SDKs.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  eval \"$(belljar e2b env)\"\n  python3 -c 'from e2b import Sandbox; print(Sandbox.create().commands.run(\"id\").stdout)'"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Writes the variables with which E2B's SDKs use the server, for a shell.
    Env {
        /// Writes JSON instead.
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let Command::Env { json } = arguments.command;
    let client = connection.client()?;
    // What is written is for a server that answers, and a key that it knows.
    answer(&client, client.sandboxes(false)).await?;
    let key = connection.key()?;
    let key = if key.starts_with(PREFIX) { key } else { format!("{PREFIX}{key}") };
    let url = client.url().trim_end_matches('/').to_owned();
    let variables = [("E2B_API_KEY", key), ("E2B_API_URL", url.clone()), ("E2B_SANDBOX_URL", url)];
    if json {
        let all: serde_json::Map<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        show::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in variables {
        show::line(&format!("export {name}='{}'", value.replace('\'', r"'\''")))?;
    }
    Ok(ExitCode::SUCCESS)
}

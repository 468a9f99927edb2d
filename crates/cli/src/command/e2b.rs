//! `bellglass e2b env`: prints environment variables that point programs with E2B's SDKs at this server.

use std::process::ExitCode;

use api::Error;

use crate::connect::{ServerConnection, answer};
use crate::show;

/// Key prefix that E2B's SDKs require, followed by hexadecimal digits.
const PREFIX: &str = "e2b_";
/// Prefix of Bellglass keys. It is replaced by [`PREFIX`].
const OWN_PREFIX: &str = "bgk_";

/// Arguments of `bellglass e2b`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  eval \"$(bellglass e2b env)\"\n  python3 -c 'from e2b import Sandbox; print(Sandbox.create().commands.run(\"id\").stdout)'"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: E2bCommand,
}

#[derive(clap::Subcommand)]
enum E2bCommand {
    /// Print shell commands that set environment variables, so that E2B's SDKs use the server.
    Env {
        /// Print JSON instead of shell commands.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `bellglass e2b`.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let E2bCommand::Env { json } = arguments.command;
    let client = connection.client()?;
    // Print the variables only if the server responds and accepts the key.
    answer(&client, client.sandboxes(false)).await?;
    let key = connection.key()?;
    let digits = key.strip_prefix(PREFIX).unwrap_or(&key);
    let key = format!("{PREFIX}{}", digits.strip_prefix(OWN_PREFIX).unwrap_or(digits));
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

//! `bellglass packages`: prints the packages that a sandbox downloaded, which is its lock record.

use std::process::ExitCode;

use api::{Error, SandboxId};

use crate::command::list;
use crate::connect::{ServerConnection, answer};
use crate::show;

/// Arguments of `bellglass packages`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass packages s1\n  bellglass packages s1 --json | jq -r '.[] | \"\\(.file) --hash=\\(.hash)\"'"
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    sandbox: SandboxId,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Prints the lock record of the sandbox.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let installed = answer(&client, client.packages(&arguments.sandbox)).await?;
    if arguments.json {
        show::json(&installed)?;
    } else if installed.is_empty() {
        show::note("no packages were downloaded");
    } else {
        let rows: Vec<_> = installed
            .into_iter()
            .map(|one| {
                let from = if one.cached { "cache" } else { "upstream" }.to_owned();
                vec![one.kind.name().to_owned(), one.package, one.file, from, list::age(one.at_ms), one.hash]
            })
            .collect();
        show::table(&["kind", "package", "file", "from", "age", "hash"], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

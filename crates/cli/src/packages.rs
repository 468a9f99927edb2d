//! `belljar packages`: the lock record of a sandbox.

use std::process::ExitCode;

use api::{Error, SandboxId};

use crate::connect::{Connection, answer};
use crate::{list, show};

/// Of which sandbox.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar packages s1\n  belljar packages s1 --json | jq -r '.[] | \"\\(.file) --hash=\\(.hash)\"'"
)]
pub struct Arguments {
    /// Its id or its name.
    sandbox: SandboxId,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let installed = answer(&client, client.packages(&arguments.sandbox)).await?;
    if arguments.json {
        show::json(&installed)?;
    } else if installed.is_empty() {
        show::note("no package was let in");
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

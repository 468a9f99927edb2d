//! `belljar policy`: what may leave a sandbox.

use std::process::ExitCode;

use api::policy::Policy;
use api::{Error, SandboxId};

use crate::connect::{Connection, answer};
use crate::quantity::{self, Limit};
use crate::{request, show};

/// Of which sandbox, and what it is to be.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar policy s1\n  belljar policy s1 --allow api.example.org --allow python-packages\n  \
    belljar policy s1 --allow 'GET,HEAD example.org:80/public/*'\n  \
    belljar policy s1 --allow python-packages=requests,idna,urllib3 --package-age 7d\n  \
    belljar policy s1 --allow api.example.org --allow secret:API_KEY=api.example.org/v1\n  belljar policy s1 --deny\n\n\
    A change replaces the whole policy, and cuts what it no longer allows at once."
)]
pub struct Arguments {
    /// Its id or its name.
    sandbox: SandboxId,
    /// What may leave it from now on: HOST, HOST:PORT or HOST:PORT/PATH, a preset (python-packages, node-packages,
    /// debian-packages, each with =NAME,NAME for these packages alone; git), secret:NAME=HOST, secret:NAME=HOST:PORT/PATH or secret:NAME@HEADER=HOST, or open; can be given more than once.
    #[arg(long = "allow", value_name = "WHAT")]
    allow: Vec<String>,
    /// Nothing may leave it from now on.
    #[arg(long, conflicts_with = "allow")]
    deny: bool,
    /// The most that may be sent and received in a second.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE", requires = "allow")]
    rate: Option<u64>,
    /// The most that may be sent and received altogether.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE", requires = "allow")]
    total: Option<u64>,
    /// How long ago a Python or npm file must have been published to be let in: 7d.
    #[arg(long, value_parser = quantity::limit, value_name = "TIME", requires = "allow")]
    package_age: Option<Limit>,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Shows it, after changing it if that was asked for.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let sandbox = if arguments.deny || !arguments.allow.is_empty() {
        let mut asked = Policy::of_words(&arguments.allow)?;
        if let Some(age) = arguments.package_age.and_then(|age| age.0) {
            asked.packages.minimum_age_ms = request::millis(age);
        }
        let policy = Policy {
            bytes_per_second: arguments.rate.unwrap_or(asked.bytes_per_second),
            bytes_max: arguments.total.unwrap_or(asked.bytes_max),
            ..asked
        };
        answer(&client, client.set_policy(&arguments.sandbox, &policy)).await?
    } else {
        answer(&client, client.sandbox(&arguments.sandbox)).await?
    };
    if arguments.json {
        show::json(&sandbox.policy)?;
    } else if sandbox.policy.is_closed() {
        show::line("nothing may leave it")?;
    } else {
        let Policy { bytes_per_second, bytes_max, .. } = sandbox.policy;
        let rows: Vec<_> = sandbox.policy.words().into_iter().map(|word| vec![word]).collect();
        show::table(&["allowed"], &rows)?;
        let (rate, total) = (quantity::show_bytes(bytes_per_second), quantity::show_bytes(bytes_max));
        show::note(&format!("at most {rate} in a second and {total} altogether"));
    }
    Ok(ExitCode::SUCCESS)
}

//! `bellglass policy`: shows or changes the egress policy of a sandbox.

use std::process::ExitCode;

use api::policy::Policy;
use api::{Error, SandboxId};

use crate::connect::{ServerConnection, answer};
use crate::quantity::{self, Limit};
use crate::{request, show};

/// Arguments of `bellglass policy`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass policy s1\n  bellglass policy s1 --allow api.example.org --allow python-packages\n  \
    bellglass policy s1 --allow 'GET,HEAD example.org:80/public/*'\n  \
    bellglass policy s1 --allow python-packages=requests,idna,urllib3 --package-age 7d\n  \
    bellglass policy s1 --allow api.example.org --allow secret:API_KEY=api.example.org/v1\n  bellglass policy s1 --deny\n\n\
    A change replaces the whole policy, and immediately closes connections that are no longer allowed."
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    sandbox: SandboxId,
    /// Network access to allow from now on. The given values replace the whole policy. Can be repeated.
    ///
    /// WHAT can be a destination: HOST, HOST:PORT or HOST:PORT/PATH.
    ///
    /// WHAT can be a preset: python-packages, node-packages, debian-packages or git. To allow only some packages, append the
    /// package names to a package preset, such as python-packages=NAME,NAME.
    ///
    /// WHAT can be a secret and its destination: secret:NAME=HOST, secret:NAME=HOST:PORT/PATH or secret:NAME@HEADER=HOST. Allow the
    /// host as well, with another --allow.
    ///
    /// WHAT can be `open`, which allows the whole internet.
    #[arg(long = "allow", value_name = "WHAT")]
    allow: Vec<String>,
    /// Allow no network access from now on.
    #[arg(long, conflicts_with = "allow")]
    deny: bool,
    /// Maximum amount of data to send and receive per second, such as 10M.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE", requires = "allow")]
    rate: Option<u64>,
    /// Maximum amount of data to send and receive in total, such as 1G.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE", requires = "allow")]
    total: Option<u64>,
    /// Minimum time since the publication of Python and npm packages that may be installed, such as 7d.
    #[arg(long, value_parser = quantity::limit, value_name = "TIME", requires = "allow")]
    package_age: Option<Limit>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Prints the policy. If the arguments request a change, changes the policy first.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
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
        show::line("no network access")?;
    } else {
        let Policy { bytes_per_second, bytes_max, .. } = sandbox.policy;
        let rows: Vec<_> = sandbox.policy.words().into_iter().map(|word| vec![word]).collect();
        show::table(&["allowed"], &rows)?;
        let (rate, total) = (quantity::show_bytes(bytes_per_second), quantity::show_bytes(bytes_max));
        show::note(&format!("network traffic is limited to {rate} per second and {total} in total"));
    }
    Ok(ExitCode::SUCCESS)
}

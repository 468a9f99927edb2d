//! `belljar create`: a sandbox that stays.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use api::sandbox::CreateSandbox;
use api::{Error, SandboxId, limits};

use crate::connect::{Connection, answer};
use crate::quantity::{self, Limit};
use crate::{request, show};

/// What to make.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar create\n  belljar create --name build --memory 2G --cpus 2 --ttl 4h\n  \
    belljar create --dataset data/sales.csv=sales.csv\n  belljar create --allow python-packages --allow api.example.org\n  \
    belljar exec $(belljar create --label owner=ci) -- make test"
)]
pub struct Arguments {
    #[command(flatten)]
    sandbox: request::Sandbox,
    /// A name to call it by, written like an id; an id works as well.
    #[arg(long)]
    name: Option<SandboxId>,
    /// It is stopped when for so long nobody has called and no command has run.
    #[arg(long, value_parser = quantity::limit, default_value = "5m", value_name = "TIME")]
    idle: Limit,
    /// How long it lives at most: none is 24 hours, the longest there is.
    #[arg(long, value_parser = quantity::limit, default_value = "1h", value_name = "TIME")]
    ttl: Limit,
    /// Something to find it by; can be given more than once.
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,
    /// A dataset of the project to put in before anything runs, and where; can be given more than once.
    #[arg(long = "dataset", value_name = "PATH=NAME")]
    datasets: Vec<String>,
    /// Writes the sandbox as JSON instead of its id.
    #[arg(long)]
    json: bool,
}

/// Makes it, and says its id.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let request = CreateSandbox {
        name: arguments.name,
        template: arguments.sandbox.template.clone(),
        tier: arguments.sandbox.tier.of_server(),
        limits: arguments.sandbox.limits(arguments.ttl.0.unwrap_or(Duration::MAX)),
        idle_ms: arguments.idle.0.map_or(limits::DEADLINE_MS_MAX, request::millis),
        labels: request::pairs("--label", &arguments.labels)?,
        env: BTreeMap::new(),
        datasets: request::pairs("--dataset", &arguments.datasets)?,
        policy: arguments.sandbox.policy()?,
    };
    let sandbox = answer(&client, client.create(&request)).await?;
    if arguments.json {
        show::json(&sandbox)?;
    } else {
        show::line(sandbox.id.as_str())?;
    }
    Ok(ExitCode::SUCCESS)
}

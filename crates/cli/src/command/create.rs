//! `bellglass create`: creates a sandbox that outlives individual commands.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use api::sandbox::CreateSandbox;
use api::{Error, SandboxId, limits};

use crate::connect::{ServerConnection, answer};
use crate::quantity::{self, Limit};
use crate::request::OnTimeoutName;
use crate::{request, show};

/// Arguments of `bellglass create`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass create\n  bellglass create --name build --memory 2G --cpus 2 --ttl 4h\n  \
    bellglass create --dataset data/sales.csv=sales.csv\n  bellglass create --allow python-packages --allow api.example.org\n  \
    bellglass exec $(bellglass create --label owner=ci) -- make test"
)]
pub struct Arguments {
    #[command(flatten)]
    sandbox: request::SandboxOptions,
    /// Name that can be used instead of the id: up to 40 lower-case letters and digits, starting with a letter.
    #[arg(long)]
    name: Option<SandboxId>,
    /// Stop or pause the sandbox when it has had no request and no running command for this long.
    #[arg(long, value_parser = quantity::limit, default_value = "5m", value_name = "TIME")]
    idle: Limit,
    /// Maximum lifetime of the sandbox, such as 4h. The value `none` means 24 hours, the longest possible lifetime.
    #[arg(long, value_parser = quantity::limit, default_value = "1h", value_name = "TIME")]
    ttl: Limit,
    /// What happens when the idle timeout or the maximum lifetime is over. A paused sandbox keeps its processes and their memory, and the
    /// next request resumes it.
    #[arg(long, value_enum, default_value_t = OnTimeoutName::Stop, value_name = "ACTION")]
    on_timeout: OnTimeoutName,
    /// Label to find the sandbox by. Can be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,
    /// Dataset of the project to copy to PATH before any command runs. Can be repeated.
    #[arg(long = "dataset", value_name = "PATH=NAME")]
    datasets: Vec<String>,
    /// Print the sandbox as JSON instead of its id.
    #[arg(long)]
    json: bool,
}

/// Creates the sandbox and prints its ID.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let request = CreateSandbox {
        name: arguments.name,
        template: arguments.sandbox.template.clone(),
        tier: arguments.sandbox.tier.of_server(),
        limits: arguments.sandbox.limits(arguments.ttl.0.unwrap_or(Duration::MAX)),
        idle_ms: arguments.idle.0.map_or(limits::DEADLINE_MS_MAX, request::millis),
        on_timeout: arguments.on_timeout.of_server(),
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

//! `bellglass list`: lists the project's sandboxes.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::Error;
use api::sandbox::{Sandbox, Tier};

use crate::connect::{ServerConnection, answer};
use crate::{quantity, show};

/// Arguments of `bellglass list`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass list\n  bellglass list --all --json\n  bellglass list --quiet | xargs -r bellglass stop"
)]
pub struct Arguments {
    /// Also list sandboxes that have ended.
    #[arg(long, short = 'a')]
    all: bool,
    /// Print only ids.
    #[arg(long, short = 'q', conflicts_with = "json")]
    quiet: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Lists the sandboxes.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let sandboxes = answer(&client, client.sandboxes(arguments.all)).await?;
    if arguments.json {
        show::json(&sandboxes)?;
    } else if arguments.quiet {
        for sandbox in &sandboxes {
            show::line(sandbox.id.as_str())?;
        }
    } else if sandboxes.is_empty() {
        show::note("no sandboxes; create one with: bellglass create");
    } else {
        let rows: Vec<_> = sandboxes.iter().map(row).collect();
        show::table(&["id", "name", "state", "template", "tier", "memory", "age", "labels"], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the state of a sandbox. If the sandbox has ended, the text also states the reason.
pub fn state(sandbox: &Sandbox) -> String {
    match sandbox.reason {
        Some(reason) => format!("{} ({})", sandbox.state.name(), reason.name()),
        None => sandbox.state.name().into(),
    }
}

fn row(sandbox: &Sandbox) -> Vec<String> {
    let labels: Vec<_> = sandbox.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let tier = match sandbox.tier {
        Tier::Container => "container",
        Tier::UserKernel => "user-kernel",
    };
    vec![
        sandbox.id.to_string(),
        sandbox.name.as_ref().map(ToString::to_string).unwrap_or_default(),
        state(sandbox),
        sandbox.template.clone(),
        tier.into(),
        quantity::show_bytes(sandbox.limits.memory_bytes),
        age(sandbox.created_at_ms),
        labels.join(" "),
    ]
}

/// Returns the time since a server timestamp, according to the local clock.
pub fn age(then_ms: u64) -> String {
    quantity::show_time(now().saturating_sub(Duration::from_millis(then_ms)))
}

/// Returns the time until a server timestamp, according to the local clock.
pub fn from_now(then_ms: u64) -> String {
    quantity::show_time(Duration::from_millis(then_ms).saturating_sub(now()))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

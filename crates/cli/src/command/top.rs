//! `bellglass top`: shows the live resource usage of sandboxes.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use api::sandbox::{Sandbox, SandboxState, Usage};
use api::{Error, ErrorCode, SandboxId};
use client::Client;
use tokio::time::Instant;

use crate::connect::{ServerConnection, answer, explain};
use crate::{fleet, quantity, show};

/// Interval between two measurements. Processor usage is averaged over this interval.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of rows. With the header and the last line, they fit on a small terminal.
const ROWS_LIVE: usize = 20;
/// Control sequence that moves the cursor to the top left corner and clears the screen.
const HOME: &str = "\u{1b}[H\u{1b}[J";

/// Arguments of `bellglass top`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass top\n  bellglass top --once\n  bellglass top --json | jq '.[] | .cpu_percent'"
)]
pub struct Arguments {
    /// Measure once and print one table. This is the default if standard output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Measure once and print JSON.
    #[arg(long)]
    json: bool,
}

/// Resource usage of one sandbox at one point in time.
struct UsageRow {
    sandbox: Sandbox,
    usage: Usage,
    cpu_percent: f64,
}

/// Last measurement of each sandbox: the time of the measurement, and the processor time used until then in
/// microseconds.
type LastMeasurements = HashMap<SandboxId, (Instant, u64)>;

/// Shows the resource usage, once or until the command is interrupted.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut seen = LastMeasurements::new();
    // Processor usage is the difference between two measurements, so the first measurement only sets the
    // starting values.
    look(&client, &mut seen).await?;
    let live = !arguments.once && !arguments.json && std::io::stdout().is_terminal();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let rows = look(&client, &mut seen).await?;
        if arguments.json {
            let all: Vec<_> = rows.iter().map(UsageRow::json).collect();
            show::json(&all)?;
        } else if live {
            let text = format!("{HOME}{}", text(&rows, ROWS_LIVE));
            show::text(&text)?;
        } else {
            show::text(&text(&rows, usize::MAX))?;
        }
        if !live {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Measures the resource usage of every running sandbox. The busiest sandboxes come first.
async fn look(client: &Client, seen: &mut LastMeasurements) -> Result<Vec<UsageRow>, Error> {
    let running: Vec<_> = answer(client, client.sandboxes(false))
        .await?
        .into_iter()
        .filter(|sandbox| sandbox.state == SandboxState::Running)
        .collect();
    let ids: Vec<_> = running.iter().map(|sandbox| sandbox.id.clone()).collect();
    let usages = fleet::each(client, &ids, async |client: Client, id| client.usage(&id).await).await;
    let (before, now) = (std::mem::take(seen), Instant::now());
    let mut rows = Vec::new();
    for (sandbox, usage) in running.into_iter().zip(usages) {
        let usage = match usage {
            Ok(usage) => usage,
            // The sandbox ended between the two requests.
            Err(error) if matches!(error.code(), Some(ErrorCode::NotFound | ErrorCode::SandboxLost)) => {
                continue;
            }
            Err(error) => return Err(explain(&error)),
        };
        let cpu_percent = before.get(&sandbox.id).map_or(0.0, |(then, cpu_us)| {
            let used = Duration::from_micros(usage.cpu_us.saturating_sub(*cpu_us));
            100.0 * used.as_secs_f64() / now.duration_since(*then).as_secs_f64().max(f64::EPSILON)
        });
        seen.insert(sandbox.id.clone(), (now, usage.cpu_us));
        rows.push(UsageRow { sandbox, usage, cpu_percent });
    }
    rows.sort_by(|one, other| {
        let memory = other.usage.memory_bytes.cmp(&one.usage.memory_bytes);
        other.cpu_percent.total_cmp(&one.cpu_percent).then(memory)
    });
    Ok(rows)
}

fn text(rows: &[UsageRow], most: usize) -> String {
    let cells: Vec<_> = rows.iter().take(most).map(UsageRow::cells).collect();
    let mut text = show::table_text(&["id", "name", "cpu %", "memory", "of", "processes", "execs"], &cells);
    if let Some(more) = rows.len().checked_sub(most).filter(|more| *more > 0) {
        text.push_str(&format!("and {more} more\n"));
    }
    text
}

impl UsageRow {
    fn cells(&self) -> Vec<String> {
        vec![
            self.sandbox.id.to_string(),
            self.sandbox.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            format!("{:.1}", self.cpu_percent),
            quantity::show_bytes(self.usage.memory_bytes),
            quantity::show_bytes(self.sandbox.limits.memory_bytes),
            self.usage.pids.to_string(),
            self.usage.execs.to_string(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "sandbox": self.sandbox.id, "name": self.sandbox.name, "cpu_percent": self.cpu_percent,
            "usage": self.usage, "memory_limit_bytes": self.sandbox.limits.memory_bytes,
        })
    }
}

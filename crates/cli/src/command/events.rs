//! `bellglass events`: prints events of the project's sandboxes as they happen.

use std::process::ExitCode;

use api::Error;
use api::sandbox::SandboxEvent;

use crate::command::list;
use crate::connect::{ServerConnection, explain};
use crate::show::Heard;
use crate::{quantity, show};

/// Arguments of `bellglass events`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass events\n  bellglass events --json | jq .sandbox.id")]
pub struct Arguments {
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Prints events until the command is interrupted or the reader of standard output closes it.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let mut events = connection.client()?.events();
    loop {
        let event = events.next().await.map_err(|error| explain(&error))?;
        let text = if arguments.json { show::json_text(&event)? } else { show::escape(&words(&event)) };
        if show::text(&format!("{text}\n"))? == Heard::No {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn words(event: &SandboxEvent) -> String {
    match event {
        SandboxEvent::Changed { sandbox } => {
            let name = sandbox.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let why = sandbox.error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
            format!("{}{name} is {}{why}", sandbox.id, list::state(sandbox))
        }
        SandboxEvent::Expiring { sandbox, reason, in_ms } => {
            let left = quantity::show_time(std::time::Duration::from_millis(*in_ms));
            format!("{sandbox} will be stopped in {left} ({})", reason.name())
        }
        SandboxEvent::Missed { count: 0 } => "events may have been missed; see: bellglass list".into(),
        SandboxEvent::Missed { count } => format!("{count} events were missed; see: bellglass list"),
        SandboxEvent::Heartbeat => "nothing happened".into(),
    }
}

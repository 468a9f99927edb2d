//! `bellglass logs`: prints the output that commands have written so far.

use std::process::ExitCode;
use std::time::Duration;

use api::exec::ExecInfo;
use api::{Error, ExecId, SandboxId};

use crate::connect::{ServerConnection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::{self, Output};
use crate::{quantity, show};

/// Arguments of `bellglass logs`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass logs build\n  bellglass logs build e4x1\n\n\
    The command does not consume output and does not wait for more. To follow the output of a running\n\
    command, use `bellglass attach`.")]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Id of the exec whose output to print. If omitted, the execs of the sandbox are listed.
    #[arg(value_name = "EXEC")]
    exec: Option<ExecId>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the output of an exec, or lists all execs in the sandbox.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let sandbox = &arguments.sandbox;
    let Some(id) = &arguments.exec else {
        let execs = answer(&client, client.execs(sandbox)).await?;
        list(&execs, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut output = Output::new(arguments.json);
    let followee = Followee { client: &client, sandbox, stdin: false, interrupt: Interrupt::Leaves };
    let end = match followee.follow(client.reader_of_now(sandbox, id), &mut output).await? {
        Followed::Ended(end) => Some(end),
        Followed::CaughtUp | Followed::Left => None,
    };
    if arguments.json {
        show::value(&output.report(sandbox, end.as_ref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(execs: &[ExecInfo], json: bool) -> Result<(), Error> {
    if json {
        return show::json(&execs);
    }
    if execs.is_empty() {
        show::note("no commands have run in this sandbox yet");
        return Ok(());
    }
    let rows: Vec<_> = execs
        .iter()
        .map(|exec| {
            vec![
                exec.id.to_string(),
                output::word(exec.outcome.as_ref()),
                quantity::show_time(Duration::from_millis(exec.duration_ms)),
                exec.processes.to_string(),
                quantity::show_bytes(exec.stdout_bytes),
                quantity::show_bytes(exec.stderr_bytes),
                exec.argv.clone(),
            ]
        })
        .collect();
    show::table(&["exec", "outcome", "ran", "processes", "stdout", "stderr", "command"], &rows)
}

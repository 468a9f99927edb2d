//! `belljar attach`: follows a command that was started before.

use std::process::ExitCode;

use api::{Error, ExecId, SandboxId, limits};

use crate::connect::{Connection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::show;

/// The exit code of whoever was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

/// What to follow.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  belljar attach build e4x1\n  belljar attach --from-end build e4x1\n\n\
    An interrupt leaves; the command goes on. What was read counts as taken: a command that waits for its reader goes on, \
    and another reader of it may find a gap. `belljar logs` only looks.")]
pub struct Arguments {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The exec.
    #[arg(value_name = "EXEC")]
    exec: ExecId,
    /// Leaves out what it has written so far.
    #[arg(long)]
    from_end: bool,
    /// Writes one JSON object with the outcome and the output when it has ended.
    #[arg(long)]
    json: bool,
}

/// Follows it; the exit code is the command's own.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let (sandbox, id) = (&arguments.sandbox, &arguments.exec);
    let mut exec = client.reader(sandbox, id).taking(limits::OUTPUT_BYTES);
    if arguments.from_end {
        let info = answer(&client, client.exec_info(sandbox, id)).await?;
        exec.seek(info.stdout_bytes, info.stderr_bytes, info.results_bytes);
    }
    let mut output = Output::new(arguments.json);
    let followee = Followee { client: &client, sandbox, stdin: false, interrupt: Interrupt::Leaves };
    Ok(match followee.follow(exec, &mut output).await? {
        Followed::Ended(end) => output.finish(sandbox, &end, None),
        Followed::CaughtUp | Followed::Left => {
            show::note(&format!("left; the command goes on, see: belljar attach {sandbox} {id}"));
            ExitCode::from(INTERRUPTED)
        }
    })
}

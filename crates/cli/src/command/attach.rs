//! `bellglass attach`: follows the output of a command that was started earlier.

use std::process::ExitCode;

use api::{Error, ExecId, SandboxId, limits};

use crate::connect::{ServerConnection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::show;

/// Exit code after an interrupt, as shells use it.
const INTERRUPTED: u8 = 130;

/// Arguments of `bellglass attach`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass attach build e4x1\n  bellglass attach --from-end build e4x1\n\n\
    An interrupt detaches; the command keeps running. With `--output block`, the command waits until its output\n\
    is read: attaching reads it, and it cannot be read again. Otherwise retained output can be read any number of times.\n\
    `bellglass logs` never releases a waiting command."
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Exec id, as printed by `bellglass exec --detach` and `bellglass logs`.
    #[arg(value_name = "EXEC")]
    exec: ExecId,
    /// Skip the output written so far.
    #[arg(long)]
    from_end: bool,
    /// Print one JSON object with the outcome and the output when the command has ended.
    #[arg(long)]
    json: bool,
}

/// Follows the command, and returns the command's exit code.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
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
            show::note(&format!(
                "detached; the command keeps running. To return: bellglass attach {sandbox} {id}"
            ));
            ExitCode::from(INTERRUPTED)
        }
    })
}

//! `belljar exec`: a command in a sandbox of a server.

use std::process::ExitCode;

use api::{Error, SandboxId};

use crate::connect::{Connection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::{request, show};

/// What to run, and where.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  belljar exec build -- make test\n  \
    tar c . | belljar exec --stdin build -- tar x\n  belljar exec --detach --timeout none build -- ./server\n\n\
    The exit code is the command's own; 125 is a failure of Belljar's. An interrupt cancels the command.")]
pub struct Arguments {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Starts the command, writes its id and leaves; see `belljar attach` and `belljar logs`.
    #[arg(long, short = 'd', conflicts_with = "stdin")]
    detach: bool,
    #[command(flatten)]
    exec: request::Exec,
}

/// Runs it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let spec = arguments.exec.spec(!arguments.detach)?;
    let sandbox = &arguments.sandbox;
    if arguments.detach {
        let info = answer(&client, client.start(sandbox, &spec)).await?;
        if arguments.exec.json {
            show::json(&info)?;
        } else {
            show::line(info.id.as_str());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let exec = answer(&client, client.exec(sandbox, &spec)).await?;
    let (id, mut output) = (exec.id().clone(), Output::new(arguments.exec.json));
    let followee = Followee { client: &client, sandbox, stdin: spec.stdin, interrupt: Interrupt::Cancels };
    Ok(match followee.follow(exec, &mut output).await? {
        Followed::Ended(end) => output.finish(sandbox, &end, None),
        Followed::CaughtUp | Followed::Left => {
            show::note(&format!("left before the end was known; see: belljar attach {sandbox} {id}"));
            ExitCode::from(crate::FAILED)
        }
    })
}

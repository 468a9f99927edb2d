//! `belljar exec`: a command in a sandbox of a server.

use std::process::ExitCode;
use std::time::Duration;

use api::artifact::{Artifacts, Keep};
use api::{Error, SandboxId};

use crate::connect::{Connection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::{request, show};

/// How long the files of a run are waited for, once it has ended.
const ARTIFACTS_WITHIN: Duration = Duration::from_secs(120);

/// What to run, and where.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  belljar exec build -- make test\n  \
    tar c . | belljar exec --stdin build -- tar x\n  belljar exec --detach --timeout none build -- ./server\n  \
    belljar exec --artifacts output build -- python report.py\n\n\
    The exit code is the command's own; 125 is a failure of Belljar's. An interrupt cancels the command.")]
pub struct Arguments {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Starts the command, writes its id and leaves; see `belljar attach` and `belljar logs`.
    #[arg(long, short = 'd', conflicts_with = "stdin")]
    detach: bool,
    /// A folder whose new and changed files the server keeps after the run; can be given more than once.
    #[arg(long = "artifacts", value_name = "DIRECTORY")]
    artifacts: Vec<String>,
    #[command(flatten)]
    exec: request::Exec,
}

/// Runs it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut spec = arguments.exec.spec(!arguments.detach)?;
    if !arguments.artifacts.is_empty() {
        spec.artifacts = Some(Keep::folders(arguments.artifacts));
        spec.check()?;
    }
    let sandbox = &arguments.sandbox;
    if arguments.detach {
        let info = answer(&client, client.start(sandbox, &spec)).await?;
        if arguments.exec.json {
            show::json(&info)?;
        } else {
            show::line(info.id.as_str())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let exec = answer(&client, client.exec(sandbox, &spec)).await?;
    let (id, mut output) = (exec.id().clone(), Output::new(arguments.exec.json));
    let followee = Followee { client: &client, sandbox, stdin: spec.stdin, interrupt: Interrupt::Cancels };
    Ok(match followee.follow(exec, &mut output).await? {
        Followed::Ended(end) => {
            let code = output.finish(sandbox, &end, None);
            if spec.artifacts.is_some() {
                let kept = answer(&client, client.artifacts(sandbox, &id, ARTIFACTS_WITHIN)).await?;
                tell(&kept);
            }
            code
        }
        Followed::CaughtUp | Followed::Left => {
            show::note(&format!("left before the end was known; see: belljar attach {sandbox} {id}"));
            ExitCode::from(crate::FAILED)
        }
    })
}

/// One line for each file that is kept, and for each that is not.
fn tell(kept: &Artifacts) {
    let (sandbox, exec) = (&kept.sandbox, &kept.exec);
    for item in &kept.items {
        let (name, number) = (&item.path, item.number);
        show::note(&format!(
            "kept {name} ({} bytes, {}): {sandbox}/{exec}/{number}",
            item.size_bytes, item.mime
        ));
    }
    for left in &kept.left_out {
        show::note(&format!("not kept {} ({} bytes): {}", left.path, left.size_bytes, left.why.name()));
    }
    if kept.more_left_out > 0 {
        show::note(&format!("not kept {} more", kept.more_left_out));
    }
    if kept.unseen {
        show::note("there are more files in the folders than are looked at");
    }
    match &kept.error {
        Some(error) => show::note(&format!("not all was kept: {}", error.message)),
        None if kept.pending => show::note("its files are still being read; ask the server for them later"),
        None => {}
    }
}

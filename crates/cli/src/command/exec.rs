//! `bellglass exec`: runs a command in a sandbox on a server.

use std::process::ExitCode;
use std::time::Duration;

use api::artifact::{Artifacts, Keep};
use api::{Error, SandboxId};

use crate::connect::{ServerConnection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::{request, show};

/// Maximum time to wait for an exec's artifacts after the exec has ended.
const ARTIFACTS_WITHIN: Duration = Duration::from_secs(120);

/// Arguments of `bellglass exec`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass exec build -- make test\n  \
    tar c . | bellglass exec --stdin build -- tar x\n  bellglass exec --detach --timeout none build -- ./server\n  \
    bellglass exec --artifacts output build -- python report.py\n\n\
    The exit code is the command's own, 124 if the command timed out, 128 + N if signal N killed it, or 125 if it could not\n\
    be started or Bellglass failed. An interrupt cancels the command.")]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Start the command, print its exec id and exit; see `bellglass attach` and `bellglass logs`. --timeout applies as well.
    #[arg(long, short = 'd', conflicts_with = "stdin")]
    detach: bool,
    /// Directory whose new and changed files the server stores after the run. Can be repeated.
    #[arg(long = "artifacts", value_name = "DIRECTORY")]
    artifacts: Vec<String>,
    #[command(flatten)]
    exec: request::ExecOptions,
}

/// Runs the command.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
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
            show::note(&format!(
                "detached before the outcome was known. To return: bellglass attach {sandbox} {id}"
            ));
            ExitCode::from(crate::FAILED)
        }
    })
}

/// Prints one line for each file that was kept and one line for each file that was left out.
fn tell(kept: &Artifacts) {
    let (sandbox, exec) = (&kept.sandbox, &kept.exec);
    for item in &kept.items {
        let (name, number) = (&item.path, item.number);
        show::note(&format!(
            "stored {name} ({} bytes, {}) as artifact {sandbox}/{exec}/{number}",
            item.size_bytes, item.mime
        ));
    }
    for left in &kept.left_out {
        show::note(&format!("did not store {} ({} bytes): {}", left.path, left.size_bytes, left.why.name()));
    }
    if kept.more_left_out > 0 {
        show::note(&format!("{} more files were not stored", kept.more_left_out));
    }
    if kept.unseen {
        show::note("the folders contain more files than the scan limit; some files were not checked");
    }
    match &kept.error {
        Some(error) => show::note(&format!("not all artifacts were stored: {}", error.message)),
        None if kept.pending => {
            show::note("the artifacts are still being collected; request them from the server later")
        }
        None => {}
    }
}

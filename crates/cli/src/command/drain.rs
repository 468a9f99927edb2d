//! `bellglass drain`: drains a machine before it is taken out of service.

use std::process::ExitCode;
use std::time::Duration;

use api::server::NodeStatus;
use api::{Error, limits};
use tokio::time::Instant;

use crate::connect::{ServerConnection, answer};
use crate::{quantity, show};

/// Polling interval. Sandboxes take minutes to end, so more frequent polling would be of no benefit.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time to wait: the maximum lifetime of a sandbox.
const WAIT_MAX: Duration = Duration::from_millis(limits::DEADLINE_MS_MAX);

/// Arguments of `bellglass drain`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass drain --wait && systemctl stop bellglass\n  bellglass drain --undo\n\n\
    Existing sandboxes keep running until they end; new sandboxes are refused. The command requires a key\n\
    with the role admin."
)]
pub struct Arguments {
    /// Accept new sandboxes again.
    #[arg(long, conflicts_with = "wait")]
    undo: bool,
    /// Wait until the last sandbox has ended.
    #[arg(long)]
    wait: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Starts or stops draining the machine, and prints the status of the machine.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut status = answer(&client, client.drain(!arguments.undo)).await?;
    let (began, mut said) = (Instant::now(), None);
    while arguments.wait && status.sandboxes > 0 {
        if began.elapsed() > WAIT_MAX {
            return Err(crate::platform(format!(
                "{} sandboxes are still running although the maximum lifetime has passed",
                status.sandboxes
            )));
        }
        if said.replace(status.sandboxes) != Some(status.sandboxes) {
            show::note(&format!("{} sandboxes remain", status.sandboxes));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        status = answer(&client, client.node()).await?;
        if !status.draining {
            return Err(Error::invalid(
                "draining was undone by another client",
                "Run `bellglass drain` again.",
            ));
        }
    }
    if arguments.json {
        show::json(&status)?
    } else {
        table(&status)?
    }
    Ok(ExitCode::SUCCESS)
}

fn table(status: &NodeStatus) -> Result<(), Error> {
    let row = vec![
        if status.draining { "draining".into() } else { "open".into() },
        format!("{} of {}", status.sandboxes, status.sandboxes_max),
        quantity::show_bytes(status.memory_free_bytes),
        quantity::show_bytes(status.disk_free_bytes),
        status.runtimes.join(" "),
    ];
    show::table(&["node", "sandboxes", "memory free", "disk free", "runtimes"], &[row])
}

//! `belljar drain`: empties a machine before it is taken out of service.

use std::process::ExitCode;
use std::time::Duration;

use api::server::NodeStatus;
use api::{Error, limits};
use tokio::time::Instant;

use crate::connect::{Connection, answer};
use crate::{quantity, show};

/// How often to look: sandboxes end in minutes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// No sandbox lives longer than this.
const WAIT_MAX: Duration = Duration::from_millis(limits::DEADLINE_MS_MAX);

/// What to do.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar drain --wait && systemctl stop belljar\n  belljar drain --undo\n\n\
    Sandboxes that live go on until they end; new ones are refused. Needs a key of the role admin."
)]
pub struct Arguments {
    /// Takes new sandboxes again.
    #[arg(long, conflicts_with = "wait")]
    undo: bool,
    /// Waits until the last sandbox has ended.
    #[arg(long)]
    wait: bool,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Does it, and says how the machine is doing.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let mut status = answer(&client, client.drain(!arguments.undo)).await?;
    let (began, mut said) = (Instant::now(), None);
    while arguments.wait && status.sandboxes > 0 {
        if began.elapsed() > WAIT_MAX {
            return Err(crate::platform(format!("{} sandboxes live longer than any may", status.sandboxes)));
        }
        if said.replace(status.sandboxes) != Some(status.sandboxes) {
            show::note(&format!("{} sandboxes are left", status.sandboxes));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        status = answer(&client, client.node()).await?;
        if !status.draining {
            return Err(Error::invalid(
                "somebody had the machine take new sandboxes again",
                "Drain it again.",
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

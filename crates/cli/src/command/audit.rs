//! `bellglass audit`: verifies that this machine's audit log was not altered.

use std::path::Path;
use std::process::ExitCode;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use clap::Subcommand;
use control::audit::{Verified, verify};

use crate::show;

/// Name of the audit log file in the data directory.
pub const LOG: &str = "audit.log";

/// Arguments of `bellglass audit`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass audit verify\n  bellglass audit verify --head 0c63a75b845e4f7d01107d852e4c2485c51a50aaaa94fc61995e71bbee983a2a\n\n\
    The command reads the data directory of this machine, so it needs the permissions of the server. The\n\
    server may be running."
)]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Check every line in all files of the log, and print the hash of the last line.
    ///
    /// The check reports the first line that was changed, removed or inserted, a missing file, and entries missing at the end.
    /// The exit code is 0 only if the log is intact.
    Verify {
        /// Hash printed by an earlier check. The check fails unless the log still contains the line with this hash. Store the
        /// hash on another machine.
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// Accept that the oldest files were moved to an archive.
        #[arg(long)]
        archived: bool,
        /// Print JSON instead of a sentence.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `bellglass audit`.
pub fn run(data: &Path, arguments: &Arguments) -> Result<ExitCode, Error> {
    let Act::Verify { head, archived, json } = &arguments.act;
    let verified = verify(&data.join(LOG), *archived, head.as_deref()).map_err(|damaged| Error {
        code: ErrorCode::Conflict,
        message: damaged.to_string(),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Find out who had access to the data directory, and compare the log with a copy from another machine.".into(),
    })?;
    for cut in &verified.cuts {
        show::note(&format!("entry {cut} records that earlier entries are missing"));
    }
    let Verified { entries, begins, head, .. } = &verified;
    if *json {
        show::json(
            &serde_json::json!({ "entries": entries, "begins": begins, "head": head, "cuts": verified.cuts }),
        )?;
    } else {
        show::line(&format!(
            "the audit log is intact: {entries} entries starting at number {begins}, head {head}"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

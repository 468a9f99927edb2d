//! The one executable of Belljar: every role is a subcommand.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | `belljar run`: one command in one sandbox, in this process |
//! | [`doctor`] | `belljar doctor`: what this machine can do, proved by doing it |
//! | [`advisories`] | which versions lack which known fixes |
//! | [`template`] | `belljar template`: what sandboxes are made from |
//! | [`quantity`] | sizes and times as people write them |
//! | [`show`] | tables and lines for people, escaped |
//!
//! Standard output carries what was asked for; everything said about it goes to standard error.

mod advisories;
mod doctor;
mod quantity;
mod run;
mod show;
mod template;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The exit code for a failure of Belljar's own, as `docker run` and `env` have it.
const FAILED: u8 = 125;

/// Runs code that nobody has read yet, sealed, on machines you own.
#[derive(Parser)]
#[command(name = "belljar", version, max_term_width = 100)]
struct Arguments {
    /// Where sandboxes, layers and templates are kept.
    #[arg(
        long,
        global = true,
        env = "BELLJAR_DATA",
        default_value = "/var/lib/belljar",
        value_name = "DIRECTORY"
    )]
    data: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one command in a fresh sandbox and ends the sandbox.
    Run(run::Arguments),
    /// Shows what this machine can do by running a real sandbox in every tier it has.
    Doctor(doctor::Arguments),
    /// Builds, imports, lists and removes what sandboxes are made from.
    Template(template::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&platform(format!("cannot start: {error}"))),
    };
    let done = runtime.block_on(async {
        match arguments.command {
            Command::Run(run) => run::run(&arguments.data, run).await,
            Command::Doctor(doctor) => doctor::run(&arguments.data, doctor).await,
            Command::Template(template) => template::run(&arguments.data, template).await,
        }
    });
    // A task that waits for a process that never ends must not keep us.
    runtime.shutdown_background();
    done.unwrap_or_else(|error| failed(&error))
}

fn failed(error: &api::Error) -> ExitCode {
    show::error(error);
    ExitCode::from(FAILED)
}

fn platform(message: String) -> api::Error {
    api::Error {
        code: api::ErrorCode::Platform,
        message,
        layer: api::Layer::Platform,
        ran: api::Ran::No,
        retry: api::Retry::Unknown,
        fix: "Mend what the message names, then try again.".into(),
    }
}

//! `belljar completions` and `belljar man`: what shells and `man` want to know of this executable.

use std::path::PathBuf;
use std::process::ExitCode;

use api::Error;
use clap::CommandFactory as _;
use clap_complete::Shell;

/// For which shell.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  belljar completions bash > /etc/bash_completion.d/belljar\n  \
    belljar completions fish > ~/.config/fish/completions/belljar.fish")]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Where to.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  belljar man /usr/local/share/man/man1")]
pub struct Man {
    /// The directory that the pages are written to.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes a script that completes our words in a shell.
pub fn completions(arguments: &Completions) -> ExitCode {
    clap_complete::generate(
        arguments.shell,
        &mut crate::Arguments::command(),
        "belljar",
        &mut std::io::stdout(),
    );
    ExitCode::SUCCESS
}

/// Writes one page for each command.
pub fn man(arguments: &Man) -> Result<ExitCode, Error> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(crate::Arguments::command(), directory))
        .map_err(|error| {
            Error::invalid(
                format!("cannot write pages to {}: {error}", directory.display()),
                "Name a directory that you may write to.",
            )
        })?;
    Ok(ExitCode::SUCCESS)
}

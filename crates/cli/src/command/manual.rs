//! `bellglass completions` and `bellglass man`: shell completions and man pages for this executable.

use std::path::PathBuf;
use std::process::ExitCode;

use api::Error;
use clap::CommandFactory as _;
use clap_complete::Shell;

/// Arguments of `bellglass completions`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass completions bash > /etc/bash_completion.d/bellglass\n  \
    bellglass completions fish > ~/.config/fish/completions/bellglass.fish")]
pub struct Completions {
    /// Shell to print the script for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `bellglass man`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  bellglass man /usr/local/share/man/man1")]
pub struct Man {
    /// Directory to write the pages to.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Prints a completion script for a shell.
pub fn completions(arguments: &Completions) -> ExitCode {
    clap_complete::generate(
        arguments.shell,
        &mut crate::Arguments::command(),
        "bellglass",
        &mut std::io::stdout(),
    );
    ExitCode::SUCCESS
}

/// Writes one man page for each command.
pub fn man(arguments: &Man) -> Result<ExitCode, Error> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(crate::Arguments::command(), directory))
        .map_err(|error| {
            Error::invalid(
                format!("cannot write manual pages to {}: {error}", directory.display()),
                "Use a directory that you can write to.",
            )
        })?;
    Ok(ExitCode::SUCCESS)
}

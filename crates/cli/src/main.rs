//! The single executable of Bellglass. Every role is a subcommand.
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | the commands |
//! | [`configuration`], [`telemetry`] | a server's configuration, and its log and traces |
//! | [`advisories`] | known vulnerabilities, and the versions that fix them |
//! | [`results`] | results of code: text, images, notes |
//! | [`help`] | `bellglass --help`: the commands, grouped by task |
//! | [`connect`] | the connection to the configured server |
//! | [`request`] | command-line options for sandboxes and commands, and the requests made from them |
//! | [`follow`] | following the output of an exec on a server |
//! | [`fleet`] | sending the same request for many sandboxes |
//! | [`output`] | output and outcome of a command |
//! | [`quantity`] | sizes and durations in arguments and output |
//! | [`show`] | tables, lines and JSON, escaped for terminals |
//!
//! Standard output contains only the requested output. Notes and errors are written to standard error.

mod advisories;
mod command;
mod configuration;
mod connect;
mod fleet;
mod follow;
mod help;
mod output;
mod quantity;
mod request;
mod results;
mod show;
mod telemetry;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use command::Command;

/// Allocator that returns free memory to the system within seconds, whichever thread freed it. After a burst
/// of requests, a server's memory usage therefore falls back to its previous level (decision 35).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for failures of Bellglass itself, as with `docker run` and `env`.
const FAILED: u8 = 125;

/// Run untrusted code in sealed sandboxes on machines you own.
#[derive(Parser)]
#[command(
    name = "bellglass",
    version,
    max_term_width = 100,
    after_help = "Run 'bellglass help COMMAND' for the options and examples of a command."
)]
struct Arguments {
    /// Directory for sandboxes, layers and templates.
    /// [default: /var/lib/bellglass for root, ~/.local/share/bellglass for other users]
    #[arg(long, global = true, env = "BELLGLASS_DATA", value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Backends to try, in order, separated by commas: daytona, oci, podman, docker, or engine (podman, then docker).
    ///
    /// Default: OCI runtimes (if run as root), Podman and Docker, in this order; the first working backend is used. If
    /// DAYTONA_API_URL and DAYTONA_API_KEY are set, Daytona is tried first.
    #[arg(
        long,
        global = true,
        env = "BELLGLASS_BACKENDS",
        value_delimiter = ',',
        value_name = "NAMES",
        hide_short_help = true
    )]
    backends: Vec<node::backend::Backend>,
    #[command(flatten)]
    connection: connect::ServerConnection,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = help::parse();
    // A server uses all cores. All other commands are just as fast with one thread.
    let mut runtime = if matches!(arguments.command, Command::Serve(_)) {
        runtime::keep_few_pools();
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&platform(format!("cannot start the async runtime: {error}"))),
    };
    let done = runtime.block_on(dispatch(arguments));
    // Do not wait for blocking tasks, because such a task may wait for a process that never ends.
    runtime.shutdown_background();
    done.unwrap_or_else(|error| failed(&error))
}

async fn dispatch(arguments: Arguments) -> Result<ExitCode, api::Error> {
    let Arguments { data, backends, connection, command } = arguments;
    let place = LocalOptions { data: data.unwrap_or_else(own_data), backends };
    command::dispatch(command, &place, &connection).await
}

/// Options that apply to this machine.
struct LocalOptions {
    /// Data directory.
    data: PathBuf,
    /// Backends to try, in this order. Empty to use the default order.
    backends: Vec<node::backend::Backend>,
}

/// Returns the default data directory: a system directory for root, and a directory below the home directory
/// for other users.
fn own_data() -> PathBuf {
    let under = |name: &str, below: &str| {
        let found = std::env::var_os(name).filter(|path| !path.is_empty());
        found.map(|path| PathBuf::from(path).join(below))
    };
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/bellglass");
    }
    under("XDG_DATA_HOME", "bellglass")
        .or_else(|| under("HOME", ".local/share/bellglass"))
        .unwrap_or_else(|| PathBuf::from("/var/lib/bellglass"))
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
        fix: "Fix the problem named in the message, then try again.".into(),
    }
}

/// Waits for a signal that ends this command.
async fn wait_for_end() -> Result<(), api::Error> {
    signalled()?.await;
    Ok(())
}

/// Returns a future that completes after a signal that should end this command. From this call on, these
/// signals no longer end the process directly.
fn signalled() -> Result<impl Future<Output = ()>, api::Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch =
        |kind| signal(kind).map_err(|error| platform(format!("cannot install a signal handler: {error}")));
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let mut hang_up = watch(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

/// Returns the error for an interrupted command.
fn given_up() -> api::Error {
    api::Error {
        code: api::ErrorCode::Platform,
        message: "interrupted".into(),
        layer: api::Layer::Platform,
        ran: api::Ran::Unknown,
        retry: api::Retry::Safe,
        fix: "Partial results were removed, and completed results were kept. Run the command again to continue.".into(),
    }
}

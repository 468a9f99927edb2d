//! The one executable of Bellglass: every role is a subcommand.
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | the commands |
//! | [`configuration`], [`telemetry`] | the configuration of a server, its log and its traces |
//! | [`advisories`] | which versions lack which known fixes |
//! | [`results`] | what code showed, as a person sees it |
//! | [`help`] | `bellglass --help`: the commands, grouped by task |
//! | [`connect`] | which server is asked, and with which key |
//! | [`request`] | a sandbox and a command as they are asked for |
//! | [`follow`] | passing on the output of an exec on a server |
//! | [`fleet`] | one question about many sandboxes |
//! | [`output`] | where output goes, and what an exit code cannot say |
//! | [`quantity`] | sizes and times as people write them |
//! | [`show`] | tables and lines for people, escaped |
//!
//! Standard output carries what was asked for; everything said about it goes to standard error.

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

/// Returns free memory to the system within seconds, from every thread: a server that was flooded is as small afterwards as before
/// (decision 35).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The exit code for a failure of Bellglass's own, as `docker run` and `env` have it.
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
    connection: connect::Connection,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = help::parse();
    // A server uses every core; whatever else there is to do is done as fast by one thread.
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
    // A task that waits for a process that never ends must not keep us.
    runtime.shutdown_background();
    done.unwrap_or_else(|error| failed(&error))
}

async fn dispatch(arguments: Arguments) -> Result<ExitCode, api::Error> {
    let Arguments { data, backends, connection, command } = arguments;
    let place = Place { data: data.unwrap_or_else(own_data), backends };
    command::dispatch(command, &place, &connection).await
}

/// This machine as the command line is told of it.
struct Place {
    /// Where things are kept.
    data: PathBuf,
    /// What isolates, in order; nothing for what is usual.
    backends: Vec<node::backend::Backend>,
}

/// Where things are kept unless it is said where: root's machine is everybody's, others have a home.
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

/// A future that is ready after a signal that ends this command. From now on the signals no longer end the process by themselves.
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

/// The error for what was interrupted.
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

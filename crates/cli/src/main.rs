//! The one executable of Bellglass: every role is a subcommand.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | `bellglass run`: one command in one sandbox, in this process or on a server |
//! | [`create`], [`list`], [`stop`], [`pause`] | sandboxes of a server |
//! | [`exec`], [`attach`], [`logs`] | commands in them |
//! | [`python`], [`repl`], [`context`] | code in them, once or line by line, and interpreters that stay |
//! | [`results`] | what code showed, as a person sees it |
//! | [`forward`] | ports of a sandbox as ports of this machine |
//! | [`shell`] | a terminal in one |
//! | [`cp`], [`ls`], [`cat`], [`edit`], [`watch`] | files in them |
//! | [`events`], [`top`] | how they are doing, live |
//! | [`trace`] | where the time went |
//! | [`session`], [`tools`], [`mcp`] | sessions of agents, and the tools that they offer |
//! | [`e2b`] | programs that use E2B's SDKs |
//! | [`secret`] | values that code in sandboxes can use and never sees |
//! | [`key`], [`project`], [`drain`], [`audit`] | what an operator does |
//! | [`serve`], [`configuration`], [`telemetry`] | `bellglass serve`: this machine as a service, and what it tells of itself |
//! | [`doctor`] | `bellglass doctor`: what this machine can do, proved by doing it |
//! | [`sandbox`] | `bellglass build-sandbox`, `sandbox-status` and `sandbox-test`: the backend of this machine |
//! | [`advisories`] | which versions lack which known fixes |
//! | [`template`] | `bellglass template`: what sandboxes are made from |
//! | [`manual`] | `bellglass completions` and `bellglass man` |
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
mod attach;
mod audit;
mod cat;
mod configuration;
mod connect;
mod context;
mod cp;
mod create;
mod doctor;
mod drain;
mod e2b;
mod edit;
mod events;
mod exec;
mod fleet;
mod follow;
mod forward;
mod help;
mod key;
mod list;
mod logs;
mod ls;
mod manual;
mod mcp;
mod output;
mod packages;
mod pause;
mod policy;
mod project;
mod python;
mod quantity;
mod repl;
mod request;
mod results;
mod run;
mod sandbox;
mod secret;
mod serve;
mod session;
mod shell;
mod show;
mod stop;
mod telemetry;
mod template;
mod tools;
mod top;
mod trace;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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

#[derive(Subcommand)]
enum Command {
    /// Run one command in a new sandbox, then stop the sandbox.
    ///
    /// The command runs on the configured server, or on this machine if no server is configured.
    Run(run::Arguments),
    /// Run the server: an HTTP API to this machine's sandboxes for clients with a key.
    Serve(serve::Arguments),
    /// Create a sandbox and print its id.
    Create(create::Arguments),
    /// List sandboxes.
    List(list::Arguments),
    /// Run a command in a sandbox.
    Exec(exec::Arguments),
    /// Run Python or other code in a sandbox: a file, one line, or an interactive prompt.
    Python(python::Arguments),
    /// Create, list and remove contexts: interpreters that keep variables between runs.
    Context(context::Arguments),
    /// Open a terminal in a sandbox.
    Shell(shell::Arguments),
    /// Follow the output of a command that was started earlier.
    Attach(attach::Arguments),
    /// Print the output of a command so far, or list the commands of a sandbox.
    Logs(logs::Arguments),
    /// Forward ports of a sandbox to this machine, or print their URLs.
    Forward(forward::Arguments),
    /// Copy files between this machine and a sandbox.
    Cp(cp::Arguments),
    /// List files in a sandbox.
    Ls(ls::Arguments),
    /// Print the contents of files in a sandbox.
    Cat(cat::Arguments),
    /// Edit a file in a sandbox: replace exact text, or open the file in an editor.
    Edit(edit::Arguments),
    /// Show changes to files in a sandbox as they happen.
    Watch(watch::Arguments),
    /// Show or change the egress policy of a sandbox: which network access it has.
    Policy(policy::Arguments),
    /// Store secrets that code in sandboxes can use but never sees.
    Secret(secret::Arguments),
    /// List the packages that a sandbox downloaded.
    Packages(packages::Arguments),
    /// Stop sandboxes and wait until they are completely removed.
    Stop(stop::Arguments),
    /// Suspend sandboxes and keep their processes and memory.
    Pause(pause::Pause),
    /// Let paused sandboxes run again.
    Resume(pause::Resume),
    /// Show the resource usage of sandboxes.
    Top(top::Arguments),
    /// Show lifecycle events of sandboxes as they happen.
    Events(events::Arguments),
    /// Show the time that each step of a create, exec or stop request took.
    Trace(trace::Arguments),
    /// Create agent sessions, call their tools, read their files, and end them.
    Session(session::Arguments),
    /// Serve a tool set to one MCP client over standard input and output.
    Mcp(mcp::Arguments),
    /// Print a tool set in the format of an LLM API, or print the instructions for the model.
    Tools(tools::Arguments),
    /// Print environment variables that point E2B's SDKs at this server.
    E2b(e2b::Arguments),
    /// Create, list, rotate and revoke API keys.
    Key(key::Arguments),
    /// Create, change and list projects and their quotas.
    Project(project::Arguments),
    /// Stop accepting new sandboxes on the server.
    Drain(drain::Arguments),
    /// Verify the audit log of this machine.
    Audit(audit::Arguments),
    /// Test this machine by running a real sandbox in every supported isolation tier.
    Doctor(doctor::Arguments),
    /// Prepare a template on the backend in use, and test a sandbox created from it.
    BuildSandbox(sandbox::Build),
    /// Show the backend in use, why the other backends are not used, and which templates are ready.
    #[command(visible_alias = "status")]
    SandboxStatus(sandbox::Status),
    /// Start a sandbox and check that code runs and that isolation and limits work.
    SandboxTest(sandbox::Test),
    /// Build, import, export, list and remove templates to create sandboxes from.
    Template(template::Arguments),
    /// Print a shell script that completes commands and options.
    Completions(manual::Completions),
    /// Write man pages to a directory.
    Man(manual::Man),
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
    let data = &place.data;
    match command {
        Command::Run(run) => run::run(&place, &connection, run).await,
        Command::Serve(serve) => serve::run(&place, &serve).await,
        Command::Create(create) => create::run(&connection, create).await,
        Command::List(list) => list::run(&connection, list).await,
        Command::Exec(exec) => exec::run(&connection, exec).await,
        Command::Python(python) => python::run(&connection, python).await,
        Command::Context(context) => context::run(&connection, context).await,
        Command::Shell(shell) => shell::run(&connection, shell).await,
        Command::Attach(attach) => attach::run(&connection, attach).await,
        Command::Logs(logs) => logs::run(&connection, logs).await,
        Command::Forward(forward) => forward::run(&connection, forward).await,
        Command::Cp(cp) => cp::run(&connection, cp).await,
        Command::Ls(ls) => ls::run(&connection, ls).await,
        Command::Cat(cat) => cat::run(&connection, cat).await,
        Command::Edit(edit) => edit::run(&connection, edit).await,
        Command::Watch(watch) => watch::run(&connection, watch).await,
        Command::Policy(policy) => policy::run(&connection, policy).await,
        Command::Secret(secret) => secret::run(&connection, secret).await,
        Command::Packages(packages) => packages::run(&connection, packages).await,
        Command::Stop(stop) => stop::run(&connection, stop).await,
        Command::Pause(pause) => pause::pause(&connection, pause).await,
        Command::Resume(resume) => pause::resume(&connection, resume).await,
        Command::Top(top) => top::run(&connection, top).await,
        Command::Events(events) => events::run(&connection, events).await,
        Command::Trace(trace) => trace::run(&connection, trace).await,
        Command::Session(session) => session::run(&connection, session).await,
        Command::Mcp(mcp) => mcp::run(&connection, &mcp).await,
        Command::Tools(tools) => tools::run(&tools),
        Command::E2b(e2b) => e2b::run(&connection, e2b).await,
        Command::Key(key) => key::run(&connection, key).await,
        Command::Project(project) => project::run(&connection, project).await,
        Command::Drain(drain) => drain::run(&connection, drain).await,
        Command::Audit(audit) => audit::run(data, &audit),
        Command::BuildSandbox(build) => sandbox::build(&place, build).await,
        Command::SandboxStatus(status) => sandbox::status(&place, status).await,
        Command::SandboxTest(test) => sandbox::test(&place, test).await,
        Command::Doctor(doctor) => doctor::run(data, doctor).await,
        Command::Template(template) => template::run(&place, template).await,
        Command::Completions(completions) => Ok(manual::completions(&completions)),
        Command::Man(man) => manual::man(&man),
    }
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

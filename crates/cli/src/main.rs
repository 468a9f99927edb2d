//! The one executable of Belljar: every role is a subcommand.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | `belljar run`: one command in one sandbox, in this process or on a server |
//! | [`create`], [`list`], [`stop`] | sandboxes of a server |
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
//! | [`key`], [`project`], [`drain`] | what an operator does |
//! | [`serve`], [`configuration`], [`telemetry`] | `belljar serve`: this machine as a service, and what it tells of itself |
//! | [`doctor`] | `belljar doctor`: what this machine can do, proved by doing it |
//! | [`sandbox`] | `belljar build-sandbox`, `sandbox-status` and `sandbox-test`: the backend of this machine |
//! | [`advisories`] | which versions lack which known fixes |
//! | [`template`] | `belljar template`: what sandboxes are made from |
//! | [`manual`] | `belljar completions` and `belljar man` |
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
mod key;
mod list;
mod logs;
mod ls;
mod manual;
mod mcp;
mod output;
mod packages;
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

/// The exit code for a failure of Belljar's own, as `docker run` and `env` have it.
const FAILED: u8 = 125;

/// Runs code that nobody has read yet, sealed, on machines you own.
#[derive(Parser)]
#[command(name = "belljar", version, max_term_width = 100)]
struct Arguments {
    /// Where sandboxes, layers and templates are kept.
    /// [default: /var/lib/belljar for root, ~/.local/share/belljar for others]
    #[arg(long, global = true, env = "BELLJAR_DATA", value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// What isolates, the first that works first, with commas between: daytona, oci, podman, docker, or engine for the last two in that
    /// order. Without it: OCI runtimes for root, else Podman, else Docker; and before them Daytona, where DAYTONA_API_URL and
    /// DAYTONA_API_KEY are set.
    #[arg(
        long,
        global = true,
        env = "BELLJAR_BACKENDS",
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
    /// Runs one command in a fresh sandbox and ends the sandbox: on the server if one is configured, else on this machine.
    Run(run::Arguments),
    /// Serves sandboxes of this machine to whoever has a key.
    Serve(serve::Arguments),
    /// Makes a sandbox and writes its id.
    Create(create::Arguments),
    /// Lists sandboxes.
    List(list::Arguments),
    /// Runs a command in a sandbox.
    Exec(exec::Arguments),
    /// Runs code in a sandbox: a file, a line, or what is typed.
    Python(python::Arguments),
    /// Makes, lists and ends interpreters that stay in a sandbox.
    Context(context::Arguments),
    /// Opens a terminal in a sandbox.
    Shell(shell::Arguments),
    /// Follows a command that was started before.
    Attach(attach::Arguments),
    /// Writes what a command has written so far, or lists the commands of a sandbox.
    Logs(logs::Arguments),
    /// Makes ports of a sandbox ports of this machine, or shows their addresses.
    Forward(forward::Arguments),
    /// Copies files between this machine and a sandbox.
    Cp(cp::Arguments),
    /// Lists files of a sandbox.
    Ls(ls::Arguments),
    /// Writes the bytes of files of a sandbox.
    Cat(cat::Arguments),
    /// Changes a file of a sandbox, by an exact text or in an editor.
    Edit(edit::Arguments),
    /// Shows what happens to files of a sandbox.
    Watch(watch::Arguments),
    /// Shows what may leave a sandbox, or changes it.
    Policy(policy::Arguments),
    /// Keeps values that code in sandboxes can use and never sees.
    Secret(secret::Arguments),
    /// Shows which packages a sandbox was given.
    Packages(packages::Arguments),
    /// Ends sandboxes and waits until nothing of them is left.
    Stop(stop::Arguments),
    /// Shows what the sandboxes use.
    Top(top::Arguments),
    /// Shows what happens to the sandboxes.
    Events(events::Arguments),
    /// Shows where the time of a create, an exec or a stop went, step by step.
    Trace(trace::Arguments),
    /// Makes sessions of agents, calls their tools, shows what they keep, ends them.
    Session(session::Arguments),
    /// Offers a tool set to one MCP client, on standard input and output.
    Mcp(mcp::Arguments),
    /// Shows the tools of a tool set as LLM interfaces take them, or its instructions for a model.
    Tools(tools::Arguments),
    /// Has programs that use E2B's SDKs use a server of yours.
    E2b(e2b::Arguments),
    /// Makes, lists and revokes keys.
    Key(key::Arguments),
    /// Makes, changes and lists projects.
    Project(project::Arguments),
    /// Has a machine take no new sandboxes.
    Drain(drain::Arguments),
    /// Shows what this machine can do by running a real sandbox in every tier it has.
    Doctor(doctor::Arguments),
    /// Makes what sandboxes of a template need on the backend that is used here, and tries it out.
    BuildSandbox(sandbox::Build),
    /// Shows which backend is used here, why not the others, and which templates are ready.
    #[command(visible_alias = "status")]
    SandboxStatus(sandbox::Status),
    /// Tries a sandbox out: that code runs in it, and that it is sealed and limited as promised.
    SandboxTest(sandbox::Test),
    /// Builds, imports, lists and removes what sandboxes are made from.
    Template(template::Arguments),
    /// Writes a script that completes commands and options in a shell.
    Completions(manual::Completions),
    /// Writes pages for `man`.
    Man(manual::Man),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A server uses every core; whatever else there is to do is done as fast by one thread.
    let mut runtime = if matches!(arguments.command, Command::Serve(_)) {
        runtime::keep_few_pools();
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&platform(format!("cannot start: {error}"))),
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
        return PathBuf::from("/var/lib/belljar");
    }
    under("XDG_DATA_HOME", "belljar")
        .or_else(|| under("HOME", ".local/share/belljar"))
        .unwrap_or_else(|| PathBuf::from("/var/lib/belljar"))
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

/// Waits until somebody wants this command to end.
async fn wait_for_end() -> Result<(), api::Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch = |kind| signal(kind).map_err(|error| platform(format!("cannot watch for signals: {error}")));
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// The error for what was interrupted.
fn given_up() -> api::Error {
    api::Error {
        code: api::ErrorCode::Platform,
        message: "it was interrupted".into(),
        layer: api::Layer::Platform,
        ran: api::Ran::Unknown,
        retry: api::Retry::Safe,
        fix: "What was half-made is gone; what was whole is kept. Run the command again to go on.".into(),
    }
}

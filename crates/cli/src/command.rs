//! The commands of `bellglass` and their arguments.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | `bellglass run`: one command in a new sandbox, on this machine or on a server |
//! | [`create`], [`list`], [`stop`], [`pause`] | sandboxes on a server |
//! | [`exec`], [`attach`], [`logs`] | commands in sandboxes |
//! | [`python`], [`repl`], [`context`] | code in sandboxes, once or interactively, and contexts |
//! | [`forward`] | forwarding ports of a sandbox to this machine |
//! | [`shell`] | a terminal in a sandbox |
//! | [`cp`], [`ls`], [`cat`], [`edit`], [`watch`] | files in sandboxes |
//! | [`events`], [`top`] | live events and resource usage |
//! | [`trace`] | durations of the steps of requests |
//! | [`session`], [`tools`], [`mcp`] | agent sessions, and the tools that they offer |
//! | [`e2b`] | settings for programs that use E2B's SDKs |
//! | [`secret`] | secrets that code in sandboxes can use but cannot read |
//! | [`key`], [`project`], [`drain`], [`audit`] | administration |
//! | [`serve`] | `bellglass serve`: the server |
//! | [`doctor`] | `bellglass doctor`: a test of this machine with real sandboxes |
//! | [`sandbox`] | `bellglass build-sandbox`, `sandbox-status` and `sandbox-test`: the backend in use |
//! | [`template`] | `bellglass template`: templates on this machine |
//! | [`manual`] | `bellglass completions` and `bellglass man` |

mod attach;
mod audit;
mod cat;
mod context;
mod cp;
mod create;
mod doctor;
mod drain;
mod e2b;
mod edit;
mod events;
mod exec;
mod forward;
mod key;
mod list;
mod logs;
mod ls;
mod manual;
mod mcp;
mod packages;
mod pause;
mod policy;
mod project;
mod python;
mod repl;
mod run;
mod sandbox;
mod secret;
mod serve;
mod session;
mod shell;
mod stop;
mod template;
mod tools;
mod top;
mod trace;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

use crate::LocalOptions;
use crate::connect::ServerConnection;

#[derive(Subcommand)]
pub enum Command {
    /// Run one command in a new sandbox, then stop the sandbox.
    ///
    /// The command runs on the configured server, or on this machine if no server is configured.
    Run(run::Arguments),
    /// Run the server: an HTTP API to this machine's sandboxes for clients with a key.
    Serve(serve::Arguments),
    /// Create a sandbox and print its id.
    Create(create::Arguments),
    /// List sandboxes.
    #[command(visible_alias = "ps")]
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
    ///
    /// Processes are killed without a grace period. Files that a run was asked to keep are collected first.
    #[command(visible_aliases = ["rm", "kill"])]
    Stop(stop::Arguments),
    /// Suspend sandboxes and keep their processes and memory.
    Pause(pause::PauseArguments),
    /// Let paused sandboxes run again.
    Resume(pause::ResumeArguments),
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

/// Runs a command.
///
/// # Errors
/// Returns an error if the command fails. The error can be shown to the user as is.
pub async fn dispatch(
    command: Command,
    place: &LocalOptions,
    connection: &ServerConnection,
) -> Result<ExitCode, api::Error> {
    let data = &place.data;
    match command {
        Command::Run(run) => run::run(place, connection, run).await,
        Command::Serve(serve) => serve::run(place, &serve).await,
        Command::Create(create) => create::run(connection, create).await,
        Command::List(list) => list::run(connection, list).await,
        Command::Exec(exec) => exec::run(connection, exec).await,
        Command::Python(python) => python::run(connection, python).await,
        Command::Context(context) => context::run(connection, context).await,
        Command::Shell(shell) => shell::run(connection, shell).await,
        Command::Attach(attach) => attach::run(connection, attach).await,
        Command::Logs(logs) => logs::run(connection, logs).await,
        Command::Forward(forward) => forward::run(connection, forward).await,
        Command::Cp(cp) => cp::run(connection, cp).await,
        Command::Ls(ls) => ls::run(connection, ls).await,
        Command::Cat(cat) => cat::run(connection, cat).await,
        Command::Edit(edit) => edit::run(connection, edit).await,
        Command::Watch(watch) => watch::run(connection, watch).await,
        Command::Policy(policy) => policy::run(connection, policy).await,
        Command::Secret(secret) => secret::run(connection, secret).await,
        Command::Packages(packages) => packages::run(connection, packages).await,
        Command::Stop(stop) => stop::run(connection, stop).await,
        Command::Pause(pause) => pause::pause(connection, pause).await,
        Command::Resume(resume) => pause::resume(connection, resume).await,
        Command::Top(top) => top::run(connection, top).await,
        Command::Events(events) => events::run(connection, events).await,
        Command::Trace(trace) => trace::run(connection, trace).await,
        Command::Session(session) => session::run(connection, session).await,
        Command::Mcp(mcp) => mcp::run(connection, &mcp).await,
        Command::Tools(tools) => tools::run(&tools),
        Command::E2b(e2b) => e2b::run(connection, e2b).await,
        Command::Key(key) => key::run(connection, key).await,
        Command::Project(project) => project::run(connection, project).await,
        Command::Drain(drain) => drain::run(connection, drain).await,
        Command::Audit(audit) => audit::run(data, &audit),
        Command::BuildSandbox(build) => sandbox::build(place, build).await,
        Command::SandboxStatus(status) => sandbox::status(place, status).await,
        Command::SandboxTest(test) => sandbox::test(place, test).await,
        Command::Doctor(doctor) => doctor::run(data, doctor).await,
        Command::Template(template) => template::run(place, template).await,
        Command::Completions(completions) => Ok(manual::completions(&completions)),
        Command::Man(man) => manual::man(&man),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_names_that_people_type_from_habit_are_aliases() {
        let parsed = |words: &[&str]| crate::Arguments::try_parse_from([&["bellglass"], words].concat());
        for words in [&["ps"][..], &["ps", "--all"]] {
            assert!(matches!(parsed(words).unwrap().command, Command::List(_)), "{words:?}");
        }
        for words in [&["rm", "a", "b"][..], &["kill", "a"]] {
            assert!(matches!(parsed(words).unwrap().command, Command::Stop(_)), "{words:?}");
        }
    }
}

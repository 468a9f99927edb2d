//! `bellglass context`: manages the contexts of a sandbox. To run code in a context, use `bellglass python
//! --context`.

use std::process::ExitCode;

use api::code::{ContextInfo, ContextSpec, ContextState, Loss, Variable};
use api::{ContextId, Error, SandboxId};

use crate::command::python::LanguageName;
use crate::connect::{ServerConnection, answer};
use crate::{quantity, show};

/// Arguments of `bellglass context`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass context create build\n  bellglass python build --context c1 -c 'x = 1'\n  \
    bellglass context variables build c1\n  bellglass context interrupt build c1\n  bellglass context remove build c1\n\n\
    A context keeps its variables from one cell to the next, until it is removed or its sandbox ends."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: ContextCommand,
}

#[derive(clap::Subcommand)]
enum ContextCommand {
    /// Create a context and print its id.
    Create {
        /// Sandbox, by id or name.
        #[arg(value_name = "SANDBOX")]
        sandbox: SandboxId,
        /// Language of the cells: python or bash.
        #[arg(long, value_enum, default_value = "python", value_name = "LANGUAGE")]
        language: LanguageName,
        /// Working directory of the cells.
        #[arg(long, value_name = "DIRECTORY")]
        cwd: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the contexts of a sandbox.
    List {
        /// Sandbox, by id or name.
        #[arg(value_name = "SANDBOX")]
        sandbox: SandboxId,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Restart a context. Its variables are lost.
    Restart(One),
    /// Interrupt the running cell of a context. Variables survive unless the cell ignores the interrupt.
    Interrupt(One),
    /// Remove a context and stop the cell that runs in it.
    Remove(One),
    /// List the variables of a context and their values.
    Variables(One),
}

/// Context to act on.
#[derive(clap::Args)]
struct One {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Context id.
    #[arg(value_name = "CONTEXT")]
    context: ContextId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `bellglass context`.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        ContextCommand::Create { sandbox, language, cwd, json } => {
            let spec = ContextSpec { language: language.of_server(), cwd, ..ContextSpec::default() };
            let info = answer(&client, client.create_context(&sandbox, &spec)).await?;
            if json { show::json(&info)? } else { show::line(info.id.as_str())? }
        }
        ContextCommand::List { sandbox, json } => {
            show_contexts(&answer(&client, client.contexts(&sandbox)).await?, json)?;
        }
        ContextCommand::Restart(one) => {
            let info = answer(&client, client.restart_context(&one.sandbox, &one.context)).await?;
            tell(&info, one.json)?;
        }
        ContextCommand::Interrupt(one) => {
            let info = answer(&client, client.interrupt_context(&one.sandbox, &one.context)).await?;
            tell(&info, one.json)?;
        }
        ContextCommand::Remove(one) => {
            answer(&client, client.remove_context(&one.sandbox, &one.context)).await?;
            if one.json {
                show::json(&one.context)?;
            } else {
                show::note(&format!("removed {}", one.context));
            }
        }
        ContextCommand::Variables(one) => {
            show_variables(&answer(&client, client.variables(&one.sandbox, &one.context)).await?, one.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(info: &ContextInfo, json: bool) -> Result<(), Error> {
    if json {
        return show::json(info);
    }
    show::note(&format!("{} is {}", info.id, state(info)));
    Ok(())
}

fn show_contexts(contexts: &[ContextInfo], json: bool) -> Result<(), Error> {
    if json {
        return show::json(&contexts);
    }
    if contexts.is_empty() {
        show::note("no contexts; create one with: bellglass context create");
        return Ok(());
    }
    let row = |info: &ContextInfo| {
        vec![
            info.id.to_string(),
            info.language.name().into(),
            state(info),
            info.cells.to_string(),
            info.waiting.to_string(),
            info.restarts.to_string(),
            info.cwd.clone(),
        ]
    };
    let rows: Vec<_> = contexts.iter().map(row).collect();
    show::table(&["context", "language", "state", "cells", "waiting", "restarts", "directory"], &rows)
}

fn show_variables(variables: &[Variable], json: bool) -> Result<(), Error> {
    if json {
        return show::json(&variables);
    }
    if variables.is_empty() {
        show::note("the context has no variables");
        return Ok(());
    }
    let row = |one: &Variable| {
        let shape = one.shape.iter().flatten().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let size = one.size.map(quantity::show_bytes).unwrap_or_default();
        vec![one.name.clone(), one.kind.clone(), shape, size, one.preview.clone()]
    };
    show::table(&["name", "type", "shape", "size", "value"], &variables.iter().map(row).collect::<Vec<_>>())
}

/// Returns the state of a context. If the context lost its variables, the text also states the reason.
fn state(info: &ContextInfo) -> String {
    match info.state {
        ContextState::Idle => "idle".into(),
        ContextState::Busy => "busy".into(),
        ContextState::Lost => {
            let why = info.lost.map(|lost| match lost {
                Loss::Ended => "ended",
                Loss::Killed => "killed",
                Loss::Oom => "oom",
                Loss::Restarted => "restarted",
            });
            why.map_or_else(|| "lost".into(), |why| format!("lost ({why})"))
        }
    }
}

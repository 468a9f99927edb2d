//! `belljar context`: interpreters that stay in a sandbox of a server. Code is run in one by `belljar python --context`.

use std::process::ExitCode;

use api::code::{ContextInfo, ContextSpec, ContextState, Loss, Variable};
use api::{ContextId, Error, SandboxId};

use crate::connect::{Connection, answer};
use crate::python::LanguageName;
use crate::{quantity, show};

/// What to do with contexts.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar context create build\n  belljar python build --context c1 -c 'x = 1'\n  \
    belljar context variables build c1\n  belljar context interrupt build c1\n  belljar context remove build c1\n\n\
    A context keeps its variables from cell to cell, until it is removed or its sandbox ends."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Makes a context and writes its id.
    Create {
        /// The sandbox, by its id or its name.
        #[arg(value_name = "SANDBOX")]
        sandbox: SandboxId,
        /// What its cells are written in: python or bash.
        #[arg(long, value_enum, default_value = "python", value_name = "LANGUAGE")]
        language: LanguageName,
        /// The directory it starts in.
        #[arg(long, value_name = "DIRECTORY")]
        cwd: Option<String>,
        /// Writes JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the contexts of a sandbox.
    List {
        /// The sandbox, by its id or its name.
        #[arg(value_name = "SANDBOX")]
        sandbox: SandboxId,
        /// Writes JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Has a context begin anew, without its variables.
    Restart(One),
    /// Ends the cell that runs in a context; its variables stay where the cell heeds that.
    Interrupt(One),
    /// Ends a context, and the cell that runs in it.
    Remove(One),
    /// Shows what a context has in its variables.
    Variables(One),
}

/// Which one.
#[derive(clap::Args)]
struct One {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The context.
    #[arg(value_name = "CONTEXT")]
    context: ContextId,
    /// Writes JSON.
    #[arg(long)]
    json: bool,
}

/// Does it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        Command::Create { sandbox, language, cwd, json } => {
            let spec = ContextSpec { language: language.of_server(), cwd, ..ContextSpec::default() };
            let info = answer(&client, client.create_context(&sandbox, &spec)).await?;
            if json { show::json(&info)? } else { show::line(info.id.as_str())? }
        }
        Command::List { sandbox, json } => {
            show_contexts(&answer(&client, client.contexts(&sandbox)).await?, json)?;
        }
        Command::Restart(one) => {
            let info = answer(&client, client.restart_context(&one.sandbox, &one.context)).await?;
            tell(&info, one.json)?;
        }
        Command::Interrupt(one) => {
            let info = answer(&client, client.interrupt_context(&one.sandbox, &one.context)).await?;
            tell(&info, one.json)?;
        }
        Command::Remove(one) => {
            answer(&client, client.remove_context(&one.sandbox, &one.context)).await?;
            if one.json {
                show::json(&one.context)?;
            } else {
                show::note(&format!("removed {}", one.context));
            }
        }
        Command::Variables(one) => {
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
        show::note("there are no contexts; make one with: belljar context create");
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
        show::note("it has no variables");
        return Ok(());
    }
    let row = |one: &Variable| {
        let shape = one.shape.iter().flatten().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let size = one.size.map(quantity::show_bytes).unwrap_or_default();
        vec![one.name.clone(), one.kind.clone(), shape, size, one.preview.clone()]
    };
    show::table(&["name", "type", "shape", "size", "value"], &variables.iter().map(row).collect::<Vec<_>>())
}

/// What a context does, and why it lost what it had if it has.
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

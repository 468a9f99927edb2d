//! `bellglass session`: manages agent sessions and their stored files.

use std::path::PathBuf;
use std::process::ExitCode;

use api::session::{CreateSession, Persistence, Session, ToolSet};
use api::{Error, SessionId};
use client::Calling;
use serde_json::Value;

use crate::command::{list, tools};
use crate::connect::{ServerConnection, answer};
use crate::{platform, show};

/// Arguments of `bellglass session`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass session create analysis --dataset sales=sales.csv\n  \
    bellglass session call SESSION sandbox_exec '{\"command\": [\"head\", \"/tmp/data/sales.csv\"]}'\n  \
    bellglass session files SESSION\n  bellglass session end SESSION")]
pub struct Arguments {
    #[command(subcommand)]
    command: SessionCommand,
}

#[derive(clap::Subcommand)]
enum SessionCommand {
    /// Create a session and print its id. The first tool call creates the sandbox of the session.
    Create {
        /// Tool set: analysis, python or interpreter.
        #[arg(value_name = "TOOL SET", value_parser = tools::set)]
        set: ToolSet,
        /// Template of the session's sandboxes. Default: the template of the tool set.
        #[arg(long)]
        template: Option<String>,
        /// State to keep between calls: `session` keeps the sandbox, `run` keeps only the files in /workspace.
        #[arg(long, value_parser = persistence)]
        persistence: Option<Persistence>,
        /// File to copy to /tmp/data/NAME.csv before any tool runs. Can be repeated.
        #[arg(long, value_name = "NAME=FILE", value_parser = dataset)]
        dataset: Vec<(String, PathBuf)>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List sessions.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Call a tool and print its result.
    Call {
        /// Session id.
        session: SessionId,
        /// Name of the tool.
        tool: String,
        /// Arguments of the tool, as a JSON object.
        #[arg(default_value = "{}")]
        arguments: String,
    },
    /// List the stored files of a session, or print the contents of one stored file.
    Files {
        /// Session id.
        session: SessionId,
        /// Name of the file to print.
        name: Option<String>,
        /// Print JSON instead of a table.
        #[arg(long, conflicts_with = "name")]
        json: bool,
    },
    /// Remove the stored files of a session. Other sessions are not affected.
    Clear {
        /// Session id.
        session: SessionId,
    },
    /// End sessions and stop their sandboxes. Stored files are kept.
    End {
        /// Session ids.
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<SessionId>,
    },
}

/// Runs `bellglass session`.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        SessionCommand::Create { set, template, persistence, dataset, json } => {
            let request = CreateSession { template, persistence, ..CreateSession::of(set) };
            let session = answer(&client, client.create_session(&request)).await?;
            for (name, path) in dataset {
                let bytes = std::fs::read(&path)
                    .map_err(|error| platform(format!("cannot read {}: {error}", path.display())))?;
                answer(&client, client.add_dataset(&session.id, &name, bytes.into())).await?;
            }
            match json {
                true => show::json(&answer(&client, client.session(&session.id)).await?)?,
                false => show::line(session.id.as_str())?,
            }
        }
        SessionCommand::List { json } => show_sessions(&answer(&client, client.sessions()).await?, json)?,
        SessionCommand::Call { session, tool, arguments } => {
            let arguments: Value = serde_json::from_str(&arguments).map_err(|error| {
                Error::invalid(
                    format!("the arguments are not JSON: {error}"),
                    "Pass all arguments of the tool as one quoted JSON object.",
                )
            })?;
            let call = client.call_tool(&session, &tool, &arguments, Calling::default());
            show::json(&answer(&client, call).await?.result)?;
        }
        SessionCommand::Files { session, name: Some(name), .. } => {
            show::bytes(&answer(&client, client.session_artifact(&session, &name)).await?)?;
        }
        SessionCommand::Files { session, name: None, json } => {
            let files = answer(&client, client.session_artifacts(&session)).await?;
            if json {
                show::json(&files)?;
            } else {
                let row = |file: &api::session::SessionArtifact| {
                    vec![file.name.clone(), file.mime.clone(), file.size.to_string()]
                };
                show::table(&["name", "type", "bytes"], &files.iter().map(row).collect::<Vec<_>>())?;
            }
        }
        SessionCommand::Clear { session } => answer(&client, client.clear_session(&session)).await?,
        SessionCommand::End { sessions } => {
            for session in &sessions {
                answer(&client, client.end_session(session)).await?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_sessions(sessions: &[Session], json: bool) -> Result<(), Error> {
    if json {
        return show::json(&sessions);
    }
    let row = |session: &Session| {
        vec![
            session.id.to_string(),
            session.set.name().to_owned(),
            if session.ended_at_ms.is_some() { "ended" } else { "open" }.to_owned(),
            session.sandbox.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            list::age(session.created_at_ms),
        ]
    };
    show::table(
        &["session", "tools", "state", "sandbox", "age"],
        &sessions.iter().map(row).collect::<Vec<_>>(),
    )
}

fn persistence(text: &str) -> Result<Persistence, String> {
    match text {
        "session" => Ok(Persistence::Session),
        "run" => Ok(Persistence::Run),
        _ => Err("use session or run".into()),
    }
}

fn dataset(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("use NAME=FILE")?;
    Ok((name.to_owned(), path.into()))
}

//! `belljar key`: who may ask a server.

use std::process::ExitCode;

use api::Error;
use api::account::{CreateKey, Key, Role};

use crate::connect::{Connection, answer};
use crate::quantity::{self, Limit};
use crate::{list, request, show};

/// What to do with keys.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar key create --project agents --label ci > key\n  belljar key list\n  \
    belljar key revoke k3f9\n\nAll of it needs a key of the role admin."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Makes a key and writes its secret, which nobody can see again.
    Create {
        /// The project it acts for.
        #[arg(long)]
        project: String,
        /// What it may do.
        #[arg(long, value_enum, default_value_t = RoleName::Write)]
        role: RoleName,
        /// What to call it.
        #[arg(long, default_value = "")]
        label: String,
        /// For how long it is valid: 24h, or none for good.
        #[arg(long, value_parser = quantity::limit, default_value = "none", value_name = "TIME")]
        valid: Limit,
        /// Writes JSON instead of the secret alone.
        #[arg(long)]
        json: bool,
    },
    /// Lists the keys, without their secrets.
    List {
        /// Writes JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Makes keys worthless.
    Revoke {
        /// Their ids.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Writes the ids as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Roles as people name them.
#[derive(Clone, Copy, clap::ValueEnum)]
enum RoleName {
    /// Looks at the sandboxes of its project.
    Read,
    /// Creates, uses and stops them.
    Write,
    /// Makes projects and keys, and drains.
    Admin,
}

/// Does it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        Command::Create { project, role, label, valid, json } => {
            let valid_ms = valid.0.map(request::millis);
            let request = CreateKey { project, role: role.role(), label, valid_ms };
            let made = answer(&client, client.create_key(&request)).await?;
            if json {
                show::json(&made)?;
            } else {
                show::note(&format!(
                    "key {} of project {}; its secret is shown this once:",
                    made.key.id, made.key.project
                ));
                show::line(&show::escape(&made.secret))?;
            }
        }
        Command::List { json } => show_keys(&answer(&client, client.keys()).await?, json)?,
        Command::Revoke { ids, json } => {
            for id in &ids {
                answer(&client, client.revoke_key(id)).await?;
            }
            if json {
                show::json(&ids)?;
            } else {
                show::note(&format!("revoked {}", ids.join(", ")));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_keys(keys: &[Key], json: bool) -> Result<(), Error> {
    if json {
        return show::json(&keys);
    }
    let rows: Vec<_> = keys
        .iter()
        .map(|key| {
            let role = match key.role {
                Role::Read => "read",
                Role::Write => "write",
                Role::Admin => "admin",
            };
            let expires = key.expires_at_ms.map_or_else(|| "never".into(), list::from_now);
            let (id, project, label) = (key.id.clone(), key.project.clone(), key.label.clone());
            vec![
                id,
                project,
                role.into(),
                label,
                format!("…{}", key.hint),
                list::age(key.created_at_ms),
                expires,
            ]
        })
        .collect();
    show::table(&["id", "project", "role", "label", "secret", "age", "expires in"], &rows)
}

impl RoleName {
    fn role(self) -> Role {
        match self {
            Self::Read => Role::Read,
            Self::Write => Role::Write,
            Self::Admin => Role::Admin,
        }
    }
}

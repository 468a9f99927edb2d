//! `bellglass key`: manages API keys on a server.

use std::process::ExitCode;

use api::Error;
use api::account::{CreateKey, Key, NewKey, Role, RotateKey};

use crate::command::list;
use crate::connect::{ServerConnection, answer};
use crate::quantity::{self, Limit};
use crate::{request, show};

/// Arguments of `bellglass key`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass key create --project agents --label ci > key\n  bellglass key list\n  \
    bellglass key rotate k3f9 --overlap 1h > key\n  bellglass key revoke k3f9\n\nAll key commands require a key with the role admin."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(clap::Subcommand)]
enum KeyCommand {
    /// Create a key and print its secret, which is never shown again.
    Create {
        /// Project that the key acts for.
        #[arg(long)]
        project: String,
        /// Role of the key.
        #[arg(long, value_enum, default_value_t = RoleName::Write)]
        role: RoleName,
        /// Label of the key, such as ci.
        #[arg(long, default_value = "")]
        label: String,
        /// Lifetime of the key, such as 24h. With the value `none`, the key never expires.
        #[arg(long, value_parser = quantity::limit, default_value = "none", value_name = "TIME")]
        valid: Limit,
        /// Print JSON instead of the secret alone.
        #[arg(long)]
        json: bool,
    },
    /// List the keys, without their secrets.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Replace a key with a new one and print the new secret. The old key keeps working during the overlap.
    Rotate {
        /// Id of the old key.
        #[arg(value_name = "ID")]
        id: String,
        /// How long the old key keeps working, at most 7d. The value `none` revokes the old key immediately.
        #[arg(long, value_parser = quantity::limit, default_value = "1h", value_name = "TIME")]
        overlap: Limit,
        /// Print JSON instead of the secret alone.
        #[arg(long)]
        json: bool,
    },
    /// Revoke keys.
    Revoke {
        /// Ids of the keys.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Print the ids as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Roles, as values of `--role`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum RoleName {
    /// View the sandboxes of the key's project.
    Read,
    /// Create, use and stop the sandboxes of the key's project.
    Write,
    /// Create projects and keys, and drain the server.
    Admin,
}

/// Runs `bellglass key`.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        KeyCommand::Create { project, role, label, valid, json } => {
            let valid_ms = valid.0.map(request::millis);
            let request = CreateKey { project, role: role.role(), label, valid_ms };
            show_new(&answer(&client, client.create_key(&request)).await?, json)?;
        }
        KeyCommand::Rotate { id, overlap, json } => {
            let request = RotateKey { overlap_ms: overlap.0.map_or(0, request::millis) };
            show_new(&answer(&client, client.rotate_key(&id, request)).await?, json)?;
        }
        KeyCommand::List { json } => show_keys(&answer(&client, client.keys()).await?, json)?,
        KeyCommand::Revoke { ids, json } => {
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

fn show_new(made: &NewKey, json: bool) -> Result<(), Error> {
    if json {
        return show::json(made);
    }
    show::note(&format!(
        "created key {} of project {}; the secret of the key is shown only once:",
        made.key.id, made.key.project
    ));
    show::line(&show::escape(&made.secret))
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
                key.last_used_at_ms.map_or_else(|| "never".into(), list::age),
                expires,
            ]
        })
        .collect();
    show::table(&["id", "project", "role", "label", "secret", "age", "used", "expires in"], &rows)
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

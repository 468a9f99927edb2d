//! `bellglass project`: manages projects and their quotas on a server.

use std::process::ExitCode;

use api::Error;
use api::account::{Project, PutProject, Quota};

use crate::command::list;
use crate::connect::{ServerConnection, answer};
use crate::{quantity, show};

/// Arguments of `bellglass project`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass project set agents --sandboxes 50 --memory 64G\n  bellglass project list\n\n\
    All project commands require a key with the role admin."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: ProjectCommand,
}

#[derive(clap::Subcommand)]
enum ProjectCommand {
    /// Create a project or change its quota. Quota values that are not given remain unchanged.
    Set(ProjectSetArguments),
    /// List the projects.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `bellglass project set`.
#[derive(clap::Args)]
struct ProjectSetArguments {
    /// Name of the project: up to 40 lower-case letters and digits, starting with a letter.
    name: String,
    /// Maximum number of live sandboxes of the project.
    #[arg(long, value_name = "COUNT")]
    sandboxes: Option<u32>,
    /// Maximum sum of the memory limits of the project's live sandboxes, such as 64G.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    memory: Option<u64>,
    /// Maximum total disk size of the project's live sandboxes. Stored data (datasets, session files, artifacts) may use up to
    /// the same amount in addition.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    disk: Option<u64>,
    /// Maximum number of sandboxes to create per second.
    #[arg(long, value_name = "COUNT")]
    creates_per_second: Option<u32>,
    /// Maximum number of execs to start per second.
    #[arg(long, value_name = "COUNT")]
    execs_per_second: Option<u32>,
    /// Whether the project's sandboxes may have the policy `open`, which allows access to the whole internet.
    #[arg(long, value_name = "true|false")]
    open: Option<bool>,
    /// Whether commands in sandboxes of a workstation template may run as root of the sandbox's own user namespace.
    #[arg(long, value_name = "true|false")]
    root: Option<bool>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs `bellglass project`.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        ProjectCommand::Set(wanted) => {
            let projects = answer(&client, client.projects()).await?;
            let known = projects.into_iter().find(|project| project.name == wanted.name);
            let quota = wanted.quota(known.map(|project| project.quota).unwrap_or_default());
            let project = answer(&client, client.put_project(&wanted.name, &PutProject { quota })).await?;
            if wanted.json { show::json(&project)? } else { table(&[project])? }
        }
        ProjectCommand::List { json } => {
            let projects = answer(&client, client.projects()).await?;
            if json { show::json(&projects)? } else { table(&projects)? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl ProjectSetArguments {
    fn quota(&self, now: Quota) -> Quota {
        Quota {
            sandboxes: self.sandboxes.unwrap_or(now.sandboxes),
            memory_bytes: self.memory.unwrap_or(now.memory_bytes),
            disk_bytes: self.disk.unwrap_or(now.disk_bytes),
            creates_per_second: self.creates_per_second.unwrap_or(now.creates_per_second),
            execs_per_second: self.execs_per_second.unwrap_or(now.execs_per_second),
            open: self.open.unwrap_or(now.open),
            root: self.root.unwrap_or(now.root),
        }
    }
}

fn table(projects: &[Project]) -> Result<(), Error> {
    let rows: Vec<_> = projects
        .iter()
        .map(|Project { name, quota, created_at_ms }| {
            vec![
                name.clone(),
                quota.sandboxes.to_string(),
                quantity::show_bytes(quota.memory_bytes),
                quantity::show_bytes(quota.disk_bytes),
                quota.creates_per_second.to_string(),
                quota.execs_per_second.to_string(),
                if quota.open { "yes" } else { "no" }.to_owned(),
                if quota.root { "yes" } else { "no" }.to_owned(),
                list::age(*created_at_ms),
            ]
        })
        .collect();
    show::table(
        &["project", "sandboxes", "memory", "disk", "creates/s", "execs/s", "open", "root", "age"],
        &rows,
    )
}

//! `belljar project`: who shares a server, and how much each may have.

use std::process::ExitCode;

use api::Error;
use api::account::{Project, PutProject, Quota};

use crate::connect::{Connection, answer};
use crate::{list, quantity, show};

/// What to do with projects.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar project set agents --sandboxes 50 --memory 64G\n  belljar project list\n\n\
    All of it needs a key of the role admin."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Makes a project, or changes what it may have. What is not named stays as it is.
    Set(Wanted),
    /// Lists the projects.
    List {
        /// Writes JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct Wanted {
    /// Its name, written like an id.
    name: String,
    /// Live sandboxes.
    #[arg(long, value_name = "COUNT")]
    sandboxes: Option<u32>,
    /// The memory limits of its live sandboxes, added up.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    memory: Option<u64>,
    /// The disks of its live sandboxes, added up.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    disk: Option<u64>,
    /// Sandboxes that it may create in one second.
    #[arg(long, value_name = "COUNT")]
    creates_per_second: Option<u32>,
    /// Execs that it may start in one second.
    #[arg(long, value_name = "COUNT")]
    execs_per_second: Option<u32>,
    /// Whether its sandboxes may have a policy that is `open`: the whole internet.
    #[arg(long, value_name = "true|false")]
    open: Option<bool>,
    /// Whether root of the sandbox's own user namespace may run commands, where the template is a workstation.
    #[arg(long, value_name = "true|false")]
    root: Option<bool>,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Does it.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        Command::Set(wanted) => {
            let projects = answer(&client, client.projects()).await?;
            let known = projects.into_iter().find(|project| project.name == wanted.name);
            let quota = wanted.quota(known.map(|project| project.quota).unwrap_or_default());
            let project = answer(&client, client.put_project(&wanted.name, &PutProject { quota })).await?;
            if wanted.json { show::json(&project)? } else { table(&[project])? }
        }
        Command::List { json } => {
            let projects = answer(&client, client.projects()).await?;
            if json { show::json(&projects)? } else { table(&projects)? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Wanted {
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

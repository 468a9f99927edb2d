//! `belljar template`: what sandboxes are made from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::Error;
use indicatif::{ProgressBar, ProgressStyle};
use node::Machine;
use node::template::{Base, Builder, Progress, Store, Template};
use runtime::Tier;

use crate::{run, show};

/// What to do with templates.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Builds a template that Belljar knows how to make. `base` is Debian with Python, bash, coreutils, git and curl,
    /// from Debian's packages; it needs `mmdebstrap` and no registry.
    Build {
        /// The template to build.
        #[arg(value_parser = ["base"])]
        template: String,
    },
    /// Makes a template of an image file: a `docker save` archive, or an OCI layout as an archive or a directory. Its
    /// layers are unpacked inside a sandbox.
    Import {
        /// The image.
        file: PathBuf,
        /// The template's name; the file's name without its ending, if none is given.
        #[arg(long)]
        name: Option<String>,
    },
    /// Lists the templates of this machine.
    List {
        /// Writes JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Removes a template. Sandboxes made from it go on.
    Remove {
        /// Its name.
        name: String,
    },
}

/// Does it.
pub async fn run(data: &Path, arguments: Arguments) -> Result<ExitCode, Error> {
    let store = Store::new(data);
    match arguments.command {
        Command::List { json } => list(&store, json)?,
        Command::Remove { name } => {
            store.remove(&name).map_err(|error| error.to_api())?;
            show::note(&format!("removed {name}"));
        }
        Command::Build { template } => {
            let machine = Machine::open(data).map_err(|error| error.to_api())?;
            make(&machine, async |builder, watch| {
                builder.build_base(&template, &Base::default(), watch).await
            })
            .await?;
        }
        Command::Import { file, name } => {
            let name = name.unwrap_or_else(|| stem(&file));
            let machine = Machine::open(data).map_err(|error| error.to_api())?;
            make(&machine, async |builder, watch| builder.import(&name, &file, watch).await).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a template with a bar to watch; says what it is called.
async fn make(
    machine: &Machine,
    act: impl AsyncFnOnce(&Builder, node::template::Watch<'_>) -> Result<Template, node::Error>,
) -> Result<(), Error> {
    run::tidy(machine).await?;
    let runtime = machine.at_least(Tier::Container).map_err(|error| error.to_api())?;
    let builder = Builder::new(machine, runtime);
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {elapsed} {bytes} {wide_msg}")
            .map_err(|e| crate::platform(e.to_string()))?,
    );
    bar.enable_steady_tick(Duration::from_millis(120));
    let made = act(&builder, &|progress| match progress {
        Progress::Layer { number, count, .. } => {
            bar.set_position(0);
            bar.set_message(format!("layer {number} of {count}"));
        }
        Progress::Kept { number, count } => {
            bar.set_message(format!("layer {number} of {count} is here already"))
        }
        Progress::Bytes(bytes) => bar.set_position(bytes),
        Progress::Says(line) => bar.set_message(show::escape(line)),
    })
    .await;
    bar.finish_and_clear();
    let template = made.map_err(|error| error.to_api())?;
    show::note(&format!(
        "made template {} in {:.0?}; try: belljar run --template {} -- id",
        template.name,
        bar.elapsed(),
        template.name
    ));
    Ok(())
}

fn list(store: &Store, json: bool) -> Result<(), Error> {
    let templates = store.list().map_err(|error| error.to_api())?;
    if json {
        show::json(&templates)?;
    } else if templates.is_empty() {
        show::note("there are no templates; make one with: belljar template build base");
    } else {
        let rows: Vec<_> = templates
            .iter()
            .map(|template| {
                let first: String =
                    template.layers.last().map_or("", String::as_str).chars().take(12).collect();
                vec![template.name.clone(), template.layers.len().to_string(), first]
            })
            .collect();
        show::table(&["name", "layers", "top layer"], &rows)?;
    }
    Ok(())
}

fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.split('.').next().unwrap_or_default().to_owned()
}

//! `bellglass template`: manages the templates on this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::Error;
use indicatif::{ProgressBar, ProgressStyle};
use node::Machine;
use node::template::recipe::{Ground, Recipe};
use node::template::{BuildOrder, Builder, Store, Template, TemplateProgress, shipped};
use runtime::engine::Engine;
use runtime::{Runtime, Tier};

use crate::command::run;
use crate::{LocalOptions, show};

/// Arguments of `bellglass template`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: TemplateCommand,
}

#[derive(clap::Subcommand)]
enum TemplateCommand {
    /// Build a template from a recipe.
    ///
    /// Each step runs in a sandbox. Results of earlier builds are kept, so only changed steps are built again.
    #[command(
        after_help = "Examples:\n  bellglass template build base\n  bellglass template build tools.toml\n  \
        bellglass template build tools.toml --name tools-next --fresh\n\n\
        A recipe such as tools.toml:\n\n  from = \"base\"\n  steps = [\n    { apt = [\"jq\"] },\n    \
        { pip = [\"requests\"] },\n    { copy = { from = \"app\", to = \"/opt/app\" } },\n    \
        { run = \"python3 -m compileall /opt/app\" },\n  ]"
    )]
    Build {
        /// Recipe that comes with Bellglass (base, python, node, analysis, interpreter, workstation, code-interpreter-v1), or a
        /// recipe file.
        recipe: String,
        /// Name of the template. Default: the name of the recipe.
        #[arg(long)]
        name: Option<String>,
        /// Build every step again, without results of earlier builds.
        #[arg(long)]
        fresh: bool,
        /// Registry at a private address to pull the recipe's base image from: http://HOST:PORT or https://HOST:PORT.
        #[arg(long)]
        registry: Option<String>,
    },
    /// Create a template from an image file.
    ///
    /// The file can be the output of `template export`, a `docker save` archive, or an OCI layout (an archive or a directory).
    /// The layers of the image are unpacked inside a sandbox.
    Import {
        /// Image file or directory.
        file: PathBuf,
        /// Name of the template. Default: the file name without its extension.
        #[arg(long)]
        name: Option<String>,
    },
    /// Write a template to one file, which can be imported on another machine.
    ///
    /// The file is an OCI layout, so other tools can read it too.
    Export {
        /// Name of the template.
        name: String,
        /// File to create.
        file: PathBuf,
    },
    /// Print a recipe as a Containerfile, which other tools can build.
    ///
    /// The Containerfile copies files from the directory of the recipe.
    #[command(
        after_help = "Examples:\n  bellglass template containerfile recipes/tools.toml > Containerfile\n  \
        podman build --tag tools --file Containerfile recipes"
    )]
    Containerfile {
        /// Recipe that comes with Bellglass (base, python, node, analysis, interpreter, workstation, code-interpreter-v1), or a
        /// recipe file.
        recipe: String,
    },
    /// List the templates of this machine.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Print the log of the last build of a template.
    Log {
        /// Name of the template.
        name: String,
    },
    /// Remove a template. Sandboxes created from it keep running.
    Remove {
        /// Name of the template.
        name: String,
    },
}

/// Recipe to build, the name of its template, and the directory from which it copies files.
struct NamedRecipe {
    recipe: Recipe,
    name: String,
    home: PathBuf,
}

/// Options for building a recipe.
#[derive(Clone, Copy, Default)]
struct BuildOptions<'a> {
    /// Name of the template. `None` to use the name of the recipe.
    name: Option<&'a str>,
    /// True to build all steps again, including steps with a result from an earlier build.
    fresh: bool,
    registry: Option<&'a str>,
}

/// Runs `bellglass template`.
pub async fn run(place: &LocalOptions, arguments: Arguments) -> Result<ExitCode, Error> {
    let data = &place.data;
    let store = Store::new(data);
    match arguments.command {
        TemplateCommand::List { json } => list(&store, json)?,
        TemplateCommand::Log { name } => {
            let said = store.build_log(&name).map_err(|error| error.to_api())?;
            for line in String::from_utf8_lossy(&said).lines() {
                show::line(&show::escape(line))?;
            }
        }
        TemplateCommand::Remove { name } => {
            store.remove(&name).map_err(|error| error.to_api())?;
            show::note(&format!("removed {name}"));
            if let Err(error) = node::template::engine::tidy(data).await {
                let why = show::escape(&error.to_api().message);
                show::note(&format!(
                    "the image of the template remains on the container engine until the next template is removed: {why}"
                ));
            }
        }
        TemplateCommand::Build { recipe, name, fresh, registry } => {
            let wanted = find(data, &recipe)?;
            let machine = Machine::open(data).map_err(|error| error.to_api())?;
            let engine = only_engine(&machine, place).await?;
            let options = BuildOptions { name: name.as_deref(), fresh, registry: registry.as_deref() };
            build(&machine, engine.as_ref(), &wanted, options).await?;
        }
        TemplateCommand::Import { file, name } => {
            let name = name.unwrap_or_else(|| stem(&file));
            let machine = Machine::open(data).map_err(|error| error.to_api())?;
            match only_engine(&machine, place).await? {
                Some(engine) => {
                    let begun = Instant::now();
                    let made = node::template::engine::import(data, &engine, &name, &file).await;
                    told(&made.map_err(|error| error.to_api())?, begun);
                }
                None => {
                    make(&machine, async |builder, watch| builder.import(&name, &file, watch).await).await?
                }
            }
        }
        TemplateCommand::Containerfile { recipe } => {
            let wanted = find(data, &recipe)?;
            let template = node::template::engine::described(&wanted.name, &wanted.recipe);
            let text = template.and_then(|template| wanted.recipe.containerfile(&template, None));
            show::line(text.map_err(|error| error.to_api())?.trim_end())?;
        }
        TemplateCommand::Export { name, file } => {
            let machine = Machine::open(data).map_err(|error| error.to_api())?;
            with_bar(&machine, async |builder, watch| builder.export(&name, &file, watch).await).await?;
            show::note(&format!(
                "wrote template {name} to {0}. To import the file: bellglass template import {0}",
                file.display()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the built-in recipe with this name, or reads the recipe from this file.
fn find(data: &Path, text: &str) -> Result<NamedRecipe, Error> {
    if let Some(recipe) = shipped::find(text).map_err(|error| error.to_api())? {
        let home = shipped::lay_out(data).map_err(|error| error.to_api())?;
        return Ok(NamedRecipe { recipe, name: text.to_owned(), home });
    }
    let path = Path::new(text);
    let names = shipped::names().join(", ");
    let recipe = std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(
            format!("cannot read the recipe {text:?}: {error}"),
            format!("Name a file, or one of the built-in recipes: {names}."),
        )
    })?;
    let recipe = Recipe::parse(&recipe).map_err(|error| error.to_api())?;
    let home = path.parent().filter(|home| !home.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(NamedRecipe { recipe, name: stem(path), home: home.to_owned() })
}

/// Returns the container engine that builds templates, or `None` if this process can build layers itself,
/// because it runs as root and an OCI runtime is available.
async fn only_engine(machine: &Machine, place: &LocalOptions) -> Result<Option<Engine>, Error> {
    if rustix::process::geteuid().is_root() && machine.at_least(Tier::Container).is_ok() {
        return Ok(None);
    }
    let runtime = machine.choose(&place.backends).await.maker();
    let runtime = runtime.map_err(|error| error.to_api())?;
    machine.engine_named(runtime.name()).map(Some).map_err(|error| error.to_api())
}

/// Builds a recipe. If the recipe is based on a built-in recipe without a template, builds that recipe first.
async fn build(
    machine: &Machine,
    engine: Option<&Engine>,
    wanted: &NamedRecipe,
    options: BuildOptions<'_>,
) -> Result<(), Error> {
    if let Ground::Named(ground) = &wanted.recipe.from
        && shipped::names().contains(&ground.as_str())
        && !Store::new(machine.data()).has(ground)
    {
        show::note(&format!("template {} is based on template {ground}, which is built first", wanted.name));
        let base = BuildOptions { fresh: options.fresh, ..BuildOptions::default() };
        Box::pin(build(machine, engine, &find(machine.data(), ground)?, base)).await?;
    }
    let BuildOptions { name, fresh, registry } = options;
    let name = name.unwrap_or(&wanted.name);
    let order = BuildOrder { fresh, registry, ..BuildOrder::new(name, &wanted.recipe, &wanted.home) };
    let Some(engine) = engine else {
        return make(machine, async |builder, watch| builder.build(&order, watch).await).await;
    };
    let begun = Instant::now();
    let bar = bar()?;
    let watch = |progress: TemplateProgress<'_>| {
        if let TemplateProgress::Says(line) = progress {
            bar.set_message(show::escape(line));
        }
    };
    let made = node::template::engine::build(machine.data(), engine, &order, &watch).await;
    bar.finish_and_clear();
    told(&made.map_err(|error| error.to_api())?, begun);
    Ok(())
}

/// Prepares a recipe's template for the runtime in use, and returns the name of the template.
pub async fn make_ready(machine: &Machine, runtime: &dyn Runtime, recipe: &str) -> Result<String, Error> {
    let store = Store::new(machine.data());
    let native = rustix::process::geteuid().is_root() && machine.at_least(Tier::Container).is_ok();
    if runtime.properties().takes_images && native && store.has(recipe) && !shipped::names().contains(&recipe)
    {
        let engine = machine.engine_named(runtime.name()).map_err(|error| error.to_api())?;
        with_bar(machine, async |builder, watch| builder.load(recipe, &engine, watch).await).await?;
        return Ok(recipe.to_owned());
    }
    let wanted = find(machine.data(), recipe)?;
    let options = BuildOptions::default();
    if !runtime.properties().takes_images {
        build(machine, None, &wanted, options).await?;
        return Ok(wanted.name);
    }
    let engine = machine.engine_named(runtime.name()).map_err(|error| error.to_api())?;
    if !native {
        build(machine, Some(&engine), &wanted, options).await?;
        return Ok(wanted.name);
    }
    // Layers are built by this process, with the recipe's egress policy in each step, and are then loaded
    // into the engine.
    build(machine, None, &wanted, options).await?;
    with_bar(machine, async |builder, watch| builder.load(&wanted.name, &engine, watch).await).await?;
    show::note(&format!("{} has template {}", runtime.name(), wanted.name));
    Ok(wanted.name)
}

/// Creates a template while showing a progress bar, and prints a summary.
async fn make(
    machine: &Machine,
    act: impl AsyncFnOnce(&Builder, node::template::ProgressSink<'_>) -> Result<Template, node::Error>,
) -> Result<(), Error> {
    let begun = Instant::now();
    let template = with_bar(machine, act).await?;
    told(&template, begun);
    Ok(())
}

/// Prints a summary of a new template.
fn told(template: &Template, begun: Instant) {
    let name = &template.name;
    if !template.policy.is_closed() {
        show::note(&format!(
            "sandboxes of this template have network access to: {}",
            show::escape(&template.policy.words().join(", "))
        ));
    }
    show::note(&format!(
        "created template {name} in {:.0?}; try: bellglass run --template {name} -- id",
        begun.elapsed()
    ));
}

/// Runs a long operation while showing a progress bar.
async fn with_bar<T>(
    machine: &Machine,
    act: impl AsyncFnOnce(&Builder, node::template::ProgressSink<'_>) -> Result<T, node::Error>,
) -> Result<T, Error> {
    run::tidy(machine).await?;
    let runtime = machine.at_least(Tier::Container).map_err(|error| error.to_api())?;
    let builder = Builder::new(machine, runtime);
    let bar = bar()?;
    let watch = |progress: TemplateProgress<'_>| match progress {
        TemplateProgress::Layer { number, count, .. } => {
            bar.set_position(0);
            bar.set_message(format!("layer {number} of {count}"));
        }
        TemplateProgress::Kept { number, count } => {
            bar.set_message(format!("layer {number} of {count} is already present"));
        }
        TemplateProgress::Step { number, count, what, kept } => {
            bar.set_position(0);
            bar.set_message("");
            // The step is printed above the bar. Without a terminal, there is no bar, and these lines are the
            // only visible progress.
            let note = if kept { " (cached)" } else { "" };
            bar.suspend(|| show::note(&format!("step {number} of {count}: {}{note}", show::escape(what))));
        }
        TemplateProgress::Bytes(bytes) => bar.set_position(bytes),
        TemplateProgress::Says(line) => bar.set_message(show::escape(line)),
        TemplateProgress::Output(bytes) => {
            if let Some(line) = String::from_utf8_lossy(bytes).lines().rfind(|line| !line.trim().is_empty()) {
                bar.set_message(show::escape(line));
            }
        }
    };
    let made = tokio::select! {
        made = act(&builder, &watch) => Some(made),
        ended = crate::wait_for_end() => {
            ended?;
            None
        }
    };
    bar.finish_and_clear();
    match made {
        Some(made) => made.map_err(|error| error.to_api()),
        None => {
            builder.abandon().await.map_err(|error| error.to_api())?;
            run::tidy(machine).await?;
            Err(crate::given_up())
        }
    }
}

/// Creates the progress bar for a long operation.
fn bar() -> Result<ProgressBar, Error> {
    let style = ProgressStyle::with_template("{spinner} {elapsed} {bytes} {wide_msg}");
    let bar = ProgressBar::new_spinner().with_style(style.map_err(|e| crate::platform(e.to_string()))?);
    bar.enable_steady_tick(Duration::from_millis(120));
    Ok(bar)
}

fn list(store: &Store, json: bool) -> Result<(), Error> {
    let templates = store.list().map_err(|error| error.to_api())?;
    if json {
        show::json(&templates)?;
    } else if templates.is_empty() {
        show::note("no templates; build one with: bellglass template build base");
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

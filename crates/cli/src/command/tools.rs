//! `bellglass tools`: prints tool sets for models. The descriptions are part of the executable, so no server
//! is needed.

use std::process::ExitCode;

use api::Error;
use api::session::ToolSet;
use tools::Format;
use tools::publish::Facts;

use crate::show;

/// Arguments of `bellglass tools`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass tools analysis --format openai\n  bellglass tools analysis --prompt\n\n\
    To run these tools, create a session: bellglass session create analysis"
)]
pub struct Arguments {
    /// Tool set: analysis, python or interpreter.
    #[arg(value_name = "TOOL SET", value_parser = set)]
    set: ToolSet,
    /// Output format: bellglass, openai, anthropic or mcp.
    #[arg(long, default_value = "bellglass", value_parser = format)]
    format: Format,
    /// Print instructions for the system prompt of a model instead of the tool set.
    #[arg(long)]
    prompt: bool,
}

/// Prints a tool set, or the instructions for its model.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    if arguments.prompt {
        show::line(tools::prompt(arguments.set).trim_end())?;
    } else {
        show::json(&tools::published(arguments.set, &Facts::default(), arguments.format))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses the name of a tool set.
pub fn set(text: &str) -> Result<ToolSet, String> {
    let names = ToolSet::ALL.map(ToolSet::name).join(", ");
    ToolSet::ALL.into_iter().find(|set| set.name() == text).ok_or(format!("use one of {names}"))
}

fn format(text: &str) -> Result<Format, String> {
    match text {
        "bellglass" => Ok(Format::Bellglass),
        "openai" => Ok(Format::Openai),
        "anthropic" => Ok(Format::Anthropic),
        "mcp" => Ok(Format::Mcp),
        _ => Err("use bellglass, openai, anthropic or mcp".into()),
    }
}

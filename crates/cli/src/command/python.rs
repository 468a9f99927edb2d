//! `bellglass python`: runs code in a sandbox on a server, once or as a cell of a context. Without code, the
//! command opens an interactive prompt.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::code::{Code, Language};
use api::exec::{ExecSpec, OutputMode};
use api::{ContextId, Error, SandboxId, limits};
use client::Client;

use crate::command::repl;
use crate::connect::{ServerConnection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::quantity::{self, Limit};
use crate::results::Results;
use crate::{request, show};

/// Arguments of `bellglass python`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass python build -c 'print(6 * 7)'\n  bellglass python build report.py\n  \
    echo 'import sys; sys.version' | bellglass python build\n  bellglass python build --requirement duckdb -c 'import duckdb'\n  \
    bellglass python build\n\n\
    The value of the last expression is printed as at Python's own prompt. Figures are saved in the current\n\
    directory, or displayed if the terminal can display figures. At a terminal and without code, an\n\
    interactive prompt with its own context opens: Ctrl-C interrupts the cell, Ctrl-D exits. The exit\n\
    code is the code's own, or 125 if Bellglass itself fails."
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// File with the code. The value - means standard input.
    #[arg(value_name = "FILE", conflicts_with = "code")]
    file: Option<PathBuf>,
    /// Code to run.
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    code: Option<String>,
    /// Context to run the code in. The code runs as a cell, and its variables persist. See `bellglass context`.
    #[arg(long, value_name = "CONTEXT")]
    context: Option<ContextId>,
    /// Language of the code. Default: python, or the language of the context.
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    language: Option<LanguageName>,
    /// Python package to install first, written as in a requirements file. Can be repeated.
    #[arg(long = "requirement", value_name = "PACKAGE")]
    requirements: Vec<String>,
    /// Install packages that the code imports but that the sandbox does not have.
    #[arg(long)]
    install_missing: bool,
    /// Wall-clock limit of the code, or of each cell, such as 90s or 5m. With the value `none`, the code can run as long as
    /// its sandbox.
    #[arg(long, value_parser = quantity::limit, default_value = "60s", value_name = "TIME", allow_hyphen_values = true)]
    timeout: Limit,
    /// Directory to save figures in. Default: the current directory, unless the terminal can display figures.
    #[arg(long, value_name = "DIRECTORY")]
    images: Option<PathBuf>,
    /// Print one JSON object with the outcome, the output and the results instead of streaming.
    #[arg(long)]
    json: bool,
}

/// Languages, as values of `--language`.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum LanguageName {
    /// Python.
    Python,
    /// Bash.
    Bash,
    /// JavaScript, run by node.
    Javascript,
    /// TypeScript, run by node, which strips the types.
    Typescript,
}

impl LanguageName {
    /// Returns the language as the server's API represents it.
    pub fn of_server(self) -> Language {
        match self {
            Self::Python => Language::Python,
            Self::Bash => Language::Bash,
            Self::Javascript => Language::Javascript,
            Self::Typescript => Language::Typescript,
        }
    }
}

/// Runner that can run any number of pieces of code in one sandbox.
pub struct Runner<'a> {
    /// Client for the server.
    pub client: &'a Client,
    /// Sandbox that runs the code.
    pub sandbox: &'a SandboxId,
    /// Exec request without the source code, which is added for each run.
    pub spec: ExecSpec,
}

/// Runs the given code, or opens the interactive prompt.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let source = source(&arguments)?;
    let code = Code {
        language: arguments.language.map(LanguageName::of_server),
        context: arguments.context.clone(),
        requirements: arguments.requirements.clone(),
        install_missing: arguments.install_missing,
        ..Code::default()
    };
    // A cell must not block until a client reads its output, because the context also serves other cells.
    let bounded = arguments.json || arguments.context.is_some() || source.is_none();
    let spec = ExecSpec {
        code: Some(code),
        deadline_ms: arguments.timeout.0.map(request::millis),
        // Output that is collected in memory must be limited. Streamed output need not be.
        output: if bounded { OutputMode::Keep } else { OutputMode::Block },
        ..ExecSpec::default()
    };
    let runner = Runner { client: &client, sandbox: &arguments.sandbox, spec };
    let results = Results::keeping(arguments.images);
    match source {
        Some(source) => runner.run(source, &mut Output::showing(arguments.json, results)).await,
        None if arguments.json => Err(Error::invalid(
            "no code was given, and --json does not work with the interactive prompt",
            "Pass a file, -c or standard input.",
        )),
        None => repl::run(runner, results).await,
    }
}

impl Runner<'_> {
    /// Runs code until it ends, and returns its exit code.
    pub async fn run(&self, source: String, output: &mut Output) -> Result<ExitCode, Error> {
        let (client, sandbox) = (self.client, self.sandbox);
        let code = Code { source, ..self.spec.code.clone().unwrap_or_default() };
        let spec = ExecSpec { code: Some(code), ..self.spec.clone() };
        spec.check()?;
        let exec = answer(client, client.exec(sandbox, &spec)).await?;
        let id = exec.id().clone();
        let followee = Followee { client, sandbox, stdin: false, interrupt: Interrupt::Cancels };
        Ok(match followee.follow(exec, output).await? {
            Followed::Ended(end) => output.finish(sandbox, &end, None),
            Followed::CaughtUp | Followed::Left => {
                show::note(&format!(
                    "detached before the outcome was known. To return: bellglass attach {sandbox} {id}"
                ));
                ExitCode::from(crate::FAILED)
            }
        })
    }
}

/// Returns the code from the arguments, a file or standard input, or `None` if the user will type it at the
/// prompt.
fn source(arguments: &Arguments) -> Result<Option<String>, Error> {
    if arguments.code.is_some() {
        return Ok(arguments.code.clone());
    }
    let file = arguments.file.as_deref().filter(|path| *path != Path::new("-"));
    let failed = |what: &str, error: std::io::Error| {
        Error::invalid(
            format!("cannot read code from {what}: {error}"),
            "Use a UTF-8 text file that you can read.",
        )
    };
    // One byte more than the limit is enough to reject code that is too long without reading all of it.
    let most = limits::CODE_BYTES_MAX as u64 + 1;
    let mut text = String::new();
    match file {
        Some(path) => {
            let shown = path.display().to_string();
            let file = std::fs::File::open(path).map_err(|error| failed(&shown, error))?;
            file.take(most).read_to_string(&mut text).map_err(|error| failed(&shown, error))?;
        }
        None if arguments.file.is_none() && std::io::stdin().is_terminal() => return Ok(None),
        None => {
            let mut stdin = std::io::stdin().lock().take(most);
            stdin.read_to_string(&mut text).map_err(|error| failed("standard input", error))?;
        }
    }
    Ok(Some(text))
}

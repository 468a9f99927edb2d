//! `belljar python`: code in a sandbox of a server, once or as a cell of a context; without code, line by line at a terminal.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::code::{Code, Language};
use api::exec::{ExecSpec, OutputMode};
use api::{ContextId, Error, SandboxId, limits};
use client::Client;

use crate::connect::{Connection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::quantity::{self, Limit};
use crate::results::Results;
use crate::{repl, request, show};

/// What to run, and where.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  belljar python build -c 'print(6 * 7)'\n  belljar python build report.py\n  \
    echo 'import sys; sys.version' | belljar python build\n  belljar python build --requirement duckdb -c 'import duckdb'\n  \
    belljar python build\n\n\
    The value of a last expression is written as at Python's own prompt. Figures are saved beside you, or drawn where the terminal \
    can. Without code, and at a terminal, lines are run as they are typed, in a context of their own: Ctrl-C ends the cell, Ctrl-D \
    leaves. The exit code is the code's own; 125 is a failure of Belljar's."
)]
pub struct Arguments {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The file with the code; - is standard input.
    #[arg(value_name = "FILE", conflicts_with = "code")]
    file: Option<PathBuf>,
    /// The code itself.
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    code: Option<String>,
    /// Runs it as a cell of this context, whose variables stay; see `belljar context`.
    #[arg(long, value_name = "CONTEXT")]
    context: Option<ContextId>,
    /// What the code is written in: Python, or what the context is for.
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    language: Option<LanguageName>,
    /// A Python package that is installed first, as a line of a requirements file; can be given more than once.
    #[arg(long = "requirement", value_name = "PACKAGE")]
    requirements: Vec<String>,
    /// Installs what the code imports and the sandbox does not have.
    #[arg(long)]
    install_missing: bool,
    /// The wall-clock limit of the code, or of each cell: 90s, 5m, or none.
    #[arg(long, value_parser = quantity::limit, default_value = "60s", value_name = "TIME", allow_hyphen_values = true)]
    timeout: Limit,
    /// Where figures are saved; without it, here, unless the terminal can draw them.
    #[arg(long, value_name = "DIRECTORY")]
    images: Option<PathBuf>,
    /// Writes one JSON object with the outcome, the output and the results instead of streaming.
    #[arg(long)]
    json: bool,
}

/// Languages as people name them.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum LanguageName {
    /// Python.
    Python,
    /// Bash.
    Bash,
    /// JavaScript, run by node.
    Javascript,
    /// TypeScript, run by node without its types.
    Typescript,
}

impl LanguageName {
    /// As a server is asked for it.
    pub fn of_server(self) -> Language {
        match self {
            Self::Python => Language::Python,
            Self::Bash => Language::Bash,
            Self::Javascript => Language::Javascript,
            Self::Typescript => Language::Typescript,
        }
    }
}

/// Code that is run again and again in one place.
pub struct Runner<'a> {
    /// The server.
    pub client: &'a Client,
    /// The sandbox.
    pub sandbox: &'a SandboxId,
    /// What is asked for, but for the source.
    pub spec: ExecSpec,
}

/// Runs it, or what is typed.
pub async fn run(connection: &Connection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let source = source(&arguments)?;
    let code = Code {
        language: arguments.language.map(LanguageName::of_server),
        context: arguments.context.clone(),
        requirements: arguments.requirements.clone(),
        install_missing: arguments.install_missing,
        ..Code::default()
    };
    // A cell cannot wait for its reader: its context has others to serve.
    let bounded = arguments.json || arguments.context.is_some() || source.is_none();
    let spec = ExecSpec {
        code: Some(code),
        deadline_ms: arguments.timeout.0.map(request::millis),
        // One object in memory is bounded; what is passed on need not be.
        output: if bounded { OutputMode::Keep } else { OutputMode::Block },
        ..ExecSpec::default()
    };
    let runner = Runner { client: &client, sandbox: &arguments.sandbox, spec };
    let results = Results::keeping(arguments.images);
    match source {
        Some(source) => runner.run(source, &mut Output::showing(arguments.json, results)).await,
        None if arguments.json => Err(Error::invalid(
            "there is no code to run, and --json is not for typing",
            "Give a file, -c or standard input.",
        )),
        None => repl::run(runner, results).await,
    }
}

impl Runner<'_> {
    /// Runs code to its end; the exit code is its own.
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
                show::note(&format!("left before the end was known; see: belljar attach {sandbox} {id}"));
                ExitCode::from(crate::FAILED)
            }
        })
    }
}

/// The code, or nothing where it is to be typed.
fn source(arguments: &Arguments) -> Result<Option<String>, Error> {
    if arguments.code.is_some() {
        return Ok(arguments.code.clone());
    }
    let file = arguments.file.as_deref().filter(|path| *path != Path::new("-"));
    let failed = |what: &str, error: std::io::Error| {
        Error::invalid(
            format!("cannot read the code in {what}: {error}"),
            "Name a file of text that you may read.",
        )
    };
    // What is too long is refused for its length, not read to its end.
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

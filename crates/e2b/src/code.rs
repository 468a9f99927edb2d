//! E2B's code interpreter (running code, and managing contexts), implemented with Bellglass contexts.
//!
//! Python and Bash code runs in a context, which keeps its state between runs. The default is one context per
//! language, but a request can name a different context. A response consists of one JSON object per line, in
//! ASCII. The JavaScript SDK decodes each network chunk separately, and would corrupt a non-ASCII character
//! that is split between two chunks.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use api::code::{Code, ContextInfo, ContextSpec, Language, RunResult};
use api::exec::{ExecSpec, Outcome, Stream};
use api::{ContextId, ErrorCode, ExecId};
use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use node::{Event, Exec};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use control::account::Rate;
use control::audit::Act;
use control::output::Carried;

use super::connect::{Called, Code as Why, ConnectMessage, Failed};
use super::fault::gone;
use super::place::absolute;
use super::results::{ascii, ended, result, text, written};
use super::who::{Coder, Contextual, Inside};

/// Interval between keepalive lines while a run produces no output.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Time for which stderr output is held back, because an exception with the same text may be reported next.
const HELD_FOR: Duration = Duration::from_millis(50);
const HELD_BYTES_MAX: usize = 64 << 10;

/// Error of the code interpreter's routes. Its body is plain text.
pub struct CodeRejection(Failed);

impl<F: Into<Failed>> From<F> for CodeRejection {
    fn from(failed: F) -> Self {
        Self(failed.into())
    }
}

impl IntoResponse for CodeRejection {
    fn into_response(self) -> Response {
        match self.0 {
            Failed::Gone => gone(None),
            Failed::Refused(code, message) => (code.status(), message).into_response(),
        }
    }
}

#[derive(Deserialize)]
pub struct Execute {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct CreateContextRequest {
    language: Option<String>,
    cwd: Option<String>,
}

/// Runs code and streams its output and results. The code is cancelled if the client disconnects.
pub async fn execute(
    Coder(inside): Coder,
    ConnectMessage(ask): ConnectMessage<Execute>,
) -> Result<Response, CodeRejection> {
    let Inside { platform, caller, call, sandbox, .. } = &inside;
    caller.pace(Rate::Exec)?;
    let _launch = caller.share.launch()?;
    let place = caller.share.stream()?;
    let (language, context) = chosen(&inside, &ask).await?;
    let is_python = language == Language::Python;
    let mut env = ask.env_vars.unwrap_or_default();
    if context.is_none() {
        env.entry("E2B_SANDBOX".into()).or_insert_with(|| "true".into());
    }
    let cwd = context.is_none().then(|| inside.home.clone());
    let source = source(language, ask.code);
    // A context already has a language, so a request to run code in a context must not specify one.
    let language = context.is_none().then_some(language);
    let code = Code { source, language, context: context.clone(), ..Code::default() };
    let spec = ExecSpec { code: Some(code), env, cwd, ..ExecSpec::default() };
    let id = ExecId::from_random(node::machine::random()?);
    control::trace::about_exec(sandbox, &id);
    platform.note(caller, Act::Exec, |entry| entry.sandbox(sandbox).exec(&id).command(&spec));
    let (_, exec) = platform.node.start_exec_and_read(call, &id, spec).await?;
    let (carried, held) = (Carried::default(), None);
    let run =
        CodeRun { inside, exec, context, is_python, carried, held, failed: false, over: None, _place: place };
    let body = stream::unfold(CodeResponseState::Running(Box::new(run)), |step| async move {
        match step {
            CodeResponseState::Running(mut run) => {
                let bytes = run.next().await;
                let step = match run.over {
                    None => CodeResponseState::Running(run),
                    Some(Over::Ended) => CodeResponseState::Done,
                    Some(Over::Lost) => CodeResponseState::Lost,
                };
                Some((Ok(bytes), step))
            }
            CodeResponseState::Lost => Some((
                Err(io::Error::other("the sandbox ended while the code was running")),
                CodeResponseState::Done,
            )),
            CodeResponseState::Done => None,
        }
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::OK, headers, Body::from_stream(body)).into_response())
}

/// Creates a context.
pub async fn create(
    Contextual(inside): Contextual,
    ConnectMessage(ask): ConnectMessage<CreateContextRequest>,
) -> Result<Json<Value>, CodeRejection> {
    let language = language(ask.language.as_deref())?;
    let cwd = absolute(ask.cwd.as_deref().unwrap_or_default(), &inside.home);
    let id = ContextId::from_random(node::machine::random()?);
    Ok(Json(shown(&made(&inside, &id, language, cwd).await?)))
}

/// Lists all contexts.
pub async fn list(Contextual(inside): Contextual) -> Result<Json<Value>, CodeRejection> {
    let contexts = inside.call.contexts().await?;
    Ok(Json(contexts.iter().map(shown).collect()))
}

/// Removes a context.
pub async fn remove(
    Contextual(inside): Contextual,
    Path(named): Path<String>,
) -> Result<StatusCode, CodeRejection> {
    let id = known(&inside, &named).await?.id;
    inside
        .platform
        .note(&inside.caller, Act::ContextRemove, |entry| entry.sandbox(&inside.sandbox).detail(id.as_str()));
    inside.call.remove_context(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Restarts the interpreter of a context.
pub async fn restart(
    Contextual(inside): Contextual,
    Path(named): Path<String>,
) -> Result<StatusCode, CodeRejection> {
    let id = known(&inside, &named).await?.id;
    inside.platform.note(&inside.caller, Act::ContextRestart, |entry| {
        entry.sandbox(&inside.sandbox).detail(id.as_str())
    });
    inside.call.restart_context(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the code to run. Empty code must not fail, so it becomes a statement that has no effect. In Python, a line that starts with `!`
/// is a shell command.
fn source(language: Language, code: String) -> String {
    match (code.trim(), language) {
        ("", Language::Python) => "pass".into(),
        ("", Language::Bash) => ":".into(),
        ("", Language::Javascript | Language::Typescript) => ";".into(),
        (_, Language::Python) => shelled(&code),
        (_, Language::Bash | Language::Javascript | Language::Typescript) => code,
    }
}

/// Returns the language and the context in which to run the code: the context that the request names, or the
/// default context of the language. For a language without contexts, the context is `None`.
async fn chosen(inside: &Inside, ask: &Execute) -> Called<(Language, Option<ContextId>)> {
    match (&ask.context_id, &ask.language) {
        (Some(_), Some(_)) => Err(Failed::of(Why::InvalidArgument, "name either a context or a language")),
        (Some(named), None) => {
            let ContextInfo { id, language, .. } = known(inside, named).await?;
            Ok((language, Some(id)))
        }
        (None, name) => {
            let language = language(name.as_deref())?;
            let id = match language {
                Language::Python => "e2bpython",
                Language::Bash => "e2bbash",
                // Each run of these languages is a separate process.
                Language::Javascript | Language::Typescript => return Ok((language, None)),
            };
            let id: ContextId = id.parse().map_err(|_| missing(id))?;
            made(inside, &id, language, inside.home.clone()).await?;
            Ok((language, Some(id)))
        }
    }
}

async fn made(inside: &Inside, id: &ContextId, language: Language, cwd: String) -> Called<ContextInfo> {
    let env = BTreeMap::from([("E2B_SANDBOX".to_owned(), "true".to_owned())]);
    let spec = ContextSpec { language, cwd: Some(cwd), env };
    spec.check()?;
    let made = inside.call.context(id, spec).await;
    match made {
        Err(error) if error.to_api().code == ErrorCode::Conflict => known(inside, id.as_str()).await,
        made => Ok(made?),
    }
}

async fn known(inside: &Inside, named: &str) -> Called<ContextInfo> {
    let contexts = inside.call.contexts().await?;
    contexts.into_iter().find(|info| info.id.as_str() == named).ok_or_else(|| missing(named))
}

fn missing(named: &str) -> Failed {
    let shown: String = named.chars().take(64).collect();
    Failed::of(Why::NotFound, format!("Context {shown} not found"))
}

fn language(name: Option<&str>) -> Called<Language> {
    match name.unwrap_or("python") {
        "python" | "python3" => Ok(Language::Python),
        "bash" => Ok(Language::Bash),
        "javascript" | "js" => Ok(Language::Javascript),
        "typescript" | "ts" => Ok(Language::Typescript),
        other => {
            let shown: String = other.chars().take(32).collect();
            let told =
                format!("language {shown} is not supported; use python, bash, javascript or typescript");
            Err(Failed::of(Why::InvalidArgument, told))
        }
    }
}

fn shown(info: &ContextInfo) -> Value {
    json!({ "id": info.id, "language": info.language.name(), "cwd": info.cwd })
}

/// State of a response body.
enum CodeResponseState {
    Running(Box<CodeRun>),
    /// The outcome of the run is unknown. The response ends with a broken connection, because the SDKs report
    /// success after any complete response.
    Lost,
    Done,
}

/// How a run ended: with a known outcome, or without one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Ended,
    Lost,
}

/// A run in progress.
struct CodeRun {
    inside: Inside,
    exec: Exec,
    context: Option<ContextId>,
    is_python: bool,
    carried: Carried,
    /// Latest output to stderr, held back for a moment. An exception that ends the code is written to stderr
    /// and also reported as a result, but clients must receive it only once.
    held: Option<String>,
    /// True if an error result was sent.
    failed: bool,
    over: Option<Over>,
    _place: OwnedSemaphorePermit,
}

impl CodeRun {
    /// Returns the next lines as a chunk. The chunk is never empty, because clients would interpret an empty
    /// chunk as an empty line.
    async fn next(&mut self) -> Bytes {
        loop {
            let within = if self.held.is_some() { HELD_FOR } else { ALIVE_EVERY };
            let lines = match timeout(within, self.exec.next()).await {
                Err(_) if self.held.is_some() => self.let_go().into_iter().collect(),
                Err(_) => vec![json!({ "type": "keepalive" })],
                Ok(Ok(Some(event))) => self.told(event).await,
                Ok(Ok(None) | Err(_)) => self.lost(),
            };
            if !lines.is_empty() {
                return lines.iter().map(ascii).collect::<String>().into();
            }
        }
    }

    fn lost(&mut self) -> Vec<Value> {
        self.over = Some(Over::Lost);
        let last = json!({ "type": "unexpected_end_of_execution" });
        self.rest(&[Stream::Stdout, Stream::Stderr]).into_iter().chain([last]).collect()
    }

    async fn told(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Data { stream, offset, bytes } => {
                // Consecutive output to stderr may belong to the same exception.
                let goes_on = stream == Stream::Stderr
                    && self.held.as_ref().is_none_or(|held| held.len() < HELD_BYTES_MAX);
                let mut lines: Vec<_> = if goes_on { None } else { self.let_go() }.into_iter().collect();
                for line in self.carried.take(stream, offset, &bytes) {
                    match (written(&line), stream) {
                        (Some(text), Stream::Stderr) => self.held.get_or_insert_default().push_str(&text),
                        (Some(words), _) => lines.push(text("stdout", &words)),
                        (None, _) => {}
                    }
                }
                lines
            }
            Event::Gap { stream, from, to } => {
                let mut lines = self.rest(&[stream]);
                lines.push(text("stderr", &format!("[{} bytes of output were dropped]\n", to - from)));
                lines
            }
            Event::Result { line, .. } => {
                if let (RunResult::Error(exception), Some(held)) = (&line.result, &mut self.held)
                    && let Some(before) = held.trim_end().strip_suffix(exception.text.trim_end())
                {
                    *held = before.to_owned();
                }
                let mut lines = self.rest(&[Stream::Stdout, Stream::Stderr]);
                self.failed |= matches!(line.result, RunResult::Error(_) | RunResult::Refused { .. });
                lines.extend(result(line.result));
                lines
            }
            Event::End(end) if matches!(end.outcome, Outcome::SandboxLost { .. } | Outcome::Unknown) => {
                self.lost()
            }
            Event::End(end) => {
                self.over = Some(Over::Ended);
                let mut lines = self.rest(&[Stream::Stdout, Stream::Stderr]);
                lines.extend(ended(&end, self.is_python).filter(|_| !self.failed));
                lines.extend(self.count().await);
                lines.push(json!({ "type": "end_of_execution" }));
                lines
            }
        }
    }

    /// Returns the held-back stderr output as a line, if there is any.
    fn let_go(&mut self) -> Option<Value> {
        self.held.take().filter(|held| !held.is_empty()).map(|held| text("stderr", &held))
    }

    /// Returns lines with the held-back stderr output, and with the incomplete characters at the end of these
    /// streams.
    fn rest(&mut self, streams: &[Stream]) -> Vec<Value> {
        let mut lines: Vec<_> = self.let_go().into_iter().collect();
        for stream in streams {
            let name = if *stream == Stream::Stderr { "stderr" } else { "stdout" };
            let carried = self.carried.flush(*stream);
            lines.extend(carried.iter().filter_map(written).map(|words| text(name, &words)));
        }
        lines
    }

    /// Returns a line with the number of cells that the context has run.
    async fn count(&self) -> Option<Value> {
        let id = self.context.as_ref()?;
        let info = known(&self.inside, id.as_str()).await.ok()?;
        Some(json!({ "type": "number_of_executions", "execution_count": info.cells }))
    }
}

impl Drop for CodeRun {
    fn drop(&mut self) {
        if self.over.is_none() {
            let exec = self.inside.call.exec_reader(self.exec.id().clone());
            tokio::spawn(async move {
                // Ignore an error: the exec may have ended in the meantime.
                let _ = exec.cancel().await;
            });
        }
    }
}

/// Converts each line that begins with `!` into a shell call, as notebooks do. No valid line of Python begins
/// with `!`.
fn shelled(code: &str) -> String {
    let mut open: Option<&str> = None;
    let mut lines = Vec::new();
    for line in code.lines() {
        let command = line.trim_start().strip_prefix('!').filter(|_| open.is_none());
        match command {
            Some(command) => {
                let indent = line.len() - line.trim_start().len();
                let quoted = Value::from(command.trim()).to_string();
                lines.push(format!("{}__import__(\"os\").system({quoted})", " ".repeat(indent)));
            }
            None => lines.push(line.to_owned()),
        }
        // Lines inside a triple-quoted string are not code, so track where such strings begin and end.
        let mut rest = line;
        loop {
            let next = match open {
                Some(quotes) => rest.find(quotes).map(|at| (at, quotes)),
                None => {
                    ["\"\"\"", "'''"].iter().filter_map(|quotes| Some((rest.find(quotes)?, *quotes))).min()
                }
            };
            let Some((at, quotes)) = next else { break };
            open = if open.is_some() { None } else { Some(quotes) };
            rest = rest.get(at + quotes.len()..).unwrap_or_default();
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_code_runs_in_every_language_and_only_python_has_shell_lines() {
        let all = [Language::Python, Language::Bash, Language::Javascript, Language::Typescript];
        for (language, statement) in all.into_iter().zip(["pass", ":", ";", ";"]) {
            assert_eq!(source(language, " \n".into()), statement);
            let shelled = source(language, "!true".into()) != "!true";
            assert_eq!(shelled, language == Language::Python, "{language:?}");
        }
    }

    #[test]
    fn a_line_with_an_exclamation_mark_is_for_a_shell() {
        let code = "x = 1\nif x:\n  !pip install 'a' \"b\"\ns = \"\"\"\n!no\n\"\"\"\n!ls";
        let shelled = shelled(code);
        let lines: Vec<_> = shelled.lines().collect();
        assert_eq!(lines[2], r#"  __import__("os").system("pip install 'a' \"b\"")"#);
        assert_eq!((lines[4], lines[6]), ("!no", r#"__import__("os").system("ls")"#));
        assert_eq!(super::shelled("print('''a''') # !x"), "print('''a''') # !x");
    }
}

//! E2B's code interpreter (running code, and managing contexts), implemented with Bellglass contexts.
//!
//! Python and Bash code runs in a context, which keeps its state between runs. The default is one context per
//! language, but a request can name a different context. A response consists of one JSON object per line, in
//! ASCII. The JavaScript SDK decodes each network chunk separately, and would corrupt a non-ASCII character
//! that is split between two chunks.
//!
//! | module | contents |
//! |---|---|
//! | `run` | a run of code, whose output is streamed |
//! | `source` | the source text of a run |

mod run;
mod source;

use std::collections::BTreeMap;

use api::code::{Code, ContextInfo, ContextSpec, Language};
use api::exec::ExecSpec;
use api::{ContextId, ErrorCode, ExecId};
use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use control::account::Rate;
use control::audit::Act;

use super::connect::{Called, Code as Why, ConnectMessage, Failed};
use super::fault::gone;
use super::place::absolute;
use super::who::{Coder, Contextual, Inside};
use run::CodeRun;
use source::source;

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
    Ok(CodeRun::new(inside, exec, context, is_python, place).into_response())
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

//! Runs code: as a cell of a context, as a fork of the parent interpreter, or as a command.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use api::code::{Code, Language};
use api::exec::{ExecSpec, Stream};
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use bytes::Bytes;
use rustix::process::Pid;
use serde::Serialize;

use crate::context::NO_GROUP;
use crate::exec::GuestExec;
use crate::launch::{DIRECTORY, Ends, Theirs, environment, on_pipes};
use crate::parent::{Fork, ForkKind};
use crate::records::{ChannelRecord, Records};
use crate::said::{CodeMessage, StartRefusal, shown, understand};
use crate::sweep::{self, Whom};
use crate::table::{Child, ExecTable};
use crate::watched::Watched;

/// Timeout from the fork to the first line of code, if there are no packages to install first. It normally
/// takes milliseconds.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// Extra time that a package installer gets to exit after its time limit.
const INSTALL_OVER: Duration = Duration::from_secs(30);

/// Node.js option that defines `require`. Node.js treats code with a top-level `await` as a module, and
/// modules have no `require`. With this option, code can use both.
const REQUIRE: &str = concat!(
    "--import=data:text/javascript,import{createRequire as c}from\"node:module\";",
    "globalThis.require=c(process.cwd()+\"/\")"
);
/// Shell script that runs code as a script or as a module. Node.js treats `f(await x)` as a script with a
/// syntax error, not as a module. The shell script therefore first checks whether Node.js can parse the code
/// as a script.
const SCRIPT_OR_MODULE: &str = r#"
command -v node >/dev/null || { echo "JavaScript requires Node.js: use the template node, or add { apt = [\"nodejs\"] } to the recipe" >&2; exit 127; }
if printf '%s\n' "$2" | node --check --input-type=commonjs - >/dev/null 2>&1
then set -- "$1" "$2" commonjs
else set -- "$1" "$2" module
fi
printf '%s\n' "$2" | exec node "$1" "--input-type=$3" -"#;
/// Shell script that removes types with esbuild, because Debian's Node.js cannot run TypeScript.
const WITHOUT_TYPES: &str = r#"command -v esbuild >/dev/null || { echo "TypeScript requires esbuild: add { apt = [\"esbuild\"] } to the template's recipe" >&2; exit 127; }
set -- "$1" "$(esbuild --loader=ts --log-level=error --target=node20 || echo '#')"
[ "$2" != '#' ] || exit 1"#;

/// A request to run code.
pub struct Job {
    /// The request, except for its code.
    pub spec: ExecSpec,
    /// The code.
    pub code: Code,
}

/// A process that was started to run code.
pub struct Running {
    /// Output streams of the process.
    pub streams: Vec<(Stream, Rc<Watched>)>,
    /// Channel for messages to and from the process.
    pub channel: Rc<Records>,
}

/// Message to a process that runs code.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tell<'a> {
    /// Starts the only run of the process.
    Run(RunSpec<'a>),
    /// Starts the next cell.
    Cell(CellSpec<'a>),
    /// Requests the variables.
    Variables {},
    /// Requests confirmation that no earlier interrupt is pending.
    Settle {},
}

/// Message that starts a cell.
#[derive(Serialize)]
pub struct CellSpec<'a> {
    /// Number of the cell, counted from 1.
    pub number: u64,
    /// Environment variables of this cell only.
    pub env: &'a BTreeMap<String, String>,
    /// Code and packages, as for a run.
    #[serde(flatten)]
    pub run: RunSpec<'a>,
}

/// Message that starts a run.
#[derive(Serialize)]
pub struct RunSpec<'a> {
    code: &'a str,
    requirements: &'a [String],
    install_missing: bool,
    install_ms: u64,
}

impl<'a> RunSpec<'a> {
    /// Builds the message for this code.
    pub fn of(code: &'a Code) -> Self {
        Self {
            code: &code.source,
            requirements: &code.requirements,
            install_missing: code.install_missing,
            install_ms: code.install_ms.unwrap_or(limits::INSTALL_MS),
        }
    }
}

/// Parameters of a fork.
pub struct Birth<'a> {
    /// User of the fork.
    pub uid: u32,
    /// Exec group of the fork.
    pub group: u32,
    /// Working directory and environment variables.
    pub spec: &'a ExecSpec,
    /// Purpose of the fork.
    pub kind: ForkKind,
}

/// Forks a process that will run code.
pub async fn fork(table: &Rc<ExecTable>, birth: &Birth<'_>, child: Child) -> Result<(Running, Pid), Error> {
    // In a user-space kernel, a process can reach the descriptors of other processes through `/proc`, so root
    // owns the pipes: see `launch`.
    let owner = if table.in_user_kernel() { 0 } else { birth.uid };
    let broken = |error: std::io::Error| did_not_begin(&error.to_string());
    let (Ends { streams, .. }, Theirs { stdin, stdout, stderr }) = on_pipes(false, owner).map_err(broken)?;
    let (channel, theirs) = Records::pair().map_err(broken)?;
    let fork = Fork {
        run: birth.group,
        uid: birth.uid,
        group: birth.group,
        cwd: birth.spec.cwd.as_deref().unwrap_or(DIRECTORY),
        env: environment(birth.spec),
        kind: birth.kind,
    };
    let descriptors: [OwnedFd; 4] = [stdin, stdout, stderr, theirs];
    let pid = table.parent.fork(table, &fork, descriptors, child).await?;
    Ok((Running { streams, channel: Rc::new(channel) }, pid))
}

/// Starts code as a cell, a Python run or a command. Like [`ExecTable::begin`], it never awaits.
pub fn begin(
    table: &Rc<ExecTable>,
    id: ExecId,
    mut spec: ExecSpec,
    fingerprint: u64,
) -> Result<Rc<GuestExec>, Error> {
    let new = |spec: &ExecSpec, group| {
        Rc::new(GuestExec::new(id.clone(), spec, fingerprint, group, Rc::clone(table.memory())))
    };
    let language = spec.code.as_ref().and_then(|code| code.language).unwrap_or_default();
    if let Some(context) = spec.code.as_ref().and_then(|code| code.context.as_ref()) {
        let context = table.contexts.find(context)?;
        let exec = new(&spec, NO_GROUP);
        let job = Job { code: spec.code.take().unwrap_or_default(), spec };
        context.admits(&job.code)?;
        table.know(&exec, id.clone());
        // The cell is now queued, which counts as a successful start. Its outcome reports later failures.
        exec.judge(Ok(()));
        tokio::task::spawn_local(context.cell(Rc::clone(table), Rc::clone(&exec), job));
        return Ok(exec);
    }
    if language == Language::Python {
        let exec = new(&spec, table.group());
        let job = Job { code: spec.code.take().unwrap_or_default(), spec };
        table.know(&exec, id.clone());
        tokio::task::spawn_local(run(Rc::clone(table), id, Rc::clone(&exec), job));
        return Ok(exec);
    }
    let source = spec.code.take().unwrap_or_default().source;
    let (command, input) = command(language, spec, &source)?;
    let exec = table.begin(id, command, fingerprint)?;
    if let Some(input) = input {
        tokio::task::spawn_local(feed(Rc::clone(&exec), input));
    }
    Ok(exec)
}

/// Runs Python code from its fork to its end.
async fn run(table: Rc<ExecTable>, id: ExecId, exec: Rc<GuestExec>, job: Job) {
    match begin_python(&table, &exec, &job).await {
        Ok(running) => {
            table.judge(&id, &exec, Ok(()));
            let heard = attend(Rc::clone(&exec), running.streams.clone(), running.channel);
            let heard = tokio::task::spawn_local(heard);
            exec.live(running.streams).await;
            heard.abort();
        }
        Err(error) => {
            table.judge(&id, &exec, Err(error));
        }
    }
}

/// Forks the process and sends it the code. Waits until the process reports that the code begins, unless
/// packages are installed first.
async fn begin_python(
    table: &Rc<ExecTable>,
    exec: &Rc<GuestExec>,
    Job { spec, code }: &Job,
) -> Result<Running, Error> {
    let birth =
        Birth { uid: spec.uid.unwrap_or(limits::UID), group: exec.group(), spec, kind: ForkKind::Run };
    let (running, _pid) = fork(table, &birth, Child::Exec(Rc::clone(exec))).await?;
    let run = RunSpec::of(code);
    let install = Duration::from_millis(run.install_ms);
    let tell = Tell::Run(run);
    let told = running.channel.write(&tell);
    if !code.requirements.is_empty() {
        exec.prepare(install + INSTALL_OVER);
        let _ = tokio::time::timeout(BEGIN_WITHIN, told).await;
        return Ok(running);
    }
    let first = async {
        let _ = told.await;
        running.channel.read().await
    };
    let first = tokio::time::timeout(BEGIN_WITHIN, first).await.ok().flatten();
    match first.as_ref().and_then(|record| understand(&record.bytes)) {
        Some(CodeMessage::Refused(StartRefusal { message, .. })) => {
            // A process that refused to begin must not continue to run.
            sweep::kill(Whom::Group(exec.group())).await;
            return Err(cannot_begin(&message));
        }
        Some(CodeMessage::Result(result)) => {
            let patience = first.as_ref().map_or(Duration::ZERO, ChannelRecord::patience);
            shown(exec, &running.streams, result, patience, &running.channel).await;
        }
        // If the process ended before its first message, the exec's outcome reports that.
        _ => {}
    }
    exec.clock();
    Ok(running)
}

/// Handles the messages of a run until its process is gone.
async fn attend(exec: Rc<GuestExec>, streams: Vec<(Stream, Rc<Watched>)>, channel: Rc<Records>) {
    while let Some(record) = channel.read().await {
        match understand(&record.bytes) {
            Some(CodeMessage::Begun(_)) => exec.clock(),
            Some(CodeMessage::Result(result)) => {
                shown(&exec, &streams, result, record.patience(), &channel).await;
            }
            // Ignore all other messages: a process that sends them can affect only its own run.
            _ => {}
        }
    }
}

/// Writes code to the standard input of the program that runs it, then closes standard input.
async fn feed(exec: Rc<GuestExec>, input: Bytes) {
    // Ignore an error: a program that does not read all the code has ended, or reports an error in its
    // output.
    let _ = exec.stdin.write(0, &input).await;
    exec.stdin.close();
}

/// Returns the command that runs code of this language, and its standard input.
fn command(language: Language, spec: ExecSpec, source: &str) -> Result<(ExecSpec, Option<Bytes>), Error> {
    let read = if language == Language::Typescript { WITHOUT_TYPES } else { r#"set -- "$1" "$(cat)""# };
    let node = format!("{read}{SCRIPT_OR_MODULE}");
    let argv: &[&str] = match language {
        Language::Bash if source.len() > limits::WORD_BYTES_MAX => {
            let (bytes, most) = (source.len() as u64, limits::WORD_BYTES_MAX as u64);
            return Err(limits::exceeded("the length of code.source for bash in bytes", bytes, most));
        }
        Language::Bash => &["bash", "-c", source, "bash"],
        Language::Javascript if !source.contains("await") => &["node", REQUIRE, "-"],
        Language::Javascript | Language::Typescript | Language::Python => {
            &["sh", "-c", &node, "node", REQUIRE]
        }
    };
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let input = (language != Language::Bash).then(|| Bytes::copy_from_slice(source.as_bytes()));
    Ok((ExecSpec { argv, code: None, stdin: input.is_some(), ..spec }, input))
}

/// Returns the error for code that could not begin, with the reason that its process reported.
pub fn cannot_begin(why: &str) -> Error {
    Error {
        code: ErrorCode::SpawnFailed,
        message: format!("cannot start the code: {why}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Check that the working directory exists and is accessible. Python contexts require `ipython` in the template.".into(),
    }
}

/// Returns the error for code that did not begin, if its process reported no reason. `why` is the guest's
/// explanation.
pub fn did_not_begin(why: &str) -> Error {
    Error {
        retry: Retry::Safe,
        fix:
            "Retry. If the error persists, check the memory and processes of the sandbox, or create another sandbox."
                .into(),
        ..cannot_begin(why)
    }
}

//! Runs code: as a cell of a context, as a fork of the parent interpreter, or as a command.

use std::rc::Rc;
use std::time::Duration;

use api::code::Language;
use api::exec::{ExecSpec, Stream};
use api::{Error, ExecId, limits};
use bytes::Bytes;

use crate::context::NO_GROUP;
use crate::contexts::Contexts;
use crate::exec::GuestExec;
use crate::interpreter::{Birth, Job, RunSpec, Running, Tell, cannot_begin, fork};
use crate::parent::{ForkKind, Parent};
use crate::records::{ChannelRecord, Records};
use crate::said::{CodeMessage, StartRefusal, shown, understand};
use crate::sweep::{self, Whom};
use crate::table::ExecTable;
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

/// Starts code as a cell, a Python run or a command. Like [`ExecTable::begin`], it never awaits.
pub fn begin(
    table: &Rc<ExecTable>,
    contexts: &Contexts,
    parent: &Rc<Parent>,
    id: ExecId,
    mut spec: ExecSpec,
    fingerprint: u64,
) -> Result<Rc<GuestExec>, Error> {
    table.make_room()?;
    let kills = parent.processes().memory();
    let new = |spec: &ExecSpec, group| {
        Rc::new(GuestExec::new(id.clone(), spec, fingerprint, group, Rc::clone(kills)))
    };
    let language = spec.code.as_ref().and_then(|code| code.language).unwrap_or_default();
    if let Some(context) = spec.code.as_ref().and_then(|code| code.context.as_ref()) {
        let context = contexts.find(context)?;
        let exec = new(&spec, NO_GROUP);
        let job = Job { code: spec.code.take().unwrap_or_default(), spec };
        context.admits(&job.code)?;
        table.know(&exec, id.clone(), None);
        // The cell is now queued, which counts as a successful start. Its outcome reports later failures.
        exec.judge(Ok(()));
        tokio::task::spawn_local(context.cell(Rc::clone(&exec), job));
        return Ok(exec);
    }
    if language == Language::Python {
        let group = parent.processes().group();
        let exec = new(&spec, group.number());
        let job = Job { code: spec.code.take().unwrap_or_default(), spec };
        table.know(&exec, id.clone(), Some(group));
        tokio::task::spawn_local(run(Rc::clone(table), Rc::clone(parent), id, Rc::clone(&exec), job));
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
async fn run(table: Rc<ExecTable>, parent: Rc<Parent>, id: ExecId, exec: Rc<GuestExec>, job: Job) {
    match begin_python(&parent, &exec, &job).await {
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
    parent: &Parent,
    exec: &Rc<GuestExec>,
    Job { spec, code }: &Job,
) -> Result<Running, Error> {
    let birth =
        Birth { uid: spec.uid.unwrap_or(limits::UID), group: exec.group(), spec, kind: ForkKind::Run };
    let (running, _pid) = fork(parent, &birth, Rc::clone(exec) as _).await?;
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

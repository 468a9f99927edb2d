//! `bellglass build-sandbox`, `sandbox-status` and `sandbox-test`: show and test the backend on this machine
//! (requirement A13.05).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::{Error, ExecId};
use node::backend::Choice;
use node::template::{Store, Template};
use node::{Machine, Sandbox, machine};
use runtime::{Runtime, Spec, Tier};

use crate::command::{run, template};
use crate::{LocalOptions, show};

/// Default template.
const USUAL: &str = "interpreter";
/// Time limit of each check.
const CHECK_MS: u64 = 20_000;
/// Deadline of the check that must time out.
const SHORT_MS: u64 = 1000;
/// Memory limit of test sandboxes.
const MEMORY_BYTES: u64 = 128 << 20;

/// Arguments of `bellglass build-sandbox`.
#[derive(clap::Args)]
pub struct Build {
    /// Recipe that comes with Bellglass (base, python, node, analysis, interpreter) or a recipe file. If run as root, also the
    /// name of an existing template to load into an engine.
    #[arg(default_value = USUAL)]
    recipe: String,
}

/// Arguments of `bellglass sandbox-status`.
#[derive(clap::Args)]
pub struct Status {
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Arguments of `bellglass sandbox-test`.
#[derive(clap::Args)]
pub struct Test {
    /// Template to test.
    #[arg(default_value = USUAL)]
    template: String,
}

/// Check of one property of a sandbox, with its description, script and expected result.
struct Check {
    what: &'static str,
    script: &'static str,
    deadline_ms: u64,
    holds: fn(&Outcome, &str) -> bool,
}

const CHECKS: [Check; 6] = [
    Check {
        what: "code runs and its output is returned",
        script: "echo out; exit 7",
        deadline_ms: CHECK_MS,
        holds: |outcome, said| *outcome == Outcome::Exited { code: 7 } && said == "out\n",
    },
    Check {
        what: "code runs without privileges",
        script: "id -u; grep CapEff /proc/self/status",
        deadline_ms: CHECK_MS,
        holds: |_, said| said == "1000\nCapEff:\t0000000000000000\n",
    },
    Check {
        what: "the system is read-only",
        script: "if touch /usr/x 2>/dev/null || touch /etc/x 2>/dev/null; then echo changed; else touch /workspace/x && echo workspace only; fi",
        deadline_ms: CHECK_MS,
        holds: |_, said| said == "workspace only\n",
    },
    Check {
        what: "there is no network access",
        script: "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route | wc -l",
        deadline_ms: CHECK_MS,
        holds: |_, said| said == "lo\n0\n",
    },
    Check {
        what: "the time limit is enforced",
        script: "while :; do :; done",
        deadline_ms: SHORT_MS,
        holds: |outcome, _| *outcome == Outcome::Timeout,
    },
    Check {
        what: "the memory limit is enforced",
        script: "head -c 1000000000 /dev/zero | tail -c 1000000000 | wc -c",
        deadline_ms: CHECK_MS,
        holds: |outcome, _| *outcome == Outcome::Oom,
    },
];

/// Prepares a template on the backend in use, and tests a sandbox with this template.
pub async fn build(place: &LocalOptions, arguments: Build) -> Result<ExitCode, Error> {
    let machine = Machine::open(&place.data).map_err(|error| error.to_api())?;
    let choice = machine.choose(&place.backends).await;
    let runtime = choice.maker().map_err(|error| error.to_api())?;
    show::note(&format!("Using backend: {}", runtime.name()));
    let name = template::make_ready(&machine, runtime.as_ref(), &arguments.recipe).await?;
    try_out(&machine, &runtime, &Store::new(&place.data).load(&name).map_err(|error| error.to_api())?).await
}

/// Prints the backend in use and the templates that are ready on it. Exits with 1 if no template is ready.
pub async fn status(place: &LocalOptions, arguments: Status) -> Result<ExitCode, Error> {
    let machine = Machine::open(&place.data).map_err(|error| error.to_api())?;
    let choice = machine.choose(&place.backends).await;
    let mut templates = Vec::new();
    for template in Store::new(&place.data).list().map_err(|error| error.to_api())? {
        let ready = is_ready(&machine, &choice, &template).await;
        templates.push((template.name, ready));
    }
    let works = !choice.is_none() && templates.iter().any(|(_, ready)| *ready);
    if arguments.json {
        let ready = |(name, ready): &(String, bool)| serde_json::json!({ "name": name, "ready": ready });
        show::value(&serde_json::json!({
            "works": works,
            "backends": choice.considered,
            "templates": templates.iter().map(ready).collect::<Vec<_>>(),
        }))?;
    } else {
        print(&choice, &templates)?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests a sandbox that is created from a template.
pub async fn test(place: &LocalOptions, arguments: Test) -> Result<ExitCode, Error> {
    let machine = Machine::open(&place.data).map_err(|error| error.to_api())?;
    run::tidy(&machine).await?;
    let choice = machine.choose(&place.backends).await;
    let runtime = choice.at_least(Tier::Container).map_err(|error| error.to_api())?;
    show::note(&choice.words());
    let template = Store::new(&place.data).load(&arguments.template).map_err(|error| error.to_api())?;
    try_out(&machine, &runtime, &template).await
}

fn print(choice: &Choice, templates: &[(String, bool)]) -> Result<(), Error> {
    show::line(&choice.words())?;
    show::line("")?;
    let row = |one: &api::server::BackendStatus| {
        let why = if one.fix.is_empty() { one.why.clone() } else { format!("{}. {}", one.why, one.fix) };
        vec![one.name.clone(), if one.used { "used" } else { "not used" }.to_owned(), why]
    };
    show::table(&["backend", "state", "why"], &choice.considered.iter().map(row).collect::<Vec<_>>())?;
    for one in choice.considered.iter().filter(|one| !one.lacks.is_empty()) {
        show::line(&format!(
            "\n{} lacks these protections, which a container has if Bellglass runs it as root:",
            one.name
        ))?;
        for lack in &one.lacks {
            show::line(&format!("  {lack}"))?;
        }
    }
    show::line("")?;
    if templates.is_empty() {
        return show::line(&format!("No templates; build one with: bellglass build-sandbox {USUAL}"));
    }
    let is_daytona = choice.runtimes.first().is_some_and(|one| one.name() == runtime::daytona::NAME);
    let row = |(name, ready): &(String, bool)| {
        let state = match ready {
            true => "ready".to_owned(),
            false if is_daytona => "missing: Daytona has no snapshot of this template".to_owned(),
            false => format!("missing; to build it: bellglass build-sandbox {name}"),
        };
        vec![name.clone(), state]
    };
    show::table(&["template", "here"], &templates.iter().map(row).collect::<Vec<_>>())
}

/// Returns true if a sandbox could be created from a template right now.
async fn is_ready(machine: &Machine, choice: &Choice, template: &Template) -> bool {
    let Some(runtime) = choice.runtimes.first().filter(|_| !choice.is_none()) else { return false };
    if !runtime.properties().takes_images {
        return template.layer_directories(machine.data()).iter().all(|layer| layer.exists());
    }
    runtime.has_image(&template.image()).await.unwrap_or(false)
}

/// Runs all checks in one sandbox, and prints the results as a table.
async fn try_out(
    machine: &Machine,
    runtime: &Arc<dyn Runtime>,
    template: &Template,
) -> Result<ExitCode, Error> {
    let (layers, image) = node::template::root(machine.data(), &template.layers);
    let limits = Limits { memory_bytes: MEMORY_BYTES, ttl_ms: 10 * CHECK_MS, ..Limits::default() };
    let limits = runtime.within(limits);
    let spec = Spec {
        layers,
        image,
        limits,
        profile: template.posture.profile(),
        guest: machine.guest().to_owned(),
    };
    let id = machine::fresh_id().map_err(|error| error.to_api())?;
    let sandbox = Sandbox::start(Arc::clone(runtime), id, &spec).await.map_err(|error| error.to_api())?;
    let tried = check_all(&sandbox).await;
    sandbox.stop(Duration::ZERO).await.map_err(|error| error.to_api())?;
    let (rows, holds) = tried?;
    show::table(&["check", "verdict"], &rows)?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn check_all(sandbox: &Sandbox) -> Result<(Vec<Vec<String>>, bool), Error> {
    let (mut rows, mut all) = (Vec::new(), true);
    for (number, check) in (2..).zip(&CHECKS) {
        let spec = ExecSpec {
            argv: vec!["/bin/sh".into(), "-c".into(), check.script.into()],
            deadline_ms: Some(check.deadline_ms),
            ..ExecSpec::default()
        };
        let exec = sandbox.exec(ExecId::from_random([number; 16]), &spec).await;
        let ended = exec.map_err(|error| error.to_api())?.collect().await.map_err(|error| error.to_api())?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let holds = (check.holds)(&ended.end.outcome, &said);
        all &= holds;
        let verdict = match holds {
            true => "ok".to_owned(),
            false => format!("failed: {:?}, output: {}", ended.end.outcome, show::escape(said.trim())),
        };
        rows.push(vec![check.what.to_owned(), verdict]);
    }
    Ok((rows, all))
}

//! `bellglass run`: runs one command in a new sandbox, on this machine or on a server.
//!
//! Streams the output of the command, stops the sandbox, and exits with the exit code of the command. If this
//! process is killed, its sandbox remains. On this machine, the next `bellglass` command removes the sandbox,
//! or it ends at its time to live. On a server, the sandbox is stopped at its idle timeout.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::exec::{ExecEnd, ExecSpec};
use api::limits::{self, Limits, WantedLimits};
use api::policy::Policy;
use api::sandbox::CreateSandbox;
use api::{Error, ExecId, SandboxId};
use client::Client;
use node::admission::Bounds;
use node::backend::Choice;
use node::egress::{Broker, BrokerReport, Decision, Gate, Party, Upstreams};
use node::ready::Readiness;
use node::{Event, Exec, Machine, Sandbox, machine};
use runtime::{Runtime, Spec, Tier};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::connect::{ServerConnection, answer};
use crate::follow::{Followed, Followee, Interrupt};
use crate::output::Output;
use crate::{LocalOptions, request, show};

/// Additional lifetime of the sandbox after the exec's time limit, to report the outcome.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// Maximum number of blocked hosts to report.
const TOLD_MAX: usize = 20;
/// Size of the buffer for reading standard input.
const STDIN_CHUNK_BYTES: usize = 64 * 1024;

/// Arguments of `bellglass run`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass run -- python3 -c 'print(1)'\n  \
    echo hello | bellglass run --stdin -- tr a-z A-Z\n  bellglass run --allow python-packages -- pip install cowsay\n  bellglass run --tier user-kernel --json -- uname -r")]
pub struct Arguments {
    #[command(flatten)]
    sandbox: request::SandboxOptions,
    /// Runtime of this machine to use (runc, runsc, youki, podman, docker or daytona). Default: the first available runtime of
    /// the tier.
    #[arg(long)]
    runtime: Option<String>,
    #[command(flatten)]
    exec: request::ExecOptions,
}

/// Runs the command on the configured server, or on this machine if no server is configured. Returns the
/// command's exit code.
pub async fn run(
    place: &LocalOptions,
    connection: &ServerConnection,
    arguments: Arguments,
) -> Result<ExitCode, Error> {
    let life = arguments.exec.timeout.0.map_or(Duration::MAX, |time| time.saturating_add(AFTERWARDS));
    let limits = arguments.sandbox.limits(life);
    let spec = arguments.exec.spec(true)?;
    match connection.configured()? {
        Some(client) => on_server(&client, limits, &spec, &arguments).await,
        None => on_this_machine(place, limits, spec, &arguments).await,
    }
}

/// Removes sandboxes and layers that killed commands left behind.
pub async fn tidy(machine: &Machine) -> Result<(), Error> {
    let removed = node::remove_orphans(machine).await.map_err(|error| error.to_api())?;
    node::remove_unused_layers(machine.data()).map_err(|error| error.to_api())?;
    if !removed.is_empty() {
        let names: Vec<_> = removed.iter().map(ToString::to_string).collect();
        show::note(&format!("removed sandboxes left behind by a killed command: {}", names.join(", ")));
    }
    Ok(())
}

async fn on_server(
    client: &Client,
    limits: WantedLimits,
    spec: &ExecSpec,
    arguments: &Arguments,
) -> Result<ExitCode, Error> {
    if let Some(name) = &arguments.runtime {
        return Err(Error::invalid(
            format!("--runtime {name:?} selects a runtime of this machine, but a server is configured"),
            "Request a tier from the server with --tier, or unset BELLGLASS_SERVER to run on this machine.",
        ));
    }
    let request = CreateSandbox {
        template: arguments.sandbox.template.clone(),
        tier: arguments.sandbox.tier.of_server(),
        limits,
        idle_ms: request::millis(AFTERWARDS),
        policy: arguments.sandbox.policy()?,
        ..CreateSandbox::default()
    };
    let created = answer(client, client.create(&request)).await?;
    let (sandbox, memory_bytes) = (created.id, created.limits.memory_bytes);
    let mut output = Output::new(arguments.exec.json);
    let followed = async {
        let exec = answer(client, client.exec(&sandbox, spec)).await?;
        let followee =
            Followee { client, sandbox: &sandbox, stdin: spec.stdin, interrupt: Interrupt::Cancels };
        followee.follow(exec, &mut output).await
    }
    .await;
    let stopped = answer(client, client.stop(&sandbox)).await;
    let code = match followed? {
        Followed::Ended(end) => output.finish(&sandbox, &end, Some(memory_bytes)),
        Followed::CaughtUp | Followed::Left => {
            show::note("detached from the command before its outcome was known");
            ExitCode::from(crate::FAILED)
        }
    };
    stopped?;
    Ok(code)
}

async fn on_this_machine(
    place: &LocalOptions,
    limits: WantedLimits,
    spec: ExecSpec,
    arguments: &Arguments,
) -> Result<ExitCode, Error> {
    let data = &place.data;
    let machine = Machine::open(data).map_err(|error| error.to_api())?;
    tidy(&machine).await?;
    let template =
        node::template::Store::new(data).load(&arguments.sandbox.template).map_err(|error| error.to_api())?;
    let exec_spec = template.apply(spec);
    let tier = arguments.sandbox.tier.of_runtime();
    let choice = match &arguments.runtime {
        Some(name) => machine.runtime(name).map(|one| Choice::from(vec![one])),
        None => Ok(machine.choose(&place.backends).await),
    }
    .map_err(|error| error.to_api())?;
    let runtime = match &arguments.runtime {
        // If the user named a runtime that is too weak, it is rejected below, with an error that names it.
        Some(_) => choice.at_least(Tier::Container),
        None => choice.at_least(tier),
    }
    .map_err(|error| error.to_api())?;
    // If a Daytona account is configured, the user expects Daytona to be used, so a note says if it is not.
    let unused = choice.considered.iter().find(|one| one.name == runtime::daytona::NAME && !one.used);
    if let Some(daytona) = unused {
        show::note(&format!("{}; using the next backend", daytona.why));
    }
    let asked = limits.over(template.limits.over(Limits::default()));
    let limits = limits.over(runtime.within(asked));
    limits.check()?;
    if runtime.tier() < tier {
        return Err(Error::invalid(
            format!("the runtime {} is weaker than the requested tier", runtime.name()),
            "Use a runtime of the requested tier, or request a weaker tier explicitly with --tier.",
        ));
    }
    let (layers, image) = node::template::root(data, &template.layers);
    let spec = Spec {
        layers,
        image,
        limits,
        profile: template.posture.profile(),
        guest: machine.guest().to_owned(),
    };
    let id = machine::fresh_id().map_err(|error| error.to_api())?;
    let policy = arguments.sandbox.policy()?.unwrap_or_else(|| template.policy.clone());
    if let Some(binding) = policy.secrets.first() {
        return Err(Error::invalid(
            format!("the secret {} is stored on a server, but no server is configured", binding.name),
            "Set BELLGLASS_SERVER and BELLGLASS_API_KEY, or leave the secret out.",
        ));
    }
    let sandbox = Arc::new(start(&choice, runtime, id, &spec).await?);
    let gate = Gate::new(
        &node::egress::packages(data),
        Upstreams::of_this_machine(),
        Bounds::default().disk_reserve_bytes,
    );
    let exec_spec = node::egress::pointed(&policy, exec_spec);
    let attendant = tokio::spawn(let_out(Arc::clone(&sandbox), policy.clone(), Broker::new(gate)));
    let readiness = Readiness::of(&template);
    let ready = tokio::select! {
        ready = readiness.bring_about(&sandbox, &policy) => ready.map_err(|error| error.to_api()),
        ended = crate::wait_for_end(), if !readiness.is_empty() => ended.and_then(|()| Err(crate::given_up())),
    };
    let ended = match ready {
        Ok(()) => live(&sandbox, &exec_spec, limits.memory_bytes, arguments.exec.json).await,
        Err(error) => Err(error),
    };
    attendant.abort();
    let stopped = sandbox.stop(Duration::ZERO).await.map_err(|error| error.to_api());
    let code = ended?;
    stopped?;
    Ok(code)
}

/// Starts a sandbox. If a backend fails, tries the next backend (requirement A9.02).
async fn start(
    choice: &Choice,
    mut runtime: Arc<dyn Runtime>,
    id: SandboxId,
    spec: &Spec,
) -> Result<Sandbox, Error> {
    let mut tried = Vec::new();
    loop {
        let error = match Sandbox::start(Arc::clone(&runtime), id.clone(), spec).await {
            Ok(sandbox) => {
                weaker(runtime.as_ref()).await;
                return Ok(sandbox);
            }
            Err(error) => error,
        };
        tried.push(runtime.name().to_owned());
        let Some(next) = choice.next(&tried, runtime.tier(), spec.limits, &error) else {
            return Err(error.to_api());
        };
        show::note(&format!("{}; trying the next backend", error.to_api().message));
        runtime.stop(&id, Duration::ZERO).await.map_err(|error| node::Error::from(error).to_api())?;
        runtime = Arc::clone(next);
    }
}

/// Prints a note if the backend lacks protections that the tier usually has.
async fn weaker(runtime: &dyn Runtime) {
    let lacks = runtime
        .lacks()
        .await
        .unwrap_or_else(|error| vec![format!("some protections (the list is not available: {error})")]);
    if let Some(first) = lacks.first() {
        let others = match lacks.len() {
            1 => String::new(),
            count => format!(" ({} more: `bellglass status`)", count - 1),
        };
        show::note(&format!("Using backend: {}, which lacks {first}{others}", runtime.name()));
    }
}

/// Serves the network requests that the policy allows, and reports each blocked host once.
async fn let_out(sandbox: Arc<Sandbox>, policy: Policy, broker: Broker) {
    let told = Mutex::new(BTreeSet::new());
    let tell = move |told_of: BrokerReport| {
        let BrokerReport::Decided(Decision { target, verdict, .. }) = told_of else { return };
        let fresh = || told.lock().is_ok_and(|mut told| told.len() < TOLD_MAX && told.insert(target.clone()));
        if let Err(why) = verdict
            && fresh()
        {
            show::note(&format!("blocked: {why}"));
        }
    };
    let party = Arc::new(Party::new(node::egress::fixed(policy), Box::new(tell)));
    node::egress::attend(&sandbox, &Arc::new(broker), &party).await;
}

async fn live(sandbox: &Sandbox, spec: &ExecSpec, memory_bytes: u64, json: bool) -> Result<ExitCode, Error> {
    let exec = sandbox.exec(ExecId::from_random([1; 16]), spec).await.map_err(|error| error.to_api())?;
    let mut output = Output::new(json);
    let end = follow(sandbox, exec, spec.stdin, &mut output).await?;
    Ok(output.finish(sandbox.id(), &end, Some(memory_bytes)))
}

/// Shows the output until the exec ends. An interrupt cancels the exec.
async fn follow(
    sandbox: &Sandbox,
    mut exec: Exec,
    with_stdin: bool,
    output: &mut Output,
) -> Result<ExecEnd, Error> {
    let watch = |kind| {
        signal(kind).map_err(|error| crate::platform(format!("cannot install a signal handler: {error}")))
    };
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let feeder = sandbox.exec_reader(exec.id().clone());
    let feeding = async {
        if with_stdin {
            feed(&feeder).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::pin!(feeding);
    loop {
        let event = tokio::select! {
            event = exec.next() => event.map_err(|error| error.to_api())?,
            () = &mut feeding => continue,
            _ = interrupt.recv() => { feeder.cancel().await.map_err(|error| error.to_api())?; continue }
            _ = terminate.recv() => { feeder.cancel().await.map_err(|error| error.to_api())?; continue }
        };
        match event {
            Some(Event::Data { stream, bytes, .. }) => output.take(stream, &bytes)?,
            Some(Event::Gap { stream, from, to }) => output.miss(stream, to - from),
            // Only code produces results, and this command does not run code.
            Some(Event::Result { .. }) => {}
            Some(Event::End(end)) => return Ok(end),
            None => {
                return Err(
                    node::Error::Protocol("the output stream closed without an end event".into()).to_api()
                );
            }
        }
    }
}

/// Sends standard input to the exec until standard input or the exec ends.
async fn feed(exec: &Exec) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; STDIN_CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let count = stdin.read(&mut buffer).await.unwrap_or(0);
        let bytes = bytes::Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        // This timeout exceeds the lifetime of the sandbox, so that the run does not fail if the command
        // never reads its input.
        let within = Duration::from_millis(limits::DEADLINE_MS_MAX);
        let sent = exec.write_stdin(offset, bytes, count == 0, within).await;
        if count == 0 || sent.is_err() {
            return;
        }
        offset += count as u64;
    }
}

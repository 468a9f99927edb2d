//! `belljar run`: one command in one sandbox, in this process.
//!
//! Streams what the command writes, ends the sandbox, and exits with the command's own code. A process that is
//! killed here leaves a sandbox behind; the next `belljar` command removes it, or its time to live does.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use api::exec::{ExecEnd, ExecSpec, Outcome, OutputMode, Stream};
use api::limits::{self, Limits};
use api::{Error, ExecId};
use node::{Event, Exec, Machine, Sandbox, machine};
use runtime::{Profile, Spec, Tier};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::quantity::{self, Limit};
use crate::show;

/// The sandbox outlives the exec's own limit by this much, so that the end can be told.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// What is read from our own standard input at once.
const STDIN_CHUNK_BYTES: usize = 64 * 1024;

/// What to run, and in what.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  belljar run -- python3 -c 'print(1)'\n  \
    echo hello | belljar run --stdin -- tr a-z A-Z\n  belljar run --tier user-kernel --json -- uname -r")]
pub struct Arguments {
    /// The template to make the sandbox from.
    #[arg(long, default_value = "base")]
    template: String,
    /// The weakest isolation that will do; a stronger one may be used, a weaker one never.
    #[arg(long, value_enum, default_value_t = TierName::Container)]
    tier: TierName,
    /// The runtime to use, by name (runc, runsc, youki), instead of the first of the tier.
    #[arg(long)]
    runtime: Option<String>,
    /// Memory of the command and everything it starts.
    #[arg(long, value_parser = quantity::bytes, default_value = "512M", value_name = "SIZE")]
    memory: u64,
    /// Processor time, in cores.
    #[arg(long, default_value_t = 1.0)]
    cpus: f64,
    /// Processes and threads.
    #[arg(long, default_value_t = Limits::default().pids)]
    pids: u64,
    /// The disk with /workspace and the home directory.
    #[arg(long, value_parser = quantity::bytes, default_value = "1G", value_name = "SIZE")]
    disk: u64,
    /// Files and directories on that disk.
    #[arg(long, default_value_t = Limits::default().disk_inodes)]
    inodes: u64,
    /// The /tmp directory, which is memory: 64M, or half of the memory where that is less.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    tmp: Option<u64>,
    /// The wall-clock limit of the command: 90s, 5m, or none (then 24 hours end the sandbox).
    #[arg(long, value_parser = quantity::limit, default_value = "60s", value_name = "TIME", allow_hyphen_values = true)]
    timeout: Limit,
    /// A variable for the command; can be given more than once.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The directory the command starts in.
    #[arg(long, value_name = "DIRECTORY")]
    cwd: Option<String>,
    /// Passes our standard input on. Without it the command reads an empty file.
    #[arg(long, short = 'i')]
    stdin: bool,
    /// What happens when the output is larger than what is kept.
    #[arg(long, value_enum, default_value_t = OutputName::Block)]
    output: OutputName,
    /// Writes one JSON object with the outcome and the output instead of streaming.
    #[arg(long)]
    json: bool,
    /// The command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<String>,
}

/// Tiers as people name them.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum TierName {
    /// Namespaces, a uid range, seccomp and cgroups; the host's kernel.
    Container,
    /// gVisor: a kernel of its own in user space.
    UserKernel,
}

/// Output modes as people name them.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum OutputName {
    /// The command never waits; head and tail are kept.
    Keep,
    /// The command waits for us; nothing is dropped.
    Block,
    /// The command is ended.
    Kill,
}

/// Runs the command; the exit code is its own.
pub async fn run(data: &Path, arguments: Arguments) -> Result<ExitCode, Error> {
    let limits = arguments.limits();
    limits.check()?;
    let exec_spec = arguments.exec_spec()?;
    exec_spec.check()?;
    let machine = Machine::open(data).map_err(|error| error.to_api())?;
    tidy(&machine).await?;
    let template =
        node::template::Store::new(data).load(&arguments.template).map_err(|error| error.to_api())?;
    let exec_spec = template.apply(exec_spec);
    let runtime = match &arguments.runtime {
        Some(name) => machine.runtime(name),
        None => machine.at_least(arguments.tier.tier()),
    }
    .map_err(|error| error.to_api())?;
    if runtime.tier() < arguments.tier.tier() {
        return Err(Error::invalid(
            format!("{} is weaker than the tier asked for", runtime.name()),
            "Name a runtime of that tier, or ask for a weaker one in so many words.",
        ));
    }
    let layers = template.layer_directories(data);
    let spec = Spec { layers, limits, profile: Profile::Run, guest: machine.guest().to_owned() };
    let id = machine::fresh_id().map_err(|error| error.to_api())?;
    let sandbox = Sandbox::start(runtime, id, &spec).await.map_err(|error| error.to_api())?;
    let ended = live(&sandbox, &exec_spec, &arguments).await;
    let stopped = sandbox.stop(Duration::ZERO).await.map_err(|error| error.to_api());
    let code = ended?;
    stopped?;
    Ok(code)
}

/// Removes what killed commands left behind.
pub async fn tidy(machine: &Machine) -> Result<(), Error> {
    let removed = machine.tidy().await.map_err(|error| error.to_api())?;
    node::template::tidy(machine.data()).map_err(|error| error.to_api())?;
    if !removed.is_empty() {
        let names: Vec<_> = removed.iter().map(ToString::to_string).collect();
        show::note(&format!("removed what a killed command left behind: {}", names.join(", ")));
    }
    Ok(())
}

async fn live(sandbox: &Sandbox, spec: &ExecSpec, arguments: &Arguments) -> Result<ExitCode, Error> {
    let exec = sandbox.exec(ExecId::from_random([1; 16]), spec).await.map_err(|error| error.to_api())?;
    let mut output = Output { json: arguments.json, stdout: Vec::new(), stderr: Vec::new() };
    let end = follow(sandbox, exec, spec.stdin, &mut output).await.map_err(|error| error.to_api())?;
    if arguments.json {
        show::line(&output.report(sandbox, &end).to_string());
    } else {
        explain(&end, arguments);
    }
    let code = u8::try_from(end.outcome.shell_code() & 0xff).unwrap_or(crate::FAILED);
    Ok(ExitCode::from(code))
}

/// Passes output on until the end; an interrupt of ours cancels the exec.
async fn follow(
    sandbox: &Sandbox,
    mut exec: Exec,
    with_stdin: bool,
    output: &mut Output,
) -> Result<ExecEnd, node::Error> {
    let watch =
        |kind| signal(kind).map_err(|source| node::Error::System { act: "watch for signals".into(), source });
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let feeder = sandbox.reader(exec.id().clone());
    let feeding = async {
        if with_stdin {
            feed(&feeder).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::pin!(feeding);
    loop {
        let event = tokio::select! {
            event = exec.next() => event?,
            () = &mut feeding => continue,
            _ = interrupt.recv() => { feeder.cancel().await?; continue }
            _ = terminate.recv() => { feeder.cancel().await?; continue }
        };
        match event {
            Some(Event::Data { stream, bytes, .. }) => output.take(stream, &bytes),
            Some(Event::Gap { from, to, .. }) => show::note(&format!("{} bytes were not kept", to - from)),
            Some(Event::End(end)) => return Ok(end),
            None => return Err(node::Error::Protocol("the output ended without an end".into())),
        }
    }
}

/// Sends our standard input to the command until it ends or the command does not want more.
async fn feed(exec: &Exec) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; STDIN_CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let count = stdin.read(&mut buffer).await.unwrap_or(0);
        let bytes = bytes::Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        // The sandbox ends first: a command that never reads must not fail the run.
        let within = Duration::from_millis(limits::DEADLINE_MS_MAX);
        let sent = exec.write_stdin(offset, bytes, count == 0, within).await;
        if count == 0 || sent.is_err() {
            return;
        }
        offset += count as u64;
    }
}

/// Where the command's output goes.
struct Output {
    json: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        match (self.json, stream) {
            (true, Stream::Stdout) => self.stdout.extend_from_slice(bytes),
            (true, Stream::Stderr) => self.stderr.extend_from_slice(bytes),
            // Whoever closed our output does not want to hear of it.
            (false, Stream::Stdout) => {
                let mut to = std::io::stdout().lock();
                let _ = to.write_all(bytes).and_then(|()| to.flush());
            }
            (false, Stream::Stderr) => {
                let _ = std::io::stderr().lock().write_all(bytes);
            }
        }
    }

    fn report(&self, sandbox: &Sandbox, end: &ExecEnd) -> serde_json::Value {
        serde_json::json!({
            "sandbox": sandbox.id(),
            "outcome": end.outcome,
            "stdout": String::from_utf8_lossy(&self.stdout),
            "stderr": String::from_utf8_lossy(&self.stderr),
            "stdout_bytes": end.stdout_bytes,
            "stdout_dropped": end.stdout_dropped,
            "stderr_bytes": end.stderr_bytes,
            "stderr_dropped": end.stderr_dropped,
            "duration_us": end.duration_us,
            "left_running": end.left_running,
            "memory": end.memory,
        })
    }
}

/// Says what an exit code cannot say.
fn explain(end: &ExecEnd, arguments: &Arguments) {
    match &end.outcome {
        Outcome::Exited { .. } => {}
        Outcome::Signaled { signal } => show::note(&format!("signal {signal} ended the command")),
        Outcome::Timeout => show::note("the time limit ended the command (timeout); see --timeout"),
        Outcome::Oom => show::note(&format!(
            "the memory limit of {} ended the command (oom); see --memory",
            quantity::show_bytes(arguments.memory)
        )),
        Outcome::OutputLimit => {
            show::note("the command wrote more than is kept (output_limit); see --output")
        }
        Outcome::Cancelled => show::note("the command was cancelled"),
        Outcome::SandboxLost { cause } => {
            show::note(&format!("the sandbox ended under the command: {cause:?}"))
        }
        Outcome::Unknown => show::note("how the command ended is not known"),
    }
}

impl Arguments {
    fn limits(&self) -> Limits {
        let life = self.timeout.0.map_or(Duration::MAX, |time| time.saturating_add(AFTERWARDS));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let cpu_millis = (self.cpus * 1000.0).round() as u64;
        Limits {
            memory_bytes: self.memory,
            cpu_millis,
            pids: self.pids,
            disk_bytes: self.disk,
            disk_inodes: self.inodes,
            tmp_bytes: self.tmp.unwrap_or_else(|| Limits::default().tmp_bytes.min(self.memory / 2)),
            ttl_ms: millis(life).min(limits::DEADLINE_MS_MAX),
        }
    }

    fn exec_spec(&self) -> Result<ExecSpec, Error> {
        let mut env = BTreeMap::new();
        for pair in &self.env {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                Error::invalid(format!("--env {pair:?} has no '='"), "Write it as NAME=VALUE.")
            })?;
            env.insert(name.to_owned(), value.to_owned());
        }
        Ok(ExecSpec {
            argv: self.argv.clone(),
            env,
            cwd: self.cwd.clone(),
            stdin: self.stdin,
            deadline_ms: self.timeout.0.map(millis),
            output: match self.output {
                // One object in memory: bounded, whatever the command writes.
                OutputName::Block if self.json => OutputMode::Keep,
                OutputName::Keep => OutputMode::Keep,
                OutputName::Block => OutputMode::Block,
                OutputName::Kill => OutputMode::Kill,
            },
            ..ExecSpec::default()
        })
    }
}

impl TierName {
    fn tier(self) -> Tier {
        match self {
            Self::Container => Tier::Container,
            Self::UserKernel => Tier::UserKernel,
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

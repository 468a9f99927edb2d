//! What is asked for on the command line: a sandbox, and what to run in it. Shared by every command that makes or uses one.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Error;
use api::exec::{ExecSpec, OutputMode};
use api::limits::{self, WantedLimits};
use api::policy::Policy;
use runtime::Tier;

use crate::quantity::{self, Limit};

/// What a sandbox is made from and may use.
#[derive(clap::Args)]
pub struct Sandbox {
    /// The template to make the sandbox from.
    #[arg(long, default_value = "base")]
    pub template: String,
    /// The weakest isolation that will do; a stronger one may be used, a weaker one never.
    #[arg(long, value_enum, default_value_t = TierName::Container)]
    pub tier: TierName,
    /// Memory of the command and everything it starts: what the template says, or 512M.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    memory: Option<u64>,
    /// Processor time, in cores: what the template says, or 1.
    #[arg(long)]
    cpus: Option<f64>,
    /// Processes and threads: what the template says, or 128.
    #[arg(long)]
    pids: Option<u64>,
    /// The disk with /workspace and the home directory: what the template says, or 1G.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    disk: Option<u64>,
    /// Files and directories on that disk: what the template says, or 65536.
    #[arg(long)]
    inodes: Option<u64>,
    /// The /tmp directory, which is memory: what the template says, or 64M, or half of the memory where that is less.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    tmp: Option<u64>,
    /// What may leave the sandbox: HOST, HOST:PORT or HOST:PORT/PATH, a preset (python-packages, node-packages,
    /// debian-packages, git), a secret and where it goes (secret:NAME=HOST[/PATH]) or open; can be given more than once. Without it the
    /// template decides, and that is nothing unless it says otherwise.
    #[arg(long = "allow", value_name = "WHAT")]
    allow: Vec<String>,
}

/// What to run.
#[derive(clap::Args)]
pub struct Exec {
    /// The wall-clock limit of the command: 90s, 5m, or none (then it ends with its sandbox, after 24 hours at most).
    #[arg(long, value_parser = quantity::limit, default_value = "60s", value_name = "TIME", allow_hyphen_values = true)]
    pub timeout: Limit,
    /// A variable for the command; can be given more than once.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The directory the command starts in.
    #[arg(long, value_name = "DIRECTORY")]
    cwd: Option<String>,
    /// Passes our standard input on. Without it the command reads an empty file.
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// What happens when the output is larger than what is kept: block, unless nobody reads along (then keep).
    #[arg(long, value_enum)]
    output: Option<OutputName>,
    /// Writes one JSON object with the outcome and the output instead of streaming.
    #[arg(long)]
    pub json: bool,
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
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputName {
    /// The command never waits; head and tail are kept.
    Keep,
    /// The command waits for us; nothing is dropped.
    Block,
    /// The command is ended.
    Kill,
}

impl Sandbox {
    /// What may leave it, if that was said.
    pub fn policy(&self) -> Result<Option<Policy>, Error> {
        if self.allow.is_empty() { Ok(None) } else { Policy::of_words(&self.allow).map(Some) }
    }

    /// What is said of its limits, when it is to live so long.
    pub fn limits(&self, life: Duration) -> WantedLimits {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let cpu_millis = self.cpus.map(|cpus| (cpus * 1000.0).round() as u64);
        WantedLimits {
            memory_bytes: self.memory,
            cpu_millis,
            pids: self.pids,
            disk_bytes: self.disk,
            disk_inodes: self.inodes,
            tmp_bytes: self.tmp,
            ttl_ms: Some(millis(life).min(limits::DEADLINE_MS_MAX)),
        }
    }
}

impl Exec {
    /// The same, as it is asked for; `watched` says whether somebody reads the output as it comes.
    pub fn spec(&self, watched: bool) -> Result<ExecSpec, Error> {
        let output = match self.output {
            // One object in memory: bounded, whatever the command writes.
            Some(OutputName::Block) if self.json => OutputMode::Keep,
            None if self.json || !watched => OutputMode::Keep,
            None | Some(OutputName::Block) => OutputMode::Block,
            Some(OutputName::Keep) => OutputMode::Keep,
            Some(OutputName::Kill) => OutputMode::Kill,
        };
        let spec = ExecSpec {
            argv: self.argv.clone(),
            env: pairs("--env", &self.env)?,
            cwd: self.cwd.clone(),
            stdin: self.stdin,
            deadline_ms: self.timeout.0.map(millis),
            output,
            ..ExecSpec::default()
        };
        spec.check()?;
        Ok(spec)
    }
}

impl TierName {
    /// As the runtimes of this machine have it.
    pub fn of_runtime(self) -> Tier {
        match self {
            Self::Container => Tier::Container,
            Self::UserKernel => Tier::UserKernel,
        }
    }

    /// As a server is asked for it.
    pub fn of_server(self) -> api::sandbox::Tier {
        match self {
            Self::Container => api::sandbox::Tier::Container,
            Self::UserKernel => api::sandbox::Tier::UserKernel,
        }
    }
}

/// `NAME=VALUE` as two texts.
pub fn pairs(option: &str, texts: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let mut pairs = BTreeMap::new();
    for text in texts {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            Error::invalid(format!("{option} {text:?} has no '='"), "Write it as NAME=VALUE.")
        })?;
        pairs.insert(name.to_owned(), value.to_owned());
    }
    Ok(pairs)
}

/// A time as the wire has it.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

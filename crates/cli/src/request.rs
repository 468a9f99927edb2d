//! Command-line options for sandboxes and commands, shared by all `bellglass` commands that create or use a
//! sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Error;
use api::exec::{ExecSpec, OutputMode};
use api::limits::{self, WantedLimits};
use api::policy::Policy;
use api::sandbox::OnTimeout;
use runtime::Tier;

use crate::quantity::{self, Limit};

/// Template, limits and network access of a new sandbox.
#[derive(clap::Args)]
pub struct SandboxOptions {
    /// Template to create the sandbox from.
    #[arg(long, default_value = "base")]
    pub template: String,
    /// Minimum isolation tier. A stronger tier may be used, but never a weaker one.
    #[arg(long, value_enum, default_value_t = TierName::Container)]
    pub tier: TierName,
    /// Memory limit of all processes in the sandbox together, such as 2G. Default: the limit of the template, otherwise
    /// 512M.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    memory: Option<u64>,
    /// CPU limit in cores, such as 0.5. Default: the limit of the template, otherwise 1.
    #[arg(long)]
    cpus: Option<f64>,
    /// Maximum number of processes and threads. Default: the limit of the template, otherwise 128.
    #[arg(long)]
    pids: Option<u64>,
    /// Size of the disk with /workspace and the home directory. Default: the size that the template sets, otherwise 1G.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    disk: Option<u64>,
    /// Maximum number of files and directories on the disk of the sandbox. Default: the limit of the template, otherwise
    /// 65536.
    #[arg(long)]
    inodes: Option<u64>,
    /// Size of /tmp, which is in memory. Default: the size that the template sets, otherwise the smaller of 64M and half of
    /// the memory limit.
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    tmp: Option<u64>,
    /// Network access to allow, such as example.org or python-packages. Can be repeated.
    ///
    /// WHAT can be a destination: HOST (ports 80 and 443), HOST:PORT or HOST:PORT/PATH.
    ///
    /// WHAT can be a preset: python-packages, node-packages and debian-packages allow package indexes, and git allows public
    /// Git hosts.
    ///
    /// WHAT can be a secret and its destination: secret:NAME=HOST or secret:NAME=HOST/PATH. Allow the host as well, with another
    /// --allow.
    ///
    /// WHAT can be `open`, which allows the whole internet.
    ///
    /// Without this option, the policy of the template applies. A template without a policy allows no network access.
    #[arg(long = "allow", value_name = "WHAT")]
    allow: Vec<String>,
}

/// Command to run, and how to run it.
#[derive(clap::Args)]
pub struct ExecOptions {
    /// Wall-clock limit of the command, such as 90s or 5m. With the value `none`, the command can run as long as its sandbox,
    /// at most 24 hours.
    #[arg(long, value_parser = quantity::limit, default_value = "60s", value_name = "TIME", allow_hyphen_values = true)]
    pub timeout: Limit,
    /// Environment variable for the command. Can be repeated.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Working directory of the command.
    #[arg(long, value_name = "DIRECTORY")]
    cwd: Option<String>,
    /// Pass standard input to the command. Without this option, the command's standard input is empty.
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// Action when the output exceeds the buffer. Default: block if the output is streamed, otherwise keep.
    #[arg(long, value_enum)]
    output: Option<OutputName>,
    /// Print one JSON object with the outcome and the output instead of streaming.
    #[arg(long)]
    pub json: bool,
    /// Command to run and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<String>,
}

/// Isolation tiers, as values of `--tier`.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum TierName {
    /// Namespaces, a uid range, seccomp and cgroups, on the host's kernel.
    Container,
    /// gVisor, a separate kernel in user space.
    UserKernel,
}

/// What happens at a timeout, as values of `--on-timeout`.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum OnTimeoutName {
    /// Stop the sandbox.
    Stop,
    /// Pause the sandbox. If it cannot be paused, it is stopped.
    Pause,
}

impl OnTimeoutName {
    /// Returns the action in the form that the server's API uses.
    pub fn of_server(self) -> OnTimeout {
        match self {
            Self::Stop => OnTimeout::Stop,
            Self::Pause => OnTimeout::Pause,
        }
    }
}

/// Output modes, as values of `--output`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputName {
    /// Never pause the command; keep the head and the tail of the output.
    Keep,
    /// Pause the command until its output is read; drop nothing.
    Block,
    /// Kill the command.
    Kill,
}

impl SandboxOptions {
    /// Returns the requested policy, or `None` if no network access was requested.
    pub fn policy(&self) -> Result<Option<Policy>, Error> {
        if self.allow.is_empty() { Ok(None) } else { Policy::of_words(&self.allow).map(Some) }
    }

    /// Returns the requested limits, with a time to live of `life`, but at most 24 hours.
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

impl ExecOptions {
    /// Returns the exec request. `watched` is true if a client reads the output while the command runs.
    pub fn spec(&self, watched: bool) -> Result<ExecSpec, Error> {
        let output = match self.output {
            // With --json, all output is collected in memory. Its size must therefore be limited, however
            // much the command writes.
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
    /// Returns the tier in the form that this machine's runtimes use.
    pub fn of_runtime(self) -> Tier {
        match self {
            Self::Container => Tier::Container,
            Self::UserKernel => Tier::UserKernel,
        }
    }

    /// Returns the tier in the form that the server's API uses.
    pub fn of_server(self) -> api::sandbox::Tier {
        match self {
            Self::Container => api::sandbox::Tier::Container,
            Self::UserKernel => api::sandbox::Tier::UserKernel,
        }
    }
}

/// Parses `NAME=VALUE` arguments.
pub fn pairs(option: &str, texts: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let mut pairs = BTreeMap::new();
    for text in texts {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            Error::invalid(
                format!("{option} {text:?} has no '='"),
                "Write the value of the option as NAME=VALUE.",
            )
        })?;
        pairs.insert(name.to_owned(), value.to_owned());
    }
    Ok(pairs)
}

/// Converts a duration to milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

//! One step of a recipe: commands in a dedicated sandbox, whose changes become a layer.
//!
//! ```text
//! layers below ──overlay──▶ sandbox of posture `build` ──commands──▶ changes ──archive──▶ unpacked like any other layer
//!                                      └──broker, gate: only the egress that this step needs
//! ```
//!
//! The changes are untrusted until they are unpacked: code in the sandbox, even a compromised guest, can
//! affect only the layer of its own step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::code::InterpreterInfo;
use api::exec::{ExecEnd, ExecSpec, Outcome};
use api::limits::{Limits, UID};
use api::output::Event;
use api::policy::{Policy, Preset};
use api::{ErrorCode, ExecId, Layer, Ran, Retry};
use bytes::Bytes;
use egress::{Broker, BrokerReport, Decision, Party};
use guest_client::link::GuestRequest;
use guest_client::sandbox::Sandbox;
use host::error::Error;
use hyper::Method;
use runtime::{Profile, Spec};
use tokio_util::task::AbortOnDropHandle;

use crate::cache::Log;
use crate::recipe::Step;
use crate::unpack::Source;
use crate::{Builder, LayerPosition, ProgressSink, TemplateProgress, layers};

/// Timeout for one command of a step.
const STEP_WITHIN: Duration = Duration::from_secs(60 * 60);
/// Timeout for the first byte of the changes. The guest stops all other processes of the sandbox before it
/// sends the changes.
const PACK_WITHIN: Duration = Duration::from_secs(60);
/// Limits of a step's sandbox, with room for compilers and package managers. The disk holds the step's
/// changes. On a machine with less memory, the memory limit is lower.
const LIMITS: Limits = Limits {
    memory_bytes: 3 << 30,
    cpu_millis: 4000,
    pids: 1024,
    disk_bytes: 8 << 30,
    disk_inodes: 1 << 20,
    tmp_bytes: 1 << 30,
    ttl_ms: 4 * 3600 * 1000,
};
/// Maximum number of bytes that an error message contains from the end of a failed step's output.
const TAIL_BYTES: usize = 1500;

/// Settings made by earlier steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Setting {
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    pub(super) as_user: bool,
}

/// Default variables of programs that root runs in a step. Variables of the recipe take precedence.
pub(super) const ROOT_VARIABLES: [(&str, &str); 10] = [
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("HOME", "/root"),
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_CACHE_DIR", "1"),
    ("PIP_NO_INPUT", "1"),
    ("PIP_PROGRESS_BAR", "off"),
    ("PIP_ROOT_USER_ACTION", "ignore"),
    // `/tmp` is held in memory, so temporary files are written to the disk instead.
    ("TMPDIR", "/var/tmp"),
    ("USER", "root"),
];

/// Script that creates a directory owned by the sandbox's user, unless it exists.
const OWN: &str = r#"[ -d "$1" ] || { mkdir -p -- "$1" && chown 1000:1000 -- "$1"; }"#;

/// The commands to run in one sandbox, and the egress policy of that sandbox.
pub(super) struct StepWork {
    pub(super) commands: Vec<ExecSpec>,
    pub(super) policy: Policy,
    /// The name of the archive to unpack first, if any, and its digest, which is filled in later.
    pub(super) archive: Option<(String, String)>,
}

/// Receivers of a step's output and messages.
pub(super) struct Ears<'a> {
    pub(super) log: &'a Arc<Mutex<Log>>,
    pub(super) watch: ProgressSink<'a>,
}

/// Returns the programs that a step runs, and the policy preset that lets them download packages, if they
/// need one. Returns `None` if the step runs nothing.
pub(super) fn programs(step: &Step) -> Option<(Vec<Vec<String>>, Option<Preset>)> {
    let words = |words: &[&str], more: &[String]| -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).chain(more.iter().cloned()).collect()
    };
    Some(match step {
        Step::Apt(names) => (
            vec![
                words(&["apt-get", "-qq", "update"], &[]),
                words(
                    &["apt-get", "-y", "-o", "Dpkg::Options::=--force-unsafe-io", "install"],
                    &[&["--no-install-recommends".to_owned(), "--".to_owned()], names.as_slice()].concat(),
                ),
                words(&["find", "/var/lib/apt/lists", "/var/cache/apt", "-type", "f", "-delete"], &[]),
            ],
            Some(Preset::DebianPackages),
        ),
        Step::Pip(names) => {
            (vec![words(&["python3", "-m", "pip", "install", "--"], names)], Some(Preset::PythonPackages))
        }
        Step::Npm(names) => (
            vec![words(&["npm", "install", "--global", "--no-audit", "--no-fund", "--"], names)],
            Some(Preset::NodePackages),
        ),
        Step::Run(command) | Step::RunAs(_, command) => (vec![command.argv()], None),
        Step::Sent(sent) => (vec![sent.program()], None),
        Step::Workdir(path) if !crate::recipe::is_covered(path) => {
            (vec![words(&["mkdir", "-p", "--"], std::slice::from_ref(path))], None)
        }
        Step::Workdir(_) | Step::Copy(_) | Step::Env(_) | Step::User(_) => return None,
    })
}

impl StepWork {
    /// Returns the work of a step, or `None` if the step runs nothing.
    pub(super) fn of(step: &Step, setting: &Setting, policy: &Policy) -> Option<Self> {
        let (mut programs, packages) = programs(step)?;
        let policy = match (packages, step) {
            (Some(packages), _) => preset(packages),
            (None, Step::Run(_) | Step::RunAs(..)) => policy.clone(),
            (None, _) => Policy::default(),
        };
        let as_user = step.by_user(setting.as_user);
        if let (Step::Workdir(path), true) = (step, setting.as_user) {
            // The user who works in the directory must be able to write to it.
            programs = vec![["/bin/sh", "-c", OWN, "sh", path].map(str::to_owned).to_vec()];
        }
        let mut commands: Vec<ExecSpec> =
            programs.into_iter().map(|argv| setting.spec(argv, as_user, &policy)).collect();
        if matches!(step, Step::Workdir(_)) {
            // The directory does not exist yet, so the command cannot start in it.
            commands.iter_mut().for_each(|spec| spec.cwd = Some("/".into()));
        }
        let archive =
            if let Step::Sent(sent) = step { Some((sent.archive.clone(), String::new())) } else { None };
        Some(Self { commands, policy, archive })
    }
}

impl Setting {
    fn spec(&self, argv: Vec<String>, as_user: bool, policy: &Policy) -> ExecSpec {
        let own: &[(&str, &str)] = if as_user { &[] } else { &ROOT_VARIABLES };
        let mut env: BTreeMap<String, String> =
            own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        env.extend(self.env.clone());
        let spec = ExecSpec {
            argv,
            env,
            cwd: Some(self.cwd.clone().unwrap_or_else(|| "/".into())),
            uid: as_user.then_some(UID),
            deadline_ms: u64::try_from(STEP_WITHIN.as_millis()).ok(),
            ..ExecSpec::default()
        };
        guest_client::egress::pointed(policy, spec)
    }
}

impl Builder {
    /// Runs the work on top of these layers and unpacks its changes into a new layer above them.
    pub(super) async fn work(
        &self,
        work: StepWork,
        below: Vec<PathBuf>,
        layers: &layers::Layers,
        ears: Ears<'_>,
    ) -> Result<(layers::Making, crate::Unpacked), Error> {
        let spec = Spec {
            layers: below.clone(),
            image: String::new(),
            limits: limits(),
            profile: Profile::Build,
            guest: self.guest.clone(),
        };
        let sandbox = Arc::new(Sandbox::start(Arc::clone(&self.runtime), self.fresh_id()?, &spec).await?);
        let attendant = AbortOnDropHandle::new(tokio::spawn(let_out(
            Arc::clone(&sandbox),
            Arc::clone(&self.broker),
            work.policy.clone(),
            Arc::clone(ears.log),
        )));
        let worked = async {
            if let Some((name, digest)) = &work.archive {
                let archives = crate::sent::Archives::open(&self.data)?;
                archives.unpack(name, digest, &sandbox, spec.limits.disk_bytes).await?;
            }
            for (index, spec) in work.commands.iter().enumerate() {
                run(&sandbox, index, spec, &ears).await?;
            }
            let source = changes(&sandbox, spec.limits.disk_bytes).await?;
            self.unpack(layers, source, LayerPosition { done: below, top: true }, ears.watch).await
        }
        .await;
        drop(attendant);
        let stopped = sandbox.stop(Duration::ZERO).await;
        let made = worked?;
        stopped?;
        Ok(made)
    }
}

impl Builder {
    /// Imports these modules with the interpreter of a sandbox that has these layers, and returns the
    /// interpreter's report. The sandbox has no network access.
    pub(super) async fn interpreter(
        &self,
        imports: &[String],
        setting: &Setting,
        layers: Vec<PathBuf>,
        log: &Arc<Mutex<Log>>,
    ) -> Result<InterpreterInfo, Error> {
        let Limits { disk_bytes, disk_inodes, .. } = Limits::MIN;
        let limits = Limits { disk_bytes, disk_inodes, ..limits() };
        let (image, guest) = (String::new(), self.guest.clone());
        let spec = Spec { layers, image, limits, profile: Profile::Run, guest };
        let sandbox = Arc::new(Sandbox::start(Arc::clone(&self.runtime), self.fresh_id()?, &spec).await?);
        let attendant = AbortOnDropHandle::new(tokio::spawn(let_out(
            Arc::clone(&sandbox),
            Arc::clone(&self.broker),
            Policy::default(),
            Arc::clone(log),
        )));
        let seen = async {
            sandbox.set_interpreter(imports, &setting.env, limits.cpu_millis).await?;
            sandbox.interpreter().await
        }
        .await;
        drop(attendant);
        let stopped = sandbox.stop(Duration::ZERO).await;
        let seen = seen?;
        stopped?;
        Ok(seen)
    }
}

/// Returns an error that names the modules that cannot be imported in advance, if there are any.
pub(super) fn check_imported(seen: &InterpreterInfo) -> Result<(), Error> {
    let (message, fix) = if !seen.failed.is_empty() {
        let failed: Vec<_> =
            seen.failed.iter().map(|one| format!("cannot import {}: {}", one.module, one.error)).collect();
        (failed.join("; "), "Install the module in a step, or remove it from `imports`.")
    } else if let Some(module) = &seen.threaded_by {
        (
            format!(
                "{module} starts a thread when it is imported, and a process with threads cannot be forked"
            ),
            "Remove the module from `imports`. Code that needs the module can still import it.",
        )
    } else {
        return Ok(());
    };
    let message = message.chars().take(TAIL_BYTES).collect();
    let (code, layer) = (ErrorCode::InvalidRequest, Layer::UserCode);
    let (ran, retry, fix) = (Ran::Yes, Retry::Useless, fix.into());
    Err(Error::Request(api::Error { code, message, layer, ran, retry, fix }))
}

/// Runs one command to its end. Returns an error unless it exits with status 0.
async fn run(sandbox: &Sandbox, index: usize, spec: &ExecSpec, ears: &Ears<'_>) -> Result<(), Error> {
    let number = u8::try_from(index).unwrap_or(u8::MAX).saturating_add(1);
    let mut exec = sandbox.exec(ExecId::from_random([number; 16]), spec).await?;
    let mut tail = Vec::new();
    loop {
        match exec.next().await? {
            Some(Event::Data { bytes, .. }) => {
                ears.log.lock().unwrap_or_else(PoisonError::into_inner).print(&bytes);
                tail.extend_from_slice(&bytes);
                tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
                (ears.watch)(TemplateProgress::Output(&bytes));
            }
            Some(Event::Gap { from, to, .. }) => {
                let line = format!("# {} bytes of output were dropped\n", to - from);
                ears.log.lock().unwrap_or_else(PoisonError::into_inner).say(&line);
            }
            // Only code produces results; a step runs commands.
            Some(Event::Result { .. }) => {}
            Some(Event::End(ExecEnd { outcome: Outcome::Exited { code: 0 }, .. })) => return Ok(()),
            Some(Event::End(end)) => return Err(not_well(spec, &end, &tail)),
            None => return Err(Error::Protocol("the output of a step has no end frame".into())),
        }
    }
}

/// Returns the changes of the commands as a source of archive pieces, limited to the size of the step's disk.
/// The limit is needed because a sparse file takes almost no disk space, but its archive contains its full
/// size.
async fn changes(sandbox: &Sandbox, disk_bytes: u64) -> Result<Source, Error> {
    let ask = GuestRequest { method: Method::GET, path: "/layer?of=upper".into(), body: Bytes::new() };
    let body = sandbox.link().ask_once(&ask, None, PACK_WITHIN).await?.into_body();
    Ok(Source::of_guest(body, disk_bytes))
}

/// Serves the egress of a step under its policy. Refused connections and installed packages are recorded in
/// the log.
async fn let_out(sandbox: Arc<Sandbox>, broker: Arc<Broker>, policy: Policy, log: Arc<Mutex<Log>>) {
    let tell = move |told: BrokerReport| {
        let line = match told {
            BrokerReport::Decided(Decision { verdict: Ok(_), .. }) => return,
            BrokerReport::Decided(Decision { verdict: Err(why), .. }) => format!("# refused: {why}\n"),
            BrokerReport::Installed(installed) => {
                let kept = if installed.cached { ", from cache" } else { "" };
                format!("# installed {} {}{kept}\n", installed.file, installed.hash)
            }
        };
        log.lock().unwrap_or_else(PoisonError::into_inner).say(&line);
    };
    let party = Arc::new(Party::new(guest_client::egress::fixed(policy), Box::new(tell)));
    guest_client::egress::attend(&sandbox, &broker, &party).await;
}

fn limits() -> Limits {
    let memory_bytes = LIMITS.memory_bytes.min(runtime::machine_memory_bytes());
    Limits { memory_bytes, tmp_bytes: LIMITS.tmp_bytes.min(memory_bytes / 2), ..LIMITS }
}

fn preset(preset: Preset) -> Policy {
    Policy {
        presets: [preset].into_iter().collect(),
        bytes_per_second: 1 << 30,
        bytes_max: 64 << 30,
        ..Policy::default()
    }
}

fn not_well(spec: &ExecSpec, end: &ExecEnd, tail: &[u8]) -> Error {
    let program = spec.argv.first().map_or("", String::as_str);
    let of = end.memory.map_or_else(String::new, |memory| format!(" of {} bytes", memory.limit_bytes));
    let how = match &end.outcome {
        Outcome::Timeout => format!("timed out after {STEP_WITHIN:?}"),
        Outcome::Oom => format!("exceeded the step's memory limit{of}"),
        other @ (Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::OutputLimit
        | Outcome::Cancelled
        | Outcome::SandboxLost { .. }
        | Outcome::Unknown) => guest_client::exec::ended(other),
    };
    let said = String::from_utf8_lossy(tail);
    Error::Request(api::Error {
        code: ErrorCode::InvalidRequest,
        message: format!("{program} {how}: {}", said.trim()),
        layer: Layer::UserCode,
        ran: Ran::Yes,
        retry: Retry::Useless,
        fix: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::code::FailedImport;

    #[test]
    fn a_module_that_cannot_be_imported_ahead_is_named_with_what_to_do() {
        let failed = FailedImport { module: "nix".into(), error: "No module named 'nix'".into() };
        let seen = InterpreterInfo { failed: vec![failed], ..InterpreterInfo::default() };
        let error = check_imported(&seen).unwrap_err().to_api();
        assert!(error.message.contains("nix") && error.message.contains("No module named"), "{error}");
        let seen = InterpreterInfo { threaded_by: Some("busy".into()), ..InterpreterInfo::default() };
        let error = check_imported(&seen).unwrap_err().to_api();
        assert!(error.message.starts_with("busy") && error.fix.contains("`imports`"), "{error}");
        assert!(check_imported(&InterpreterInfo::default()).is_ok());
    }
}

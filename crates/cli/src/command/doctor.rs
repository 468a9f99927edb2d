//! `bellglass doctor`: tests this machine by running real sandboxes.
//!
//! A tier is `ok` if a real sandbox started in it, had the promised posture, and ran a command. A tier is
//! `degraded` if all of this is true, but its runtime lacks known fixes or its backend lacks protections.
//! Otherwise, the tier is `refused`, with the reason and the fix, or `absent` if it is not installed. A
//! version number alone never determines the verdict.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::Error;
use api::limits::Limits;
use node::{Machine, Sandbox, machine};
use runtime::daytona::Account;
use runtime::engine::EngineKind;
use runtime::oci::Flavor;
use runtime::{Inspect as _, Profile, Spec, Tier, tables};

use crate::command::run;
use crate::{advisories, show};

/// Number of sandboxes that the machine should be able to run, which is the default maximum of a server.
const CROWD: u64 = 1000;

/// Arguments of `bellglass doctor`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Result of checking one component of the machine, or one tier.
struct Finding {
    part: String,
    version: String,
    verdict: FindingStatus,
    detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FindingStatus {
    Ok,
    Degraded,
    Refused,
    Absent,
}

impl FindingStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Refused => "refused",
            Self::Absent => "absent",
        }
    }

    /// Returns the verdict for a working component: `degraded` if the component lacks fixes or protections,
    /// and `ok` otherwise.
    fn working(lacking: &[&str]) -> Self {
        if lacking.is_empty() { Self::Ok } else { Self::Degraded }
    }
}

/// Checks the machine and prints the findings. Exits with 1 if no tier works.
pub async fn run(data: &Path, arguments: Arguments) -> Result<ExitCode, Error> {
    let machine = Machine::open(data).map_err(|error| error.to_api())?;
    run::tidy(&machine).await?;
    let mut host = vec![kernel(), memory_controllers(), processes(), open_files(), file_locks()];
    host.extend([
        tool("mke2fs", "e2fsprogs", "the sandbox's disk", FindingStatus::Refused),
        tool("mmdebstrap", "mmdebstrap", "`bellglass template build base`", FindingStatus::Absent),
    ]);
    let mut tiers = Vec::new();
    for flavor in Machine::flavors() {
        tiers.push(tier(&machine, flavor).await);
    }
    for kind in EngineKind::ALL {
        tiers.push(engine(&machine, kind).await);
    }
    if Account::is_meant() {
        tiers.push(daytona(&machine).await);
    }
    let works = tiers.iter().any(|tier| matches!(tier.verdict, FindingStatus::Ok | FindingStatus::Degraded));
    if arguments.json {
        let list = |findings: &[Finding]| findings.iter().map(Finding::json).collect::<Vec<_>>();
        let report = serde_json::json!({
            "bellglass": env!("CARGO_PKG_VERSION"), "works": works, "host": list(&host), "tiers": list(&tiers),
        });
        show::value(&report)?;
    } else {
        show::line(&format!("bellglass {} on {}\n", env!("CARGO_PKG_VERSION"), machine.data().display()))?;
        print("part", &host)?;
        show::line("")?;
        print("tier", &tiers)?;
        show::line(if works {
            "\nThis machine can run sandboxes."
        } else {
            "\nThis machine cannot run sandboxes: fix the parts with the verdict \"refused\"."
        })?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks a tier by starting a sandbox that contains only the guest. The start itself runs a command in it.
async fn tier(machine: &Machine, flavor: Flavor) -> Finding {
    let part = format!("{} ({})", tier_name(flavor.tier), flavor.name);
    let finding = |version: &str, verdict, detail: String| Finding {
        part: part.clone(),
        version: version.into(),
        verdict,
        detail,
    };
    let Ok(flavor) = flavor.clone().find() else {
        return finding("-", FindingStatus::Absent, format!("to enable this tier: {}", install(flavor.name)));
    };
    let version = version_of(&flavor);
    if !rustix::process::geteuid().is_root() {
        return finding(
            &version,
            FindingStatus::Refused,
            "this tier requires root: run `bellglass doctor` again with sudo".into(),
        );
    }
    match try_out(machine, flavor.name).await {
        Ok(took) => {
            let lacking = advisories::lacking(flavor.name, &version);
            let detail = match lacking.as_slice() {
                [] => format!("a sandbox started, passed its posture check and answered in {took:.0?}"),
                names => format!(
                    "a sandbox started in {took:.0?}, but upstream fixed {} after this version: check that your distribution backported the fix, or install a newer version",
                    names.join(", ")
                ),
            };
            finding(&version, FindingStatus::working(&lacking), detail)
        }
        Err(error) => finding(&version, FindingStatus::Refused, format!("{}. {}", error.message, error.fix)),
    }
}

/// Checks a container engine. Works like `tier`, but first queries the capabilities of the engine.
async fn engine(machine: &Machine, kind: EngineKind) -> Finding {
    let part = format!("container ({})", kind.name());
    let finding = |version: &str, verdict, detail: String| Finding {
        part: part.clone(),
        version: version.into(),
        verdict,
        detail,
    };
    let said = |error: &Error| format!("{}. {}", error.message, error.fix);
    let found = match machine.engine(kind) {
        Ok(found) => found,
        Err(error) => return finding("-", FindingStatus::Absent, said(&error.to_api())),
    };
    let facts = match found.facts().await {
        Ok(facts) => facts,
        Err(error) => return finding("-", FindingStatus::Refused, said(&node::Error::from(error).to_api())),
    };
    let lacks = match found.lacks().await {
        Ok(lacks) => lacks,
        Err(error) => {
            return finding(&facts.version, FindingStatus::Refused, said(&node::Error::from(error).to_api()));
        }
    };
    let names: Vec<&str> = lacks.iter().filter_map(|lack| lack.split(':').next()).collect();
    match try_out(machine, kind.name()).await {
        Ok(took) => finding(
            &facts.version,
            FindingStatus::working(&names),
            format!(
                "a sandbox started in {took:.0?}. Missing protections: {}. For details, run `bellglass status`",
                names.join(", ")
            ),
        ),
        Err(error) => finding(&facts.version, FindingStatus::Refused, said(&error)),
    }
}

/// Checks the configured Daytona account. The check shows only that Daytona accepts the key, because the
/// account may have no snapshot from which a sandbox could start.
async fn daytona(machine: &Machine) -> Finding {
    let tried = async {
        let daytona = machine.daytona()?;
        daytona.check().await?;
        Ok::<_, node::Error>(daytona.lacks().await?)
    };
    let (verdict, detail) = match tried.await {
        Ok(lacks) => {
            let names: Vec<&str> = lacks.iter().filter_map(|lack| lack.split(':').next()).collect();
            let detail = format!(
                "the account accepts the key. Missing protections: {}. To start a test sandbox there, run `bellglass sandbox-test`",
                names.join(", ")
            );
            (FindingStatus::Degraded, detail)
        }
        Err(error) => {
            let error = error.to_api();
            (FindingStatus::Refused, format!("{}. {}", error.message, error.fix))
        }
    };
    Finding { part: "container (daytona)".into(), version: "-".into(), verdict, detail }
}

async fn try_out(machine: &Machine, runtime: &str) -> Result<Duration, Error> {
    let runtime = machine.runtime(runtime).map_err(|error| error.to_api())?;
    let layers = match runtime.properties().takes_images {
        true => Vec::new(),
        false => vec![node::template::empty(machine.data()).await.map_err(|error| error.to_api())?],
    };
    let spec = Spec {
        layers,
        image: runtime::engine::EMPTY.into(),
        limits: Limits { disk_bytes: Limits::MIN.disk_bytes, ttl_ms: 60_000, ..Limits::default() },
        profile: Profile::Run,
        guest: machine.guest().to_owned(),
    };
    let began = Instant::now();
    let id = machine::fresh_id().map_err(|error| error.to_api())?;
    // The start already runs an exec and checks its posture, so no further check is needed.
    let sandbox = Sandbox::start(runtime, id, &spec).await.map_err(|error| error.to_api())?;
    let took = began.elapsed();
    sandbox.stop(Duration::ZERO).await.map_err(|error| error.to_api())?;
    Ok(took)
}

fn kernel() -> Finding {
    let version = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let lacking = advisories::lacking("linux", &version);
    let detail = match lacking.as_slice() {
        [] => "according to its version, the kernel has all known fixes".to_owned(),
        names => format!("upstream fixed {} after this version: update the kernel", names.join(", ")),
    };
    Finding { part: "linux".into(), version, verdict: FindingStatus::working(&lacking), detail }
}

fn memory_controllers() -> Finding {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let version = if unified { "2" } else { "1" };
    let counts_sockets = Path::new("/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes").exists();
    let (verdict, detail) = if unified || counts_sockets {
        (FindingStatus::Ok, "cgroups can limit memory, socket buffers, processes and CPU time")
    } else if Path::new("/sys/fs/cgroup/memory").exists() {
        (
            FindingStatus::Refused,
            "cgroup version 1 without memory.kmem.tcp cannot limit socket buffers; boot with cgroup version 2",
        )
    } else {
        (FindingStatus::Refused, "no memory controller: mount cgroups at /sys/fs/cgroup")
    };
    Finding { part: "cgroups".into(), version: version.into(), verdict, detail: detail.into() }
}

/// Checks that the machine allows enough processes for `CROWD` sandboxes, each with its full process limit in
/// use.
fn processes() -> Finding {
    let (total, each) = (tables::tasks_of_all(), tables::tasks_of(&Limits::default(), Tier::Container));
    let enough = format!(
        "the machine has enough processes for {} sandboxes with the default process limit",
        total / each
    );
    let (verdict, detail) = if total / each >= CROWD {
        (FindingStatus::Ok, enough)
    } else {
        (
            FindingStatus::Degraded,
            format!("{enough}; to raise this number: `sysctl -w kernel.pid_max=4194304`"),
        )
    };
    Finding { part: "processes".into(), version: tables::tasks().total.to_string(), verdict, detail }
}

/// Checks the maximum number of open files per process. The maximum is reduced if the machine allows few open
/// files in total.
fn open_files() -> Finding {
    let (each, most) = (tables::open_files(&Limits::default()), tables::open_files(&Limits::MIN));
    let (verdict, detail) = if each == most {
        (FindingStatus::Ok, format!("a process in a sandbox may open {each} files"))
    } else {
        let detail = format!(
            "a process in a sandbox may open only {each} files, so that one sandbox cannot use up all open files of the machine; to raise this limit: `sysctl -w fs.file-max=9223372036854775807`"
        );
        (FindingStatus::Degraded, detail)
    };
    Finding { part: "open files".into(), version: tables::files().total.to_string(), verdict, detail }
}

/// Checks whether the kernel counts file locks. Linux does not limit file locks, so the server uses this
/// count to stop containers with too many.
fn file_locks() -> Finding {
    let (verdict, detail) = match tables::locks() {
        Some(_) => (
            FindingStatus::Ok,
            "Linux does not limit file locks, so the server stops a container that holds tens of thousands of them (kernel_resource); tier user-kernel keeps file locks in its own kernel",
        ),
        None => (
            FindingStatus::Degraded,
            "Linux does not limit file locks, and this kernel does not count them (/proc/slabinfo); run untrusted code in tier user-kernel",
        ),
    };
    Finding { part: "file locks".into(), version: "-".into(), verdict, detail: detail.into() }
}

fn tool(name: &str, package: &str, purpose: &str, without: FindingStatus) -> Finding {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&directories).collect();
    places.extend(["/usr/sbin", "/sbin"].map(Into::into));
    let (verdict, detail) = if places.iter().any(|place| place.join(name).is_file()) {
        (FindingStatus::Ok, format!("installed; needed for {purpose}"))
    } else {
        (without, format!("not installed, but needed for {purpose}: apt-get install {package}"))
    };
    Finding { part: name.into(), version: "-".into(), verdict, detail }
}

fn version_of(flavor: &Flavor) -> String {
    let output = std::process::Command::new(&flavor.binary).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    first.split_whitespace().next_back().unwrap_or("unknown").to_owned()
}

fn install(name: &str) -> &'static str {
    match name {
        "runc" => "apt-get install runc",
        "runsc" => "apt-get install -t bookworm-backports runsc",
        _ => "cargo install youki",
    }
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Container => "container",
        Tier::UserKernel => "user-kernel",
    }
}

fn print(head: &str, findings: &[Finding]) -> Result<(), Error> {
    let rows: Vec<_> = findings
        .iter()
        .map(|finding| {
            vec![
                finding.part.clone(),
                finding.version.clone(),
                finding.verdict.word().into(),
                finding.detail.clone(),
            ]
        })
        .collect();
    show::table(&[head, "version", "verdict", "finding"], &rows)
}

impl Finding {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "part": self.part, "version": self.version, "verdict": self.verdict.word(), "detail": self.detail,
        })
    }
}

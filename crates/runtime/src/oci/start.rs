//! Starting a sandbox: named steps. The undo of every one is [`super::stop::teardown`], which removes by name.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::SandboxId;
use api::trace::STEP;
use rustix::mount::MountFlags;
use rustix::process::Signal;
use tracing::info_span;

use super::cgroup::Cgroups;
use super::disk::{Disk, UPPER, WORK};
use super::mounts::{Operation, c_string};
use super::process::{Process, Words};
use super::record::Record;
use super::{Hand, Oci, channel, config, disk, owners, process, stop};
use crate::{Error, Profile, Spec, files};

/// What a start has done after each step, in order.
pub(super) const STEPS: [&str; 8] =
    ["record", "cgroups", "disk", "device", "bundle", "channel", "run", "process"];
/// An OCI runtime takes 40 to 200 ms; a machine in trouble is given time.
const RUN: Duration = Duration::from_secs(30);
/// Layers of one template. More would not be named by one byte in a report, nor fit an overlay's page of options.
const LAYERS_MAX: usize = 128;

/// Starts a sandbox; if that fails, nothing of it is left.
pub(super) fn start(oci: &Oci, id: &SandboxId, spec: &Spec) -> Result<Hand, Error> {
    check(spec)?;
    let (record, lock) = info_span!(target: STEP, "record")
        .in_scope(|| oci.dirs.reserve(id, oci.flavor.name, spec.profile.owns_files()))?;
    oci.reached("record");
    match build(oci, id, spec, record) {
        Ok(hand) => Ok(Hand { lock: Mutex::new(Some(lock)), ..hand }),
        Err(error) => {
            // The first error is the one to know; what a failed teardown leaves is listed and can be stopped again.
            let _ = stop::teardown(oci, id, None);
            Err(error)
        }
    }
}

impl Oci {
    /// Says that a step is done: a test may want this process to die right here.
    fn reached(&self, step: &str) {
        if self.crash_at.as_deref() == Some(step) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        }
    }
}

fn check(spec: &Spec) -> Result<(), Error> {
    if spec.layers.is_empty() || spec.layers.len() > LAYERS_MAX {
        return Err(Error::Unsupported {
            what: "this number of layers",
            why: format!("there are {}, and 1 to {LAYERS_MAX} can be mounted", spec.layers.len()),
        });
    }
    let total = crate::machine_memory_bytes();
    if spec.limits.memory_bytes > total {
        return Err(Error::Capacity {
            what: "memory",
            why: format!("{} bytes were asked for, the machine has {total}", spec.limits.memory_bytes),
        });
    }
    Ok(())
}

fn build(oci: &Oci, id: &SandboxId, spec: &Spec, mut record: Record) -> Result<Hand, Error> {
    let (bundle, channel) = (oci.dirs.bundle(id), oci.dirs.channel(id));
    info_span!(target: STEP, "cgroups").in_scope(|| oci.cgroups.make(id, &spec.limits, oci.flavor.tier))?;
    oci.reached("cgroups");
    info_span!(target: STEP, "disk")
        .in_scope(|| disk::make(&oci.dirs.disk(id), &oci.dirs.blanks(), &spec.limits))?;
    oci.reached("disk");
    let disk = info_span!(target: STEP, "device").in_scope(|| {
        disk::attach(&oci.dirs.disk(id), |number| {
            record.device = Some(number);
            oci.dirs.save(id, &record)
        })
    })?;
    oci.reached("device");
    info_span!(target: STEP, "bundle").in_scope(|| {
        lay_out(&bundle, spec)?;
        let config = config::config(id, spec, &bundle, (record.base(), oci.flavor.tier));
        files::write(&bundle.join("config.json"), &config.to_string())
    })?;
    oci.reached("bundle");
    let bound = info_span!(target: STEP, "channel").in_scope(|| {
        channel::make(&channel, record.base())?;
        channel::listen(&channel, record.base())
    })?;
    oci.reached("channel");
    let operations =
        info_span!(target: STEP, "mounts").in_scope(|| operations(oci, id, spec, (&disk, record.base())))?;
    info_span!(target: STEP, "run", what = oci.flavor.name).in_scope(|| run(oci, id, &operations))?;
    oci.reached("run");
    let process = info_span!(target: STEP, "process").in_scope(|| {
        let process = identify(oci, id)?;
        record.process = Some(process.identity);
        oci.dirs.save(id, &record)?;
        Ok::<_, Error>(process)
    })?;
    oci.reached("process");
    Ok(Hand {
        process: Mutex::new(Some(Arc::new(process))),
        bound: Mutex::new(Some(bound)),
        ..Hand::default()
    })
}

/// Makes the places at which things are mounted. They stay empty in the host's namespace.
fn lay_out(bundle: &Path, spec: &Spec) -> Result<(), Error> {
    files::directory(bundle, 0o711)?;
    // Each is made and removed with every sandbox: only what is mounted at.
    for name in ["rootfs", "disk"] {
        files::directory(&bundle.join(name), 0o711)?;
    }
    if is_overlaid(spec) {
        files::directory(&bundle.join("layers"), 0o711)?;
        for number in 0..spec.layers.len() {
            files::directory(&bundle.join("layers").join(number.to_string()), 0o711)?;
        }
    }
    if let Profile::Unpack { done, .. } = &spec.profile {
        for name in ["done", "target"] {
            files::directory(&bundle.join(name), 0o711)?;
        }
        for number in 0..done.len() {
            files::directory(&bundle.join("done").join(number.to_string()), 0o711)?;
        }
    }
    files::write(&bundle.join("guest"), "")
}

fn operations(
    oci: &Oci,
    id: &SandboxId,
    spec: &Spec,
    (disk, base): (&Disk, u32),
) -> Result<Vec<Operation>, Error> {
    let bundle = oci.dirs.bundle(id);
    let owners = Arc::new(owners::namespace(base)?);
    let mirror = |source: &Path, target: &Path, writable: bool, shifted: bool| {
        Ok::<_, Error>(Operation::Mirror {
            source: c_string(source.as_os_str())?,
            target: c_string(target.as_os_str())?,
            writable,
            owners: shifted.then(|| Arc::clone(&owners)),
        })
    };
    let mut operations = vec![
        Operation::DieWith { parent: rustix::process::getpid() },
        Operation::Join { procs: oci.cgroups.runtime_procs(id)? },
        Operation::Separate,
    ];
    operations.extend(disk.operations(&bundle.join("disk"), base)?);
    if is_overlaid(spec) {
        for (number, layer) in spec.layers.iter().enumerate() {
            operations.push(mirror(layer, &bundle.join("layers").join(number.to_string()), false, true)?);
        }
        operations.extend(overlay(&bundle, spec)?);
    } else {
        for layer in &spec.layers {
            operations.push(mirror(layer, &bundle.join("rootfs"), false, true)?);
        }
    }
    operations.push(mirror(&spec.guest, &bundle.join("guest"), false, false)?);
    if let Profile::Unpack { done, target } = &spec.profile {
        operations.push(mirror(target, &bundle.join("target"), true, true)?);
        for (number, layer) in done.iter().enumerate() {
            operations.push(mirror(layer, &bundle.join("done").join(number.to_string()), false, true)?);
        }
    }
    Ok(operations)
}

/// Whether the root is more than one directory.
fn is_overlaid(spec: &Spec) -> bool {
    spec.layers.len() > 1 || spec.profile.writes_root()
}

/// Lays the mirrored layers over each other, and what a build changes over them all. Opaque directories are marked in the
/// `user` namespace of attributes, because the guest that unpacked them was not root of the machine.
fn overlay(bundle: &Path, spec: &Spec) -> Result<[Operation; 3], Error> {
    // The first named is the uppermost.
    let names: Vec<String> = (0..spec.layers.len()).rev().map(|number| number.to_string()).collect();
    let mut options = format!("lowerdir={},userxattr", names.join(":"));
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    if spec.profile.writes_root() {
        let [upper, work] = [UPPER, WORK].map(|name| format!("../disk/{name}"));
        options.push_str(&format!(",upperdir={upper},workdir={work}"));
    } else {
        flags |= MountFlags::RDONLY;
    }
    Ok([
        Operation::Enter { path: c_string(bundle.join("layers").as_os_str())? },
        Operation::Mount {
            kind: c"overlay",
            source: c"overlay".to_owned(),
            target: c_string(bundle.join("rootfs").as_os_str())?,
            flags,
            options: c_string(options.as_ref())?,
        },
        Operation::Enter { path: c"/".to_owned() },
    ])
}

fn run(oci: &Oci, id: &SandboxId, operations: &[Operation]) -> Result<(), Error> {
    let log = oci.dirs.sandbox(id).join("runtime.log");
    files::directory(&oci.dirs.state(oci.flavor.name, id), 0o700)?;
    let mut command = oci.command(id);
    command
        .arg("--log")
        .arg(&log)
        .arg("run")
        .arg("--detach")
        .arg("--bundle")
        .arg(oci.dirs.bundle(id))
        .arg("--pid-file")
        .arg(oci.dirs.sandbox(id).join("pid"))
        .arg(id.as_str());
    process::run(&command, operations, &Words::Log(&log), RUN)?;
    files::remove_file(&log)
}

impl Oci {
    /// The OCI runtime's command line up to the verb.
    pub(super) fn command(&self, id: &SandboxId) -> Command {
        let mut command = Command::new(&self.flavor.binary);
        command.arg("--root").arg(self.dirs.state(self.flavor.name, id)).args(self.flavor.flags);
        command
    }
}

/// Takes hold of process 1, whose pid the OCI runtime wrote down.
fn identify(oci: &Oci, id: &SandboxId) -> Result<Process, Error> {
    let path = oci.dirs.sandbox(id).join("pid");
    let pid = files::read(&path)?.trim().parse().unwrap_or(0);
    let process = Process::open(pid)?.ok_or_else(|| Error::Ended(id.clone()))?;
    // It may have ended in the meantime, and then it is in no cgroup; but another process it is not.
    if process.is_alive() && !Cgroups::holds(id, pid)? && process.is_alive() {
        return Err(Error::Impostor {
            id: id.clone(),
            why: format!("process {pid} is not in the sandbox's cgroup"),
        });
    }
    Ok(process)
}

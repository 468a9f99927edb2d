//! Starts a sandbox in named steps. [`super::stop::teardown`] undoes all of these steps by removing every
//! resource by name.

use std::os::unix::net::UnixListener as StdListener;
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
use super::owners::Owners;
use super::process::{ProcessHandle, Words};
use super::record::OciRecord;
use super::{Hand, Oci, channel, config, disk, nodes, process, stop};
use crate::{Error, Profile, Spec, Tier, confinement, files};

/// Names of the startup steps, in order.
pub(super) const STEPS: [&str; 8] =
    ["record", "cgroups", "disk", "device", "bundle", "channel", "run", "process"];
/// Timeout for the OCI runtime. It usually takes 40 to 200 ms; the rest is a margin for an overloaded
/// machine.
const RUN: Duration = Duration::from_secs(30);
/// Maximum number of layers in a template. With this limit, the list of layers stays far below one page,
/// which is the maximum length of an overlay's mount options.
const LAYERS_MAX: usize = 128;

/// Two extra directories among the layers. One contains the guest's executable. The other is empty and is
/// needed because an overlay without an upper directory must have at least two lower directories.
const GUEST: &str = "guest";
const EMPTY: &str = "empty";

/// Starts a sandbox. On failure, nothing is left behind.
pub(super) fn start(oci: &Oci, id: &SandboxId, spec: &Spec) -> Result<Hand, Error> {
    check(spec)?;
    let (record, lock) = info_span!(target: STEP, "record")
        .in_scope(|| oci.dirs.reserve(id, oci.flavor.name, spec.profile.owns_files()))?;
    oci.reached("record");
    match build(oci, id, spec, record) {
        Ok(hand) => Ok(Hand { lock: Mutex::new(Some(lock)), ..hand }),
        Err(error) => {
            // Report the first error. Anything that a failed teardown leaves behind stays listed and can be
            // stopped again.
            let _ = stop::teardown(oci, id, None);
            Err(error)
        }
    }
}

impl Oci {
    /// Marks a step as complete. Tests can make the process die at this point.
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
            why: format!("{} layers were given, and 1 to {LAYERS_MAX} can be mounted", spec.layers.len()),
        });
    }
    let total = crate::machine_memory_bytes();
    if spec.limits.memory_bytes > total {
        return Err(Error::Capacity {
            what: "memory",
            why: format!("{} bytes were requested, the machine has {total}", spec.limits.memory_bytes),
        });
    }
    Ok(())
}

fn build(oci: &Oci, id: &SandboxId, spec: &Spec, mut record: OciRecord) -> Result<Hand, Error> {
    let bundle = oci.dirs.bundle(id);
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
    let owners = info_span!(target: STEP, "owners").in_scope(|| Owners::make(record.base()))?;
    info_span!(target: STEP, "bundle").in_scope(|| {
        lay_out(&bundle, spec)?;
        let path = owners.path();
        let namespace = config::UserNamespace { base: record.base(), path: &path };
        let config = config::config(id, spec, &bundle, oci.flavor.tier, namespace);
        files::write(&bundle.join("config.json"), &config.to_string())
    })?;
    oci.reached("bundle");
    let channel = info_span!(target: STEP, "channel")
        .in_scope(|| Channel::make(oci.flavor.tier, &oci.dirs.channel(id), record.base()))?;
    oci.reached("channel");
    let resources = MountResources { disk: &disk, channel: &channel, owners: &owners, base: record.base() };
    let operations = info_span!(target: STEP, "mounts").in_scope(|| operations(oci, id, spec, &resources))?;
    info_span!(target: STEP, "run", what = oci.flavor.name).in_scope(|| run(oci, id, &operations))?;
    drop((operations, owners));
    let bound = channel.into_listener()?;
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

/// Creates the mount points, which stay empty in the host's mount namespace.
fn lay_out(bundle: &Path, spec: &Spec) -> Result<(), Error> {
    files::directory(bundle, 0o711)?;
    // These directories are created and removed with every sandbox, so only the necessary ones are created.
    for name in ["rootfs", "disk", "guest", nodes::PLACE, "layers"] {
        files::directory(&bundle.join(name), 0o711)?;
    }
    let numbers = (0..spec.layers.len()).map(|number| number.to_string());
    for name in numbers.chain([GUEST, EMPTY].map(str::to_owned)) {
        files::directory(&bundle.join("layers").join(name), 0o711)?;
    }
    if let Profile::Unpack { done, .. } = &spec.profile {
        for name in ["done", "target"] {
            files::directory(&bundle.join(name), 0o711)?;
        }
        for number in 0..done.len() {
            files::directory(&bundle.join("done").join(number.to_string()), 0o711)?;
        }
    }
    Ok(())
}

/// The resources that a sandbox's mounts use.
struct MountResources<'a> {
    disk: &'a Disk,
    channel: &'a Channel,
    owners: &'a Owners,
    /// The first host user ID of the sandbox's range.
    base: u32,
}

fn operations(
    oci: &Oci,
    id: &SandboxId,
    spec: &Spec,
    resources: &MountResources<'_>,
) -> Result<Vec<Operation>, Error> {
    let MountResources { disk, channel, owners, base } = *resources;
    let bundle = oci.dirs.bundle(id);
    let mirror = |source: &Path, target: &Path, writable: bool, shifted: bool| {
        Ok::<_, Error>(Operation::Mirror {
            source: c_string(source.as_os_str())?,
            target: c_string(target.as_os_str())?,
            writable,
            owners: shifted.then(|| Arc::clone(&owners.namespace)),
        })
    };
    let mut operations = vec![
        Operation::DieWith { parent: rustix::process::getpid() },
        Operation::Join { procs: oci.cgroups.runtime_procs(id)? },
        Operation::Separate,
    ];
    operations.extend(nodes::mount(&bundle, disk)?);
    operations.extend(disk.operations(nodes::DISK, &bundle.join("disk"), base)?);
    if let Channel::Inside(socket) = channel {
        operations.extend(nodes::listen(&bundle, socket, base)?);
    }
    let layers = bundle.join("layers");
    for (number, layer) in spec.layers.iter().enumerate() {
        operations.push(mirror(layer, &layers.join(number.to_string()), false, true)?);
    }
    let guest = spec.guest.parent().unwrap_or(&spec.guest);
    operations.push(mirror(guest, &layers.join(GUEST), false, false)?);
    operations.push(Operation::Enter { path: c_string(layers.as_os_str())? });
    operations.push(root(&bundle, spec)?);
    operations.push(overlay(&bundle.join("guest"), &[GUEST, EMPTY], None)?);
    operations.push(Operation::Enter { path: c"/".to_owned() });
    if let Profile::Unpack { done, target } = &spec.profile {
        operations.push(mirror(target, &bundle.join("target"), true, true)?);
        for (number, layer) in done.iter().enumerate() {
            operations.push(mirror(layer, &bundle.join("done").join(number.to_string()), false, true)?);
        }
    }
    if !api::defence::is_off("X-21") {
        operations.push(nodes::expose(&bundle)?);
    }
    if oci.flavor.tier == Tier::Container {
        let limits = confinement::process_limits(&spec.limits).into_iter();
        operations.extend(limits.map(|(resource, _, value)| Operation::Limit { resource, value }));
    }
    Ok(operations)
}

/// Returns the operation that mounts the root file system. The root is an overlay even if there is a single
/// layer, so that its inodes belong to this sandbox alone. Other sandboxes from the same template then cannot
/// watch the files that are opened here, or hold locks that have an effect here. Nevertheless, all of them
/// share one page cache for the files.
fn root(bundle: &Path, spec: &Spec) -> Result<Operation, Error> {
    let target = bundle.join("rootfs");
    if api::defence::is_off("X-20") && spec.layers.len() == 1 && !spec.profile.writes_root() {
        return Ok(Operation::Bind { source: c"0".to_owned(), target: c_string(target.as_os_str())? });
    }
    // The first name is the topmost layer.
    let mut names: Vec<String> = (0..spec.layers.len()).rev().map(|number| number.to_string()).collect();
    if !spec.profile.writes_root() && names.len() == 1 {
        names.push(EMPTY.into());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    overlay(&target, &names, spec.profile.writes_root().then_some([UPPER, WORK]))
}

/// Returns the operation that mounts an overlay of the named directories in the bundle's `layers` directory,
/// with the first one on top. The writable layer, if there is one, is above all of them. The names are
/// relative because they are visible in the sandbox's mount table. Opaque directories are marked by extended
/// attributes in the `user` namespace, because the guest that unpacked them was not root on the host.
fn overlay(target: &Path, names: &[&str], written: Option<[&str; 2]>) -> Result<Operation, Error> {
    let mut options = format!("lowerdir={},userxattr", names.join(":"));
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    match written {
        Some([upper, work]) => {
            options.push_str(&format!(",upperdir=../disk/{upper},workdir=../disk/{work}"));
        }
        None => flags |= MountFlags::RDONLY,
    }
    Ok(Operation::Mount {
        kind: c"overlay",
        source: c"overlay".to_owned(),
        target: c_string(target.as_os_str())?,
        flags,
        options: c_string(options.as_ref())?,
    })
}

/// The listening side of the channel, before the guest connects.
enum Channel {
    /// A socket in the sandbox's own file system.
    Inside(channel::ChannelSocket),
    /// A socket in a host directory.
    Host(StdListener),
}

impl Channel {
    fn make(tier: Tier, path: &Path, base: u32) -> Result<Self, Error> {
        match tier {
            Tier::Container => channel::ChannelSocket::new().map(Self::Inside),
            Tier::UserKernel => {
                channel::make(path, base)?;
                channel::listen(path, base).map(Self::Host)
            }
        }
    }

    fn into_listener(self) -> Result<StdListener, Error> {
        match self {
            Self::Inside(socket) => socket.into_listener(),
            Self::Host(listener) => Ok(listener),
        }
    }
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
    /// Returns the OCI runtime's command line up to the subcommand.
    pub(super) fn command(&self, id: &SandboxId) -> Command {
        let mut command = Command::new(&self.flavor.binary);
        command.arg("--root").arg(self.dirs.state(self.flavor.name, id)).args(self.flavor.flags);
        command
    }
}

/// Opens process 1, whose pid the OCI runtime has written to a file.
fn identify(oci: &Oci, id: &SandboxId) -> Result<ProcessHandle, Error> {
    let path = oci.dirs.sandbox(id).join("pid");
    let pid = files::read(&path)?.trim().parse().unwrap_or(0);
    let process = ProcessHandle::open(pid)?.ok_or_else(|| Error::Ended(id.clone()))?;
    // If process 1 has already ended, it is in no cgroup, which is not an error. However, a live process
    // outside the sandbox's cgroup is not process 1.
    if process.is_alive() && !Cgroups::holds(id, pid)? && process.is_alive() {
        return Err(Error::Impostor {
            id: id.clone(),
            why: format!("process {pid} is not in the sandbox's cgroup"),
        });
    }
    Ok(process)
}

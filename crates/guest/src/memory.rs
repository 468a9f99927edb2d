//! Detects OOM kills and cleans up after them.
//!
//! The kernel counts the OOM kills in the cgroup of user code, and the node sends the guest a descriptor of
//! that count. In cgroup version 2, the kernel kills all user code at once. In version 1, it kills one
//! process and leaves the others, so an event notifies the guest, which kills the rest. gVisor has neither a
//! count nor an event: exceeding the limit ends the sandbox, and the node reports this. If a container engine
//! runs the sandbox, the node sends no descriptor. Process 1 is then in the same cgroup as user code, and
//! opens and polls the count itself.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use api::exec::ExecSpec;
use api::limits;
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::launch::{Isolation, Purpose, launch};
use crate::sweep::{self, Whom};
use crate::watched::{Watched, watch};

/// Directory of shared memory. Files that remain here after an OOM kill still count as used memory, and would
/// make the next exec run out of memory as well.
const SHARED_MEMORY: &str = "/dev/shm";
/// Command that removes the files in shared memory. It runs this program as each of their owners.
const EMPTY: [&str; 2] = ["/.bellglass/guest", "empty"];
/// Group of the cleanup processes: the first ID above the range of exec groups.
const TIDY_GROUP: u32 = *limits::EXEC_GROUPS.end() + 1;

/// Maximum number of users to clean up after. An exec can run as any of tens of thousands of users, but most
/// sandboxes use only one.
const OWNERS_MAX: usize = 16;
/// Maximum number of checks for an OOM kill after its event. The kill follows within about a millisecond, so
/// a total of one second is enough even on a busy machine.
const KILL_LOOKS: u32 = 500;
const KILL_LOOK_EVERY: Duration = Duration::from_millis(2);
/// Maximum number of checks for the end of the cleanup before an exec starts anyway. Cleanup takes
/// milliseconds. If cleanup hangs, the exec starts anyway, at the risk of being killed by the cleanup.
const SETTLE_LOOKS: u32 = 20;
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Paths of the OOM counter inside the sandbox: cgroup version 2, then version 1.
const OWN_COUNTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
/// Interval between two reads of the OOM counter. Processes that survive an OOM kill continue for at most
/// this long.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Counter of OOM kills, if the sandbox's isolation tier has one.
#[derive(Default)]
pub struct Kills {
    count: RefCell<Option<OwnedFd>>,
    /// Notified when the guest is about to kill user code after an OOM kill, so that running execs end with
    /// the outcome `oom`.
    pub struck: Rc<Notify>,
    watching: Cell<bool>,
    /// Number of OOM kills whose cleanup is complete.
    tidied: Cell<u64>,
    /// Notified when `tidied` changes.
    settled: Notify,
}

impl Kills {
    /// Takes the descriptors of a new connection. Watches an event descriptor only if none is watched yet.
    pub fn attend(self: &Rc<Self>, count: Option<OwnedFd>, event: Option<OwnedFd>) {
        if let Some(count) = count {
            self.count.replace(Some(count));
        }
        if let Some(event) = event.and_then(|event| watch(event, Interest::READABLE).ok())
            && !self.watching.replace(true)
        {
            tokio::task::spawn_local(Rc::clone(self).watch(event));
        }
    }

    /// Opens the OOM counter from inside the sandbox, and starts polling it.
    pub fn look_ourselves(self: &Rc<Self>) {
        let Some(count) = OWN_COUNTS.iter().find_map(|path| std::fs::File::open(path).ok()) else { return };
        self.count.replace(Some(count.into()));
        self.watching.set(true);
        let kills = Rc::clone(self);
        tokio::task::spawn_local(async move {
            kills.tidied.set(kills.count());
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                kills.strike(kills.count()).await;
            }
        });
    }

    /// Kills all remaining user code and cleans up, unless that was already done for `count` OOM kills.
    async fn strike(&self, count: u64) {
        if count > self.tidied.get() {
            self.struck.notify_waiters();
            sweep::kill(Whom::Everybody).await;
            empty_shared_memory().await;
            self.tidied.set(count);
            self.settled.notify_waiters();
        }
    }

    /// Waits until the cleanup after the last OOM kill is done, so that the cleanup cannot kill a process
    /// that starts now. This wait has a time limit.
    pub async fn settled(&self) {
        for _ in 0..SETTLE_LOOKS {
            let settled = self.settled.notified();
            if !self.watching.get() || self.count() <= self.tidied.get() {
                return;
            }
            let _ = tokio::time::timeout(SETTLE_LOOK_EVERY, settled).await;
        }
    }

    /// Cleans up after an OOM kill that ended an exec, or waits until the watching task has done so.
    pub async fn tidy(&self) {
        if self.watching.get() {
            self.settled().await;
        } else {
            empty_shared_memory().await;
        }
    }

    /// Returns the number of OOM kills; 0 if the tier does not count them.
    pub fn count(&self) -> u64 {
        let count = self.count.borrow();
        let Some(file) = count.as_ref() else { return 0 };
        let mut buffer = [0; 512];
        let Ok(length) = rustix::io::pread(file, &mut buffer, 0) else { return 0 };
        kills_in(&String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()))
    }

    /// Waits until the count exceeds `known`, and returns it. This wait is necessary, because the kernel
    /// sends the event before it kills and counts.
    async fn more_than(&self, known: u64) -> Option<u64> {
        for _ in 0..KILL_LOOKS {
            match self.count() {
                now if now > known => return Some(now),
                _ => tokio::time::sleep(KILL_LOOK_EVERY).await,
            }
        }
        None
    }

    async fn watch(self: Rc<Self>, event: Watched) {
        self.tidied.set(self.count());
        while let Ok(mut ready) = event.readable().await {
            let mut buffer = [0; 8];
            let _ = rustix::io::read(event.get_ref(), &mut buffer);
            ready.clear_ready();
            drop(ready);
            if let Some(now) = self.more_than(self.tidied.get()).await {
                self.strike(now).await;
            }
        }
        self.watching.set(false);
    }
}

/// Returns the number of OOM kills in the text of a counter file. In both cgroup versions, the file has a
/// line `oom_kill N`.
fn kills_in(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Removes files and System V segments that dead processes left in shared memory. System V segments outlive
/// the processes that use them. Only an owner may remove its files and segments, so one child runs as each
/// owner, for at most [`OWNERS_MAX`] owners.
async fn empty_shared_memory() {
    let mut owners: Vec<u32> = segments().map(|(_, owner)| owner).chain([limits::UID]).collect();
    let entries = std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    owners.extend(entries.filter_map(|entry| Some(MetadataExt::uid(&entry.metadata().ok()?))));
    owners.sort_unstable();
    owners.dedup();
    owners.truncate(OWNERS_MAX);
    run_as(&owners, &EMPTY).await;
}

/// Runs a program once as each of these users. User code can stop processes of its own user, so processes
/// that do not finish in time are killed. The processes run in the guest's cgroup, because the cgroup of user
/// code may have too little memory left to start a process.
async fn run_as(owners: &[u32], argv: &[&str]) {
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    let spec = |owner| ExecSpec {
        argv: argv.clone(),
        cwd: Some("/".into()),
        uid: Some(owner),
        ..ExecSpec::default()
    };
    let who = |spec: &ExecSpec| Purpose::Run.identity(spec, TIDY_GROUP);
    // These processes need neither pipes that they own nor namespaces, so the strictest settings suit every
    // kernel.
    let isolation = Isolation { cgroups: &[], in_user_kernel: true };
    let launch = |spec: ExecSpec| launch(&spec, who(&spec), &isolation, &[]).ok();
    // A child that cannot start exits anyway, so the result of its start is ignored.
    let launched = owners.iter().map(|owner| spec(*owner)).filter_map(launch);
    let mut children: Vec<String> =
        launched.map(|child| format!("/proc/{}", child.pid.as_raw_nonzero())).collect();
    // Process 1 reaps these children like all others. A child is done when it no longer exists in `/proc`.
    for _ in 0..KILL_LOOKS {
        children.retain(|child| Path::new(child).exists());
        if children.is_empty() {
            return;
        }
        tokio::time::sleep(KILL_LOOK_EVERY).await;
    }
    sweep::kill(Whom::Group(TIDY_GROUP)).await;
}

/// Runs `guest empty`, which `run_as` starts for each owner: removes everything in shared memory that this
/// user may remove.
pub fn empty() -> ExitCode {
    empty_directory(Path::new(SHARED_MEMORY));
    for (segment, _) in segments() {
        // SAFETY: The call reads no pointer for this request.
        unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
    }
    ExitCode::SUCCESS
}

/// Lists the System V segments of this sandbox with their owners. The columns of the file are described in
/// proc(5): key, ID, mode, size, two process IDs, number of attaches, owner.
fn segments() -> impl Iterator<Item = (libc::c_int, u32)> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    lines.into_iter().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.nth(1)?.parse().ok()?, words.nth(5)?.parse().ok()?))
    })
}

/// Removes everything below a directory that this user may remove. Removes symbolic links without following
/// them.
fn empty_directory(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_directory {
            std::fs::remove_dir_all(entry.path())
        } else {
            std::fs::remove_file(entry.path())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_read_from_both_versions() {
        assert_eq!(kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(kills_in("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 1\n"), 1);
        assert_eq!(kills_in(""), 0);
    }

    #[test]
    fn who_tidies_and_is_stopped_is_ended_and_holds_up_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let began = std::time::Instant::now();
            let mut ticks = 0;
            let stopped = run_as(&[limits::UID], &["/bin/sh", "-c", "kill -STOP $$"]);
            tokio::pin!(stopped);
            loop {
                tokio::select! {
                    () = &mut stopped => break,
                    () = tokio::time::sleep(Duration::from_millis(10)) => ticks += 1,
                }
            }
            assert!(ticks > 10, "others were served {ticks} times meanwhile");
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
            assert!(sweep::find(Whom::Group(TIDY_GROUP)).is_empty());
        });
    }
}

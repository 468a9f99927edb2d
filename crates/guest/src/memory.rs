//! Telling that memory was used up, and tidying after it.
//!
//! The kernel counts memory kills for the cgroup of user code; the node hands us a descriptor of that count. On
//! cgroup version 2 the kernel ends all of user code at once. Version 1 kills one process and leaves a half-dead
//! tree, so there we are told by an event and end the rest ourselves. Under gVisor neither exists: an overrun ends
//! the sandbox, and the node says so. Where an engine runs the sandbox, nothing is handed over: process 1 is in the same cgroup as
//! user code, reads the count from inside, and looks at it again and again.

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

use crate::launch::{Purpose, launch};
use crate::sweep::{self, Whom};
use crate::watched::{Watched, watch};

/// What is left here after a memory kill stays charged and would kill the next exec too.
const SHARED_MEMORY: &str = "/dev/shm";
/// What removes it: this program, as the owner of what is left.
const EMPTY: [&str; 2] = ["/.bellglass/guest", "empty"];
/// The group by which its processes are found: the first that no exec has.
const TIDY_GROUP: u32 = *limits::EXEC_GROUPS.end() + 1;

/// Users that are cleaned up after. An exec can be any of tens of thousands; most sandboxes have one.
const OWNERS_MAX: usize = 16;
/// A kill follows its event within a millisecond or so; a second is for a machine that has better things to do.
const KILL_LOOKS: u32 = 500;
const KILL_LOOK_EVERY: Duration = Duration::from_millis(2);
/// Tidying takes milliseconds. After these looks an exec starts in any case: it may be killed, but it is not held up.
const SETTLE_LOOKS: u32 = 20;
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where the count is read from inside: on version 2, and on version 1.
const OWN_COUNTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
/// Between two looks at it. What a kill leaves half-dead goes on for so long.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The count of memory kills, as far as this tier has one.
#[derive(Default)]
pub struct Kills {
    count: RefCell<Option<OwnedFd>>,
    /// Raised when user code is about to be ended because of an event, so that running execs can be told.
    pub struck: Rc<Notify>,
    watching: Cell<bool>,
    /// The count up to which everything has been tidied.
    tidied: Cell<u64>,
    /// Raised when that has changed.
    settled: Notify,
}

impl Kills {
    /// Takes the descriptors of a new connection. The first event descriptor is watched until the end.
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

    /// Reads the count from inside, and looks at it from now on.
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

    /// Ends the rest of user code and tidies, if there were so many kills and not all of them are tidied after.
    async fn strike(&self, count: u64) {
        if count > self.tidied.get() {
            self.struck.notify_waiters();
            sweep::kill(Whom::Everybody).await;
            empty_shared_memory().await;
            self.tidied.set(count);
            self.settled.notify_waiters();
        }
    }

    /// Waits until nothing of the last memory kill is left to end or to remove: whoever starts now is safe from it.
    pub async fn settled(&self) {
        for _ in 0..SETTLE_LOOKS {
            let settled = self.settled.notified();
            if !self.watching.get() || self.count() <= self.tidied.get() {
                return;
            }
            let _ = tokio::time::timeout(SETTLE_LOOK_EVERY, settled).await;
        }
    }

    /// Tidies after a memory kill that ended an exec, or waits until that is done.
    pub async fn tidy(&self) {
        if self.watching.get() {
            self.settled().await;
        } else {
            empty_shared_memory().await;
        }
    }

    /// How often the kernel has killed for memory; 0 where it cannot be known.
    pub fn count(&self) -> u64 {
        let count = self.count.borrow();
        let Some(file) = count.as_ref() else { return 0 };
        let mut buffer = [0; 512];
        let Ok(length) = rustix::io::pread(file, &mut buffer, 0) else { return 0 };
        kills_in(&String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()))
    }

    /// The count once it is larger: the kernel tells of the need to kill before it kills.
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

/// Both versions of cgroups write a line `oom_kill N`.
fn kills_in(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Removes what the dead left in shared memory: files, and System V segments, which belong to nobody's life. Each
/// needs the rights of its owner, so a child takes those on, one for each of the first few owners.
async fn empty_shared_memory() {
    let mut owners: Vec<u32> = segments().map(|(_, owner)| owner).chain([limits::UID]).collect();
    let entries = std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    owners.extend(entries.filter_map(|entry| Some(MetadataExt::uid(&entry.metadata().ok()?))));
    owners.sort_unstable();
    owners.dedup();
    owners.truncate(OWNERS_MAX);
    run_as(&owners, &EMPTY).await;
}

/// Runs a program once as each of these users. User code can stop what runs as its user, so whatever has not ended in
/// time is ended. They stay in the guest's cgroup: that of user code may have no memory left to start in.
async fn run_as(owners: &[u32], argv: &[&str]) {
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    let spec = |owner| ExecSpec {
        argv: argv.clone(),
        cwd: Some("/".into()),
        uid: Some(owner),
        ..ExecSpec::default()
    };
    let who = |spec: &ExecSpec| Purpose::Run.identity(spec, TIDY_GROUP);
    // One that could not begin ends by itself, so nobody waits for what it says.
    let launched =
        owners.iter().map(|owner| spec(*owner)).filter_map(|spec| launch(&spec, who(&spec), &[], &[]).ok());
    let mut children: Vec<String> =
        launched.map(|child| format!("/proc/{}", child.pid.as_raw_nonzero())).collect();
    // Process 1 reaps them like all others; they are done when they are gone.
    for _ in 0..KILL_LOOKS {
        children.retain(|child| Path::new(child).exists());
        if children.is_empty() {
            return;
        }
        tokio::time::sleep(KILL_LOOK_EVERY).await;
    }
    sweep::kill(Whom::Group(TIDY_GROUP)).await;
}

/// What such a child does: removes all that it may.
pub fn empty() -> ExitCode {
    empty_directory(Path::new(SHARED_MEMORY));
    for (segment, _) in segments() {
        // SAFETY: no pointer is read with this request.
        unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
    }
    ExitCode::SUCCESS
}

/// The System V segments of this sandbox and their owners. The columns are those of proc(5): key, id, modes, size,
/// two process ids, the number attached, the owner.
fn segments() -> impl Iterator<Item = (libc::c_int, u32)> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    lines.into_iter().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.nth(1)?.parse().ok()?, words.nth(5)?.parse().ok()?))
    })
}

/// Removes everything below a directory that we may remove; symbolic links are removed, never followed.
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

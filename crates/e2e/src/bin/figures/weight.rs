//! The memory of idle sandboxes, and of this process for each of them.
//!
//! What is charged to a sandbox's cgroups and those below them is looked at in its parts: pages of the processes
//! themselves, pages of files (which the kernel takes back when it needs them, and which may have been read by the
//! first of many who share them), and what the kernel holds for it (tables, namespaces, mounts, sockets).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::Lab;
use node::Sandbox;

/// Sandboxes that are weighed together: one alone tells nothing of this process's share.
const SANDBOXES: u64 = 20;
/// What a start has left to be done is done by then.
const SETTLES: Duration = Duration::from_secs(1);

/// What one idle sandbox weighs, in bytes: the mean of a number of them.
#[derive(Default)]
pub(crate) struct Weight {
    /// The name of the runtime.
    pub name: String,
    /// Everything charged to its cgroups.
    pub charged: u64,
    /// Of that, pages of processes.
    pub anonymous: u64,
    /// Of that, pages of files.
    pub file: u64,
    /// Of the pages of files, those of file systems in memory (`/dev`, `/tmp`, `/dev/shm`).
    pub shared: u64,
    /// Of what is charged, the kernel's own.
    pub kernel: u64,
    /// What its processes have resident, shared pages of programs (which whoever read them first was charged for)
    /// counted for each.
    pub resident: u64,
    /// The growth of this process.
    pub node: u64,
}

/// Weighs idle sandboxes of this lab.
pub(crate) async fn weigh(lab: &Lab) -> Weight {
    // The first one of a process makes threads and buffers that all share.
    lab.sandbox().await.stop(Duration::ZERO).await.unwrap();
    let before = resident("self");
    let mut sandboxes: Vec<Sandbox> = Vec::new();
    for _ in 0..SANDBOXES {
        sandboxes.push(lab.sandbox().await);
    }
    tokio::time::sleep(SETTLES).await;
    let node = resident("self").saturating_sub(before) / SANDBOXES;
    let mut total = Weight { name: lab.runtime.name().into(), node, ..Weight::default() };
    for sandbox in &sandboxes {
        total.add(&memory_cgroup().join("bellglass").join(sandbox.id().as_str()));
    }
    for sandbox in sandboxes {
        sandbox.stop(Duration::ZERO).await.unwrap();
    }
    total.mean()
}

impl Weight {
    fn add(&mut self, group: &Path) {
        let stat = fields(&read(&group.join("memory.stat")));
        let of = |name: &str| stat.get(name).copied().unwrap_or(0);
        if group.join("memory.current").exists() {
            self.charged += number(&group.join("memory.current"));
            self.anonymous += of("anon");
            self.file += of("file");
            self.shared += of("shmem");
            self.kernel += of("kernel");
        } else {
            self.charged += number(&group.join("memory.usage_in_bytes"));
            self.anonymous += of("total_rss");
            self.file += of("total_cache");
            self.shared += of("total_shmem");
            self.kernel += number(&group.join("memory.kmem.usage_in_bytes"));
        }
        for pid in read(&group.join("guest/cgroup.procs")).lines() {
            self.resident += resident(pid);
        }
    }

    fn mean(mut self) -> Self {
        let sums =
            [&mut self.charged, &mut self.anonymous, &mut self.file, &mut self.shared, &mut self.kernel];
        for sum in sums.into_iter().chain([&mut self.resident]) {
            *sum /= SANDBOXES;
        }
        self
    }
}

/// Where the hierarchy with the memory controller is mounted.
fn memory_cgroup() -> PathBuf {
    let first = PathBuf::from("/sys/fs/cgroup/memory");
    if first.exists() { first } else { "/sys/fs/cgroup".into() }
}

/// The resident memory of a process.
pub(crate) fn resident(pid: &str) -> u64 {
    let status = read(&Path::new("/proc").join(pid).join("status"));
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    kib.and_then(|text| text.trim().parse::<u64>().ok()).expect("VmRSS of a process") * 1024
}

fn fields(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn number(path: &Path) -> u64 {
    read(path).trim().parse().unwrap_or_else(|_| panic!("{} holds no number", path.display()))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

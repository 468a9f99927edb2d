//! The memory of idle sandboxes, and the growth of this process per sandbox.
//!
//! The memory charged to a sandbox's cgroups has three parts: the pages of processes; the pages of files,
//! which the kernel can reclaim and charges only to the first cgroup that reads them; and the kernel's own
//! memory for the sandbox (page tables, namespaces, mounts, sockets).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::Lab;
use node::Sandbox;

/// Number of sandboxes that are measured together. With a single sandbox, the growth of this process would be
/// too small to measure.
const SANDBOXES: u64 = 20;
/// Time to wait until the background work of starting sandboxes is complete.
const SETTLES: Duration = Duration::from_secs(1);

/// Memory of one idle sandbox in bytes, as the mean of several.
#[derive(Default)]
pub(crate) struct Weight {
    /// Name of the runtime.
    pub name: String,
    /// All memory charged to the sandbox's cgroups.
    pub charged: u64,
    /// Part of `charged`: pages of processes.
    pub anonymous: u64,
    /// Part of `charged`: pages of files.
    pub file: u64,
    /// Part of `file`: pages of in-memory file systems (`/dev`, `/tmp`, `/dev/shm`).
    pub shared: u64,
    /// Part of `charged`: memory of the kernel for the sandbox.
    pub kernel: u64,
    /// Resident memory of the sandbox's processes. This number counts a program's shared pages once for each
    /// process, whereas a cgroup is charged only for the pages that it was the first to read.
    pub resident: u64,
    /// Growth of this process's resident memory per sandbox.
    pub node: u64,
}

/// Measures idle sandboxes in this lab.
pub(crate) async fn weigh(lab: &Lab) -> Weight {
    // Start and stop one sandbox first: it creates the threads and buffers that all sandboxes of a process
    // share.
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

/// Returns the mount point of the cgroup hierarchy that contains the memory controller.
fn memory_cgroup() -> PathBuf {
    let first = PathBuf::from("/sys/fs/cgroup/memory");
    if first.exists() { first } else { "/sys/fs/cgroup".into() }
}

/// Returns the resident memory of a process in bytes.
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

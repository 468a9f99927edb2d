//! Observable privileges of a process. Fields have the names that `/proc/<pid>` uses.
//!
//! The guest determines the posture of a user process from inside the sandbox. The runtime determines the
//! posture of process 1 from outside. Both postures must match the posture that the tier promises.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Privileges of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posture {
    /// Real, effective, saved and file-system uids.
    pub uids: Vec<u32>,
    /// Real, effective, saved and file-system gids.
    pub gids: Vec<u32>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The five capability sets: inheritable, permitted, effective, bounding and ambient.
    pub capabilities: BTreeMap<String, u64>,
    /// True if `no_new_privs` is set.
    pub no_new_privileges: bool,
    /// Seccomp mode. 2 is a filter.
    pub seccomp: u32,
    /// Open descriptors and their types: `/dev/null`, `pipe`, `socket`, `anon_inode:[eventpoll]`.
    pub descriptors: BTreeMap<u32, String>,
    /// Namespaces by type, in the kernel's notation: `user:[4026531837]`.
    pub namespaces: BTreeMap<String, String>,
    /// Soft and hard limit on open files.
    pub open_files: (u64, u64),
    /// Hard limit on the size of core files.
    pub core_bytes: u64,
    /// Limits of the process's cgroup, as visible to the process: `memory` in bytes, `pids`, and `cpu` in
    /// thousandths of a core. A limit that is not set or not visible is missing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cgroup: BTreeMap<String, u64>,
}

/// Returns the limits in the files below `/sys/fs/cgroup`, for cgroup v2 or v1. `read` takes a path relative
/// to this directory.
pub fn cgroup_limits(read: impl Fn(&str) -> Option<String>) -> BTreeMap<String, u64> {
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let share = |quota: u64, period: u64| quota.saturating_mul(1000).checked_div(period);
    let in_one_file = || {
        let text = read("cpu.max")?;
        let (quota, period) = text.trim().split_once(' ')?;
        share(quota.parse().ok()?, period.parse().ok()?)
    };
    let in_two_files = || share(number("cpu/cpu.cfs_quota_us")?, number("cpu/cpu.cfs_period_us")?);
    let limits = [
        ("memory", number("memory.max").or_else(|| number("memory/memory.limit_in_bytes"))),
        ("pids", number("pids.max").or_else(|| number("pids/pids.max"))),
        ("cpu", in_one_file().or_else(in_two_files)),
    ];
    limits.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), limit?))).collect()
}

impl Posture {
    /// Parses the contents of `/proc/<pid>/status` and `/proc/<pid>/limits`. If a line is missing, its field
    /// keeps the default value, which does not match the posture of any tier.
    pub fn parse(status: &str, limits: &str) -> Self {
        let mut posture = Self::default();
        for line in status.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let numbers = || value.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match name {
                "Uid" => posture.uids = numbers(),
                "Gid" => posture.gids = numbers(),
                "Groups" => posture.groups = numbers(),
                "NoNewPrivs" => posture.no_new_privileges = value.trim() == "1",
                "Seccomp" => posture.seccomp = value.trim().parse().unwrap_or(0),
                "CapInh" | "CapPrm" | "CapEff" | "CapBnd" | "CapAmb" => {
                    let bits = u64::from_str_radix(value.trim(), 16).unwrap_or(u64::MAX);
                    posture.capabilities.insert(name.to_owned(), bits);
                }
                _ => {}
            }
        }
        for line in limits.lines() {
            if let Some(rest) = line.strip_prefix("Max open files") {
                posture.open_files = soft_and_hard(rest);
            } else if let Some(rest) = line.strip_prefix("Max core file size") {
                posture.core_bytes = soft_and_hard(rest).1;
            }
        }
        posture
    }
}

fn soft_and_hard(rest: &str) -> (u64, u64) {
    let mut values = rest.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX));
    (values.next().unwrap_or(u64::MAX), values.next().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_both_versions_of_cgroups_and_none_is_made_up() {
        let read = |files: &[(&str, &str)]| {
            cgroup_limits(|name| {
                files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned())
            })
        };
        let limits: BTreeMap<String, u64> = [("memory", 134_217_728), ("pids", 20), ("cpu", 500)]
            .map(|(name, limit)| (name.to_owned(), limit))
            .into();
        let version2 = [("memory.max", "134217728\n"), ("pids.max", "20\n"), ("cpu.max", "50000 100000\n")];
        assert_eq!(read(&version2), limits);
        let version1 = [
            ("memory/memory.limit_in_bytes", "134217728\n"),
            ("pids/pids.max", "20\n"),
            ("cpu/cpu.cfs_quota_us", "50000\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(read(&version1), limits);
        let unlimited = [("memory.max", "max\n"), ("pids.max", "max\n"), ("cpu.max", "max 100000\n")];
        assert_eq!(read(&unlimited), BTreeMap::new());
        assert_eq!(
            read(&[("cpu/cpu.cfs_quota_us", "-1\n"), ("cpu/cpu.cfs_period_us", "100000\n")]),
            BTreeMap::new()
        );
        assert_eq!(read(&[]), BTreeMap::new());
    }

    #[test]
    fn proc_is_read_as_the_kernel_writes_it() {
        let status = "Name:\tcat\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n\
                      Groups:\t20001 \nCapInh:\t0000000000000000\nCapBnd:\t00000000000001e0\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max core file size        0                    0                    bytes     \n\
                      Max open files            1024                 65536                files     \n";
        let posture = Posture::parse(status, limits);
        assert_eq!(posture.uids, [1000; 4]);
        assert_eq!(posture.groups, [20001]);
        assert_eq!(posture.capabilities["CapBnd"], 0x1e0);
        assert!(posture.no_new_privileges);
        assert_eq!((posture.seccomp, posture.core_bytes, posture.open_files), (2, 0, (1024, 65536)));
    }
}

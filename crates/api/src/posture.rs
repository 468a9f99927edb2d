//! What can be seen of a process's privileges, in the words of `/proc/<pid>`.
//!
//! The guest fills one in for a user process from inside, the runtime one for process 1 from outside; both are
//! compared with what the tier promises.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The privileges of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posture {
    /// Real, effective, saved and file-system user ids.
    pub uids: Vec<u32>,
    /// Real, effective, saved and file-system group ids.
    pub gids: Vec<u32>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The five capability sets: inheritable, permitted, effective, bounding, ambient.
    pub capabilities: BTreeMap<String, u64>,
    /// Whether `no_new_privs` is on.
    pub no_new_privileges: bool,
    /// The mode of seccomp: 2 is a filter.
    pub seccomp: u32,
    /// Open descriptors and what each is: `/dev/null`, `pipe`, `socket`, `anon_inode:[eventpoll]`.
    pub descriptors: BTreeMap<u32, String>,
    /// The namespaces, by kind, as the kernel names them: `user:[4026531837]`.
    pub namespaces: BTreeMap<String, String>,
    /// The soft and hard limit on open files.
    pub open_files: (u64, u64),
    /// The hard limit on core files.
    pub core_bytes: u64,
}

impl Posture {
    /// Reads what `/proc/<pid>/status` and `/proc/<pid>/limits` say. Lines that are missing leave their defaults,
    /// which no tier expects.
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

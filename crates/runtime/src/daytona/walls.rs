//! The isolation settings (walls) that the guest applies: the same limits, mounts, capabilities and system
//! call filter as on other backends.

use std::collections::BTreeMap;

use api::limits::Limits;
use api::walls::{Instruction, Walls};
use serde_json::{Value, json};

use crate::{Error, Tier, confinement, memory_disks, seccomp};

/// The hosts file of a sandbox, which contains only the sandbox's own names.
const HOSTS: &str = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n";

/// Directories that contain sockets of the workspace's own programs. They are hidden because a read-only root
/// file system does not prevent connections to sockets.
const OTHERS: [&str; 2] = ["/run", "/var/tmp"];

/// A filter that kills processes that make x32 calls. x32 is a second numbering of the x86 system calls,
/// which the filter compiler does not support. The four instructions load the call number, compare it with
/// the first x32 number, kill the process if the number is not lower, and otherwise allow the call. Other
/// architectures have no such numbers.
const FOREIGN: [Instruction; 4] = [
    (0x20, 0, 0, 0),
    (0x35, 0, 1, 0x4000_0000),
    (0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    (0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
];

/// Returns the isolation settings for a sandbox with these limits.
pub(super) fn walls(limits: &Limits) -> Result<Walls, Error> {
    let mut disks: BTreeMap<String, String> =
        memory_disks::disks(limits).map(|(path, _, options)| (path.to_owned(), options)).into();
    disks.insert("/dev/shm".into(), format!("mode=1777,size={}", confinement::shared_bytes(limits)));
    let files = [("/etc/hosts", HOSTS), ("/etc/hostname", "sandbox\n"), ("/etc/resolv.conf", "")];
    Ok(Walls {
        memory_bytes: limits.memory_bytes,
        cpu_millis: limits.cpu_millis,
        pids: limits.pids,
        open_files: confinement::open_files(limits),
        capabilities: confinement::capability_bits(false),
        disks,
        spool: memory_disks::spool(limits),
        terminals: confinement::terminals(),
        files: files.map(|(path, content)| (path.to_owned(), content.to_owned())).into(),
        masked: confinement::MASKED.into_iter().chain(OTHERS).map(str::to_owned).collect(),
        read_only: confinement::READ_ONLY.map(str::to_owned).to_vec(),
        filters: filters()?,
    })
}

/// Returns the system call filters as BPF programs. A compiled filter has only one action for all calls that
/// it lists, so there are several filters. After the x32 filter, the main filter allows the allowed calls and
/// returns the default error for all others. For each other error, a further filter is installed after the
/// main filter. If two filters return an error, Linux uses the error from the filter that was installed last.
fn filters() -> Result<Vec<Vec<Instruction>>, Error> {
    let filter = seccomp::filter(Tier::Container);
    let default = filter.get("defaultErrnoRet").and_then(Value::as_u64).unwrap_or_default();
    let mut allowed = Vec::new();
    let mut refused: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for rule in filter.get("syscalls").and_then(Value::as_array).into_iter().flatten() {
        let rules = match rule.get("errnoRet").and_then(Value::as_u64) {
            Some(errno) => refused.entry(errno).or_default(),
            None => &mut allowed,
        };
        rules.extend(translated(rule));
    }
    let mut filters =
        vec![FOREIGN.to_vec(), compile(&allowed, &json!({ "errno": default }), &json!("allow"))?];
    for (errno, rules) in refused {
        filters.push(compile(&rules, &json!("allow"), &json!({ "errno": errno }))?);
    }
    Ok(filters)
}

/// Translates a rule to the compiler's format, once for each call that the compiler knows. Unknown calls are
/// left to the default action, which refuses them.
fn translated(rule: &Value) -> Vec<Value> {
    let number =
        |argument: &Value, name: &str| argument.get(name).and_then(Value::as_u64).unwrap_or_default();
    let condition = |argument: &Value| {
        let (value, two) = (number(argument, "value"), number(argument, "valueTwo"));
        let (op, value) = match argument.get("op").and_then(Value::as_str) {
            Some("SCMP_CMP_EQ") => (json!("eq"), value),
            Some("SCMP_CMP_GT") => (json!("gt"), value),
            // This is `SCMP_CMP_MASKED_EQ`, with the mask and the value that is required under the mask.
            _ => (json!({ "masked_eq": value }), two),
        };
        json!({ "index": number(argument, "index"), "type": "qword", "op": op, "val": value })
    };
    let arguments = rule.get("args").and_then(Value::as_array);
    let arguments: Option<Vec<Value>> = arguments.map(|all| all.iter().map(condition).collect());
    let names = rule.get("names").and_then(Value::as_array).into_iter().flatten();
    names
        .map(|name| match &arguments {
            Some(arguments) => json!({ "syscall": name, "args": arguments }),
            None => json!({ "syscall": name }),
        })
        .filter(|rule| compile(std::slice::from_ref(rule), &json!("allow"), &json!("trap")).is_ok())
        .collect()
}

fn compile(rules: &[Value], otherwise: &Value, named: &Value) -> Result<Vec<Instruction>, Error> {
    let failed = |why: String| Error::Unsupported { what: "the system call filter", why };
    let text = json!({
        "sandbox": { "mismatch_action": otherwise, "match_action": named, "filter": rules },
    });
    let architecture = std::env::consts::ARCH.try_into();
    let architecture = architecture.map_err(|error: seccompiler::BackendError| failed(error.to_string()))?;
    let compiled = seccompiler::compile_from_json(text.to_string().as_bytes(), architecture);
    let compiled = compiled.map_err(|error| failed(error.to_string()))?.remove("sandbox");
    let compiled = compiled.ok_or_else(|| failed("the compiler returned no filter".into()))?;
    Ok(compiled.into_iter().map(|one| (one.code, one.jt, one.jf, one.k)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_the_filter_is_understood() {
        let filter = seccomp::filter(Tier::Container);
        let rules = filter["syscalls"].as_array().unwrap();
        for rule in rules {
            let names = rule["names"].as_array().unwrap().len();
            let missing = names - translated(rule).len();
            // These calls are newer than the compiler's list or exist only on a different architecture. They
            // are refused by default.
            assert!(missing <= 8, "{missing} of {names} calls are not known in {rule}");
            for argument in rule["args"].as_array().into_iter().flatten() {
                let op = argument["op"].as_str().unwrap();
                assert!(["SCMP_CMP_EQ", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"].contains(&op), "{op}");
            }
        }
        let filters = filters().unwrap();
        assert!(filters.len() >= 4, "one that allows, and one for each other error");
        assert!(filters.iter().all(|filter| filter.len() < 4096), "Linux takes no more instructions");
    }

    #[test]
    fn the_walls_are_those_of_an_engine() {
        let limits = memory_disks::within(Limits::default());
        let walls = walls(&limits).unwrap();
        assert_eq!(walls.pids, limits.pids);
        assert_eq!(walls.capabilities, 0x1e0);
        assert!(walls.disks["/workspace"].contains("uid=1000"));
        assert!(walls.masked.contains(&"/sys/fs".to_owned()));
    }
}

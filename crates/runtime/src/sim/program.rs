//! The programs that a simulated guest can run. Every other command fails to spawn.
//!
//! | argv | behavior |
//! |---|---|
//! | `/.bellglass/guest posture` | prints the correct posture of a user process |
//! | `true` | exits |
//! | `echo WORDS` | prints its arguments |
//! | `sleep SECONDS` | exits after this number of seconds, which may have a fraction |
//! | `stuck` | runs past its deadline: simulates an exec that the guest cannot kill |
//! | `count` | prints 1, 2, 3, …, one per line, until it is killed |

use std::collections::BTreeMap;
use std::time::Duration;

use api::limits::{ARGV_SHOWN_BYTES, DEADLINE_MS_MAX, EXEC_GROUPS, UID};
use api::posture::Posture;
use api::{Error, ErrorCode, Layer, Ran, Retry};

/// The kinds of namespaces that no two sandboxes of the container tier share.
const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "ipc", "uts", "cgroup", "net"];
const CAPABILITY_SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// One program and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Program {
    /// Prints this text and exits.
    Print(String),
    /// Exits after this time.
    Sleep(Duration),
    /// Runs past its deadline.
    Stuck,
    /// Prints increasing numbers.
    Count,
}

impl Program {
    /// Finds a program by its argv.
    pub fn find(argv: &[String]) -> Result<Self, Error> {
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["/.bellglass/guest", "posture"] => {
                let seen = serde_json::to_string(&posture(UID, &[*EXEC_GROUPS.start()]));
                Ok(Self::Print(seen.unwrap_or_default()))
            }
            ["true", ..] => Ok(Self::Print(String::new())),
            ["echo", words @ ..] => Ok(Self::Print(words.join(" ") + "\n")),
            ["sleep", seconds] => duration(seconds).map(Self::Sleep).ok_or_else(|| unknown(argv)),
            ["stuck"] => Ok(Self::Stuck),
            ["count"] => Ok(Self::Count),
            _ => Err(unknown(argv)),
        }
    }
}

/// Returns the posture (privileges and namespaces) that the container tier promises for a user process, or
/// for process 1 if `uid` is 0 and `groups` is empty.
pub(super) fn posture(uid: u32, groups: &[u32]) -> Posture {
    Posture {
        uids: vec![uid; 4],
        gids: vec![uid; 4],
        groups: groups.to_vec(),
        capabilities: CAPABILITY_SETS.map(|set| (set.to_owned(), 0)).into(),
        no_new_privileges: true,
        seccomp: 2,
        descriptors: BTreeMap::from([(0, "/dev/null".into()), (1, "pipe".into()), (2, "pipe".into())]),
        namespaces: NAMESPACES.map(|kind| (kind.to_owned(), format!("{kind}:[1]"))).into(),
        open_files: (1024, 65_536),
        core_bytes: 0,
        cgroup: BTreeMap::new(),
    }
}

/// Parses a number of seconds, and limits the result to the maximum deadline.
fn duration(seconds: &str) -> Option<Duration> {
    let duration = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    Some(duration.min(Duration::from_millis(DEADLINE_MS_MAX)))
}

fn unknown(argv: &[String]) -> Error {
    let program: String = argv.join(" ").chars().take(ARGV_SHOWN_BYTES).collect();
    Error {
        code: ErrorCode::SpawnFailed,
        message: format!("cannot start {program:?}: the simulated guest has no such program"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Use true, echo, sleep or count.".into(),
    }
}

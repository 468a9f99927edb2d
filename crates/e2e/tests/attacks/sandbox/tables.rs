//! Attacks C-30 to C-37: one sandbox exhausts a kernel table and keeps trying to take more entries. Another
//! sandbox, the bystander, still gets entries, and is no slower than next to a harmless neighbour that uses
//! the same processor time.

use std::time::{Duration, Instant};

use e2e::lab::{exec, start, text};
use node::{Exec, Sandbox};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::field::{Field, OCI, OCI_BOTH, Said, payload, small, turn_off, withstand};
use super::neighbour::ready;

/// Number of measurements of the bystander, alternating between a harmless neighbour and an attack. The
/// measurements end after `ROUNDS` if they clearly meet the promise, and after `ROUNDS_MAX` otherwise, because
/// five measurements can differ by half without a cause: a percentile is often either 2 or 4 ms, depending on
/// whether one exec in twenty waits for a scheduler tick.
const ROUNDS: usize = 5;
const ROUNDS_MAX: usize = 25;
/// Number of signals and timers that one sandbox may have queued.
const SIGNALS: u64 = 1024;
/// Number of execs in one measurement. In gVisor, only the success of the execs is checked, in one round.
const EXECS: usize = 60;
const EXECS_USER_KERNEL: usize = 40;
/// Maximum ratio of the 95th percentile during an attack to the 95th percentile next to a harmless neighbour.
const SLOWER: f64 = 1.5;
/// Ratio up to which the promise is clearly met.
const CLEARLY: f64 = 1.2;
/// Maximum time until the attacking sandbox is identified.
const FOUND_WITHIN: Duration = Duration::from_secs(2);

/// A kernel table, with the attack that exhausts it, the payload's arguments, and the expected result when
/// the bystander requests one entry.
struct Row {
    id: &'static str,
    arguments: &'static [&'static str],
    bystander: &'static str,
}

const fn row(id: &'static str, arguments: &'static [&'static str], bystander: &'static str) -> Row {
    Row { id, arguments, bystander }
}

/// Tables under attack. File locks are not included, because a sandbox that takes too many of them is
/// stopped.
const TABLES: [Row; 9] = [
    row("C-30", &["exhaust"], "ok"),
    row("C-31", &["exhaust"], "ENOSYS"),
    row("C-32", &["exhaust"], "ok"),
    row("C-34", &["exhaust"], "ok"),
    row("C-35", &["exhaust"], "EMFILE|ENOSYS|EPERM"),
    row("C-36", &["exhaust"], "ok"),
    row("C-37", &["exhaust", "200", "pipes"], "ok"),
    row("C-37", &["exhaust", "1500", "epoll"], "ok"),
    row("C-37", &["exhaust", "2000", "terminals"], "ok"),
];

/// Verifies that attacks C-30 to C-37 fail, one after the other: if one sandbox exhausts a table, another
/// sandbox can still get entries.
#[test]
#[ignore = "starts real sandboxes"]
fn a_table_that_one_sandbox_uses_up_is_there_for_the_next() {
    withstand("C-30", OCI_BOTH, async |field| {
        field.has_no_control("the other tests of this file are the controls, one for each table");
        let (bystander, harmless) = (field.sandbox().await, field.sandbox().await);
        slowest(field, &bystander).await;
        for row in &TABLES {
            let attacker = field.sandbox().await;
            let (mut beside_harmless, mut beside_attack) = (Vec::new(), Vec::new());
            let ratio = loop {
                let burning = start(&harmless, &exec(&["python3", "-c", "while True: pass"])).await.unwrap();
                beside_harmless.push(slowest(field, &bystander).await);
                burning.cancel().await.unwrap();
                let attack = begin(field, &attacker, row).await;
                beside_attack.push(slowest(field, &bystander).await);
                let ratio = typical(&beside_attack).as_secs_f64() / typical(&beside_harmless).as_secs_f64();
                let is_last = match beside_attack.len() {
                    _ if !field.is_container() => true,
                    ..ROUNDS => false,
                    ROUNDS..ROUNDS_MAX => ratio <= CLEARLY,
                    ROUNDS_MAX.. => true,
                };
                if is_last {
                    has_an_entry(field, &bystander, &attacker, row).await;
                }
                // The cancellation fails if the attack has ended with its sandbox.
                let _ = attack.cancel().await;
                if is_last {
                    break ratio;
                }
            };
            println!(
                "{} {:?} {}: ratio {ratio:.2}; 95th percentiles beside the harmless neighbour {beside_harmless:.1?}, beside the attack {beside_attack:.1?}",
                row.id,
                row.arguments,
                field.lab.runtime.name()
            );
            assert!(
                !field.is_container() || ratio <= SLOWER,
                "{} {:?}: {ratio:.2} times",
                row.id,
                row.arguments
            );
            attacker.stop(Duration::ZERO).await.unwrap();
        }
        field.recovers(&bystander).await;
    });
}

/// Starts the attack of a row and waits until the table is exhausted.
async fn begin(field: &Field<'_>, attacker: &Sandbox, row: &Row) -> Exec {
    // A user-space kernel keeps these resources in its own memory, and may be killed because of them. In that
    // case, only the effect on other sandboxes matters. The same is true of socket buffers on cgroup version
    // 2.
    let survives = field.is_container() && !(row.id == "C-32" && is_unified());
    match survives {
        true => ready(attacker, &spec(row.id, row.arguments)).await,
        false => start(attacker, &spec(row.id, row.arguments)).await.unwrap(),
    }
}

/// Asserts that the bystander and the host can get an entry of the table during the attack.
async fn has_an_entry(field: &Field<'_>, bystander: &Sandbox, attacker: &Sandbox, row: &Row) {
    let probed =
        async |sandbox| super::field::said(&e2e::lab::collect(sandbox, &spec(row.id, &probe(row))).await);
    let (said, on_host) = (probed(bystander).await, on_host(row.id, &probe(row)));
    if field.is_container() {
        said.assert(row.id, &[("probe", row.bystander)]);
    }
    on_host.assert("host", &[("probe", "ok")]);
    if field.is_container() && row.arguments.contains(&"terminals") {
        let own = probed(attacker).await;
        assert_ne!(own.get("probe"), Some("ok"), "control: {}", own.raw);
    }
}

/// Runs the control for attack C-30: with the defence disabled, root creates the user namespace, so sandboxes
/// share its inotify instances.
#[test]
#[ignore = "starts real sandboxes"]
fn inotify_instances_of_namespaces_that_root_made_are_shared() {
    withstand("C-30", OCI, async |field| {
        let undefended = turn_off("C-30");
        let (attacker, bystander) = (field.sandbox().await, field.sandbox().await);
        drop(undefended);
        let attack = ready(&attacker, &spec("C-30", &["exhaust"])).await;
        let said = field.attack(&bystander, &["probe"]).await;
        attack.cancel().await.unwrap();
        said.assert("control", &[("probe", "EMFILE")]);
    });
}

/// Runs the control for attack C-31: with the defence disabled, asynchronous I/O in a sandbox counts towards
/// the machine's limit.
#[test]
#[ignore = "starts real sandboxes"]
fn asynchronous_io_of_a_sandbox_counts_for_the_machine() {
    withstand("C-31", OCI, async |field| {
        let sandbox = {
            let _undefended = turn_off("C-31");
            field.sandbox().await
        };
        let before = number("/proc/sys/fs/aio-nr");
        let attack = ready(&sandbox, &spec("C-31", &["exhaust", "1000"])).await;
        let during = number("/proc/sys/fs/aio-nr");
        attack.cancel().await.unwrap();
        assert!(during >= before + 1000, "control: {before} became {during}");
        let refused = field.attack(&field.sandbox().await, &["probe"]).await;
        refused.assert("sandbox", &[("probe", "ENOSYS")]);
    });
}

/// Verifies that attack C-32 fails: according to the machine's own count, socket buffers use only a part of a
/// sandbox's memory.
#[test]
#[ignore = "starts real sandboxes"]
fn buffers_of_sockets_end_at_a_part_of_memory() {
    withstand("C-32", OCI, async |field| {
        let held = async |sandbox: &Sandbox| {
            let before = socket_bytes();
            let attack = ready(sandbox, &spec("C-32", &["exhaust"])).await;
            let held = socket_bytes().saturating_sub(before);
            let told = sandbox.usage().await.unwrap().memory_bytes;
            attack.cancel().await.unwrap();
            (held, told)
        };
        let undefended = turn_off("C-32");
        let control = field.sandbox().await;
        drop(undefended);
        let (control, _) = held(&control).await;
        let (held, told) = held(&field.sandbox().await).await;
        println!(
            "C-32: {} MiB without, {} MiB with, of which usage tells {} MiB",
            control >> 20,
            held >> 20,
            told >> 20
        );
        assert!(control > small().memory_bytes / 2 || is_unified(), "control: {control}");
        assert!(held < small().memory_bytes / 4, "{held} bytes");
        assert!(told > held / 2, "usage tells {told} of {held} bytes");
    });
}

/// Verifies that attack C-33 fails: the node identifies a sandbox with too many file locks, even if the files
/// have no name and the locks belong to no process.
#[test]
#[ignore = "starts real sandboxes"]
fn who_takes_too_many_file_locks_is_named() {
    withstand("C-33", OCI, async |field| {
        for kind in ["posix", "memfd"] {
            let (attacker, bystander) = (field.sandbox().await, field.sandbox().await);
            assert_eq!(field.lab.runtime.culprit().await.unwrap(), None);
            let attack = ready(&attacker, &spec("C-33", &["exhaust", "300", kind])).await;
            let began = Instant::now();
            {
                let _undefended = turn_off("C-33");
                assert_eq!(field.lab.runtime.culprit().await.unwrap(), None, "control");
            }
            let found = field.lab.runtime.culprit().await.unwrap();
            println!("C-33 {kind}: {found:?} in {:?}", began.elapsed());
            assert_eq!(found.map(|culprit| culprit.id).as_ref(), Some(attacker.id()));
            assert!(began.elapsed() < FOUND_WITHIN);
            field.recovers(&bystander).await;
            attack.cancel().await.unwrap();
            attacker.stop(Duration::ZERO).await.unwrap();
        }
    });
}

/// Verifies that attack C-34 fails: one sandbox queues a limited number of signals. Runs its control: with the
/// defence disabled, one user's queued signals are shared. A lower limit keeps the host safe.
#[test]
#[ignore = "starts real sandboxes"]
fn signals_of_namespaces_that_root_made_are_shared() {
    shared_count("C-34", SIGNALS, Resource::Sigpending, 2000, "EAGAIN");
}

/// Verifies that attack C-35 fails: one sandbox has no message queues. Runs its control: with the defence
/// disabled, one user's message queues are shared. A lower limit keeps the host safe.
#[test]
#[ignore = "starts real sandboxes"]
fn message_queues_of_namespaces_that_root_made_are_shared() {
    shared_count("C-35", 0, Resource::Msgqueue, 100_000, "EMFILE");
}

/// Verifies that attack C-36 fails: the limits of one sandbox permit only a part of the machine's open files
/// in total.
#[test]
#[ignore = "starts real sandboxes"]
fn one_sandbox_cannot_open_all_files_of_the_machine() {
    withstand("C-36", OCI, async |field| {
        let total = number("/proc/sys/fs/file-max");
        let limit = async |sandbox: &Sandbox| {
            let said = field.attack(sandbox, &["probe"]).await;
            said.number("limit") * small().pids
        };
        let undefended = turn_off("C-36");
        let control = field.sandbox().await;
        drop(undefended);
        let (without, with) = (limit(&control).await, limit(&field.sandbox().await).await);
        println!("C-36: {without} without, {with} with, of {total}");
        assert!(without > total || total > 1 << 40, "control: {without} of {total}");
        assert!(with <= total / 8, "{with} of {total}");
        let groups = ["/sys/fs/cgroup/pids/bellglass/pids.max", "/sys/fs/cgroup/bellglass/pids.max"];
        let all = groups.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap();
        let processes = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
        assert!(all.trim().parse::<u64>().unwrap() < processes, "{all} of {processes}");
    });
}

/// Runs the control for attack C-37: with the defence disabled, sandboxes have the same user IDs, and
/// terminals are not limited.
#[test]
#[ignore = "starts real sandboxes"]
fn pipes_of_one_user_and_terminals_without_a_limit_are_shared() {
    withstand("C-37", OCI, async |field| {
        let undefended = turn_off("C-37");
        let (attacker, bystander) = (field.sandbox().await, field.sandbox().await);
        drop(undefended);
        let attack = ready(&attacker, &spec("C-37", &["exhaust", "200", "pipes"])).await;
        let said = field.attack(&bystander, &["probe", "pipes"]).await;
        attack.cancel().await.unwrap();
        said.assert("control", &[("probe", "EPERM")]);
        let terminals = spec("C-37", &["exhaust", "400", "terminals"]);
        let (without, with) =
            (taken(&attacker, &terminals).await, taken(&field.sandbox().await, &terminals).await);
        assert_eq!(without, 400, "control");
        assert!(with <= 2 * api::limits::TERMINALS_MAX as u64, "{with} terminals");
    });
}

/// Returns the number of entries that an attack takes in a sandbox.
async fn taken(sandbox: &Sandbox, spec: &api::exec::ExecSpec) -> u64 {
    let mut attack = start(sandbox, spec).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("ready\n") {
        if let Some(node::Event::Data { bytes, .. }) = attack.next().await.unwrap() {
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    attack.cancel().await.unwrap();
    Said::so_far(&seen).number("took")
}

/// Asserts that one sandbox takes at most `most` entries. Then disables the defence of an attack and the
/// separate owner of the user namespace. Shows that one sandbox then takes the entries that the next sandbox
/// needs.
fn shared_count(id: &'static str, most: u64, resource: Resource, safe: u64, answer: &str) {
    withstand(id, OCI, async |field| {
        let count = taken(&field.sandbox().await, &spec(id, &["exhaust"])).await;
        assert!(count <= most, "one sandbox took {count}");
        let before = getrlimit(resource);
        let (attacker, bystander) = {
            let _undefended = ["C-30", id].map(turn_off);
            setrlimit(resource, Rlimit { current: Some(safe), ..before }).unwrap();
            let both = (field.sandbox().await, field.sandbox().await);
            setrlimit(resource, before).unwrap();
            both
        };
        let attack = ready(&attacker, &spec(id, &["exhaust"])).await;
        let said = field.attack(&bystander, &["probe"]).await;
        attack.cancel().await.unwrap();
        said.assert("control", &[("probe", answer)]);
    });
}

/// Returns the arguments with which the bystander requests one entry of a table.
fn probe(row: &Row) -> Vec<&'static str> {
    std::iter::once("probe").chain(row.arguments.get(2).copied()).collect()
}

/// Returns the spec of an exec that runs the payload of an attack.
fn spec(id: &str, arguments: &[&str]) -> api::exec::ExecSpec {
    let words = payload(id, arguments);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    api::exec::ExecSpec { deadline_ms: Some(120_000), ..exec(&words) }
}

/// Runs the payload on the host as root.
fn on_host(id: &str, arguments: &[&str]) -> Said {
    let words = payload(id, arguments);
    let output = std::process::Command::new("python3").args(&words[1..]).output().unwrap();
    let more = String::from_utf8_lossy(&output.stderr);
    Said::read(&String::from_utf8_lossy(&output.stdout), &more, output.status.code())
}

/// Returns the 95th percentile of the durations of several execs.
async fn slowest(field: &Field<'_>, sandbox: &Sandbox) -> Duration {
    let execs = if field.is_container() { EXECS } else { EXECS_USER_KERNEL };
    let mut taken = Vec::new();
    for _ in 0..execs {
        let began = Instant::now();
        let done = e2e::lab::collect(sandbox, &exec(&["echo", "here"])).await;
        assert_eq!(text(&done), "here\n");
        taken.push(began.elapsed());
    }
    taken.sort_unstable();
    taken[execs * 95 / 100]
}

/// Returns the mean without the highest and the lowest tenth, so that a second of other load on the machine does
/// not decide the result. A median would be less stable, because the values have two peaks.
fn typical(taken: &[Duration]) -> Duration {
    let mut sorted = taken.to_vec();
    sorted.sort_unstable();
    let outliers = sorted.len() / 10;
    let kept = &sorted[outliers..sorted.len() - outliers];
    kept.iter().sum::<Duration>() / u32::try_from(kept.len()).unwrap()
}

/// Returns the total size of all socket buffers on the machine.
fn socket_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let pages = |line: &str| line.split(" mem ").nth(1)?.split_whitespace().next()?.parse::<u64>().ok();
    text.lines().filter_map(pages).sum::<u64>() * 4096
}

fn number(path: &str) -> u64 {
    std::fs::read_to_string(path).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns true if memory is limited by cgroup version 2, which counts socket buffers as memory.
fn is_unified() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

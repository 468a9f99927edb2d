//! Attacks of group C: exhaustion of processes, memory, disk and files. A control repeats the attack with a
//! second limit and shows that the attack reaches this limit too. No limit is ever removed.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, LostCause, Outcome};
use api::limits::Limits;
use e2e::attack;
use e2e::lab::{collect, exec, start};
use node::Sandbox;

use super::field::{BOTH, Field, OCI, OCI_BOTH, RUNC, said, small, withstand};
use super::room::Room;
use super::said::said_before_its_end;

const MIB: u64 = 1 << 20;
/// Number of files that other programs on the machine may open during an attack on open files, which opens
/// ten times as many.
const OTHERS: u64 = 2000;
/// Timeout for the files of an attack to be closed.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Verifies that attack C-01 fails: a fork bomb stops at the limit, and the sandbox keeps working.
#[test]
#[ignore = "starts real sandboxes"]
fn a_fork_bomb_ends_at_the_limit_and_the_sandbox_goes_on() {
    withstand("C-01", OCI, async |field| {
        let witness = field.sandbox().await;
        for pids in [40, 64] {
            let sandbox = field.lab.sandbox_with(Limits { pids, ..small() }).await;
            let said = field.with_witness(&witness, field.attack(&sandbox, &[])).await;
            said.assert("sandbox", &[("answer", "EAGAIN")]);
            assert_eq!(said.number("processes"), pids, "{}", said.raw);
            assert!(sandbox.usage().await.unwrap().pids_refused > 0);
            ends_with_its_exec(field, &witness, &sandbox).await;
            // The second limit is the control of the first.
            attack::count_control();
        }
    });
}

/// Verifies that attack C-02 fails: a thread bomb stops at the same limit as a fork bomb, and the sandbox
/// keeps working.
#[test]
#[ignore = "starts real sandboxes"]
fn a_thread_bomb_ends_at_the_limit_of_processes() {
    withstand("C-02", OCI, async |field| {
        let witness = field.sandbox().await;
        for pids in [40, 64] {
            let sandbox = field.lab.sandbox_with(Limits { pids, ..small() }).await;
            let said = field.with_witness(&witness, field.attack(&sandbox, &[])).await;
            said.assert("sandbox", &[("answer", "EAGAIN")]);
            assert_eq!(said.number("threads"), pids, "{}", said.raw);
            assert!(sandbox.usage().await.unwrap().pids_refused > 0);
            ends_with_its_exec(field, &witness, &sandbox).await;
            // The second limit is the control of the first.
            attack::count_control();
        }
    });
}

/// Starts a bomb, cancels it after some time, and asserts that nothing of it is left.
async fn ends_with_its_exec(field: &Field<'_>, witness: &Sandbox, sandbox: &Sandbox) {
    let bomb = start(sandbox, &field.payload(&["bomb"])).await.unwrap();
    field.with_witness(witness, tokio::time::sleep(Duration::from_secs(2))).await;
    let began = Instant::now();
    bomb.cancel().await.unwrap();
    assert_eq!(bomb.collect().await.unwrap().end.outcome, Outcome::Cancelled);
    assert!(began.elapsed() < Duration::from_secs(2), "the bomb went on for {:?}", began.elapsed());
    field.recovers(sandbox).await;
    field.is_empty(sandbox).await;
    sandbox.stop(Duration::ZERO).await.unwrap();
}

/// Verifies that attack C-01 is contained where the guest and user code share a user-space kernel: the bomb
/// may end its own sandbox, but affects nothing else.
#[test]
#[ignore = "starts real sandboxes"]
fn a_fork_bomb_under_a_user_space_kernel_hurts_nobody_else() {
    withstand("C-01", &["runsc"], async |field| {
        field.has_no_control("the bomb may end its own sandbox, and no second limit is visible from outside");
        let witness = field.sandbox().await;
        let sandbox = field.lab.sandbox_with(Limits { pids: 40, ..small() }).await;
        let bomb = start(&sandbox, &field.payload(&["bomb"])).await.unwrap();
        field.with_witness(&witness, tokio::time::sleep(Duration::from_secs(3))).await;
        let began = Instant::now();
        sandbox.stop(Duration::ZERO).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "the stop took {:?}", began.elapsed());
        assert!(matches!(bomb.collect().await.unwrap().end.outcome, Outcome::SandboxLost { .. }));
        field.recovers(&field.sandbox().await).await;
    });
}

/// Verifies that attack C-04 fails: exhausting memory on the heap ends the whole exec, whose outcome names
/// the cause.
#[test]
#[ignore = "starts real sandboxes"]
fn a_memory_bomb_ends_its_whole_exec_and_is_called_by_its_name() {
    withstand("C-04", BOTH, async |field| {
        let witness = field.sandbox().await;
        let mut reached = Vec::new();
        for mebibytes in [48, 96] {
            let limits = Limits { memory_bytes: mebibytes * MIB, tmp_bytes: 16 * MIB, ..small() };
            let sandbox = field.lab.sandbox_with(limits).await;
            let attack = async { collect(&sandbox, &field.payload(&["heap"])).await };
            let done = field.with_witness(&witness, attack).await;
            reached.push(said_before_its_end(&done).number("touched"));
            if field.is_container() {
                assert_eq!(done.end.outcome, Outcome::Oom);
                let memory = done.end.memory.unwrap();
                assert_eq!(memory.limit_bytes, mebibytes * MIB);
                assert!(
                    memory.peak_bytes <= memory.limit_bytes && memory.peak_bytes > memory.limit_bytes / 2
                );
                field.recovers(&sandbox).await;
                field.is_empty(&sandbox).await;
            } else {
                // The attack either ends the sandbox, or an allocation fails and Python exits with code 1.
                let lost = Outcome::SandboxLost { cause: LostCause::Oom };
                assert!(
                    [lost, Outcome::Exited { code: 1 }].contains(&done.end.outcome),
                    "{}",
                    said(&done).raw
                );
                field.recovers(&field.sandbox().await).await;
            }
            sandbox.stop(Duration::ZERO).await.unwrap();
        }
        println!("C-04: touched {reached:?} MiB under limits of 48 and 96 MiB");
        assert!(reached[0] < 48 + if field.is_container() { 0 } else { 96 }, "{reached:?}");
        assert!(reached[1] > reached[0] + 32, "the second limit was not reached: {reached:?}");
        attack::count_control();
    });
}

/// Verifies that attack C-04 fails: memory that outlives the process that filled it stays within its limit,
/// and does not starve the next exec.
#[test]
#[ignore = "starts real sandboxes"]
fn memory_that_outlives_its_process_does_not_starve_the_next() {
    withstand("C-04", RUNC, async |field| {
        let mut reached = Vec::new();
        for (mebibytes, tmp_mebibytes) in [(64, 16), (96, 24)] {
            let (memory_bytes, tmp_bytes) = (mebibytes * MIB, tmp_mebibytes * MIB);
            let limits = Limits { memory_bytes, tmp_bytes, ..small() };
            let sandbox = field.lab.sandbox_with(limits).await;
            let mut touched = Vec::new();
            for place in ["memfd", "shm", "tmp"] {
                let spec = ExecSpec { deadline_ms: Some(3000), ..field.payload(&[place]) };
                let done = collect(&sandbox, &spec).await;
                touched.push(said_before_its_end(&done).number("touched"));
            }
            println!("C-04: memfd, shm and tmp took {touched:?} MiB of {mebibytes}");
            assert!(touched.iter().all(|took| (1..mebibytes).contains(took)), "{touched:?}");
            let next = collect(&sandbox, &exec(&["python3", "-c", "print(bytearray(8 << 20)[0])"])).await;
            assert_eq!(next.end.outcome, Outcome::Exited { code: 0 }, "{:?}", sandbox.usage().await.unwrap());
            field.recovers(&sandbox).await;
            field.is_empty(&sandbox).await;
            sandbox.stop(Duration::ZERO).await.unwrap();
            reached.push(touched);
        }
        // Control: with the second limits, the memory file and `/tmp` take more.
        assert!(reached[1][0] > reached[0][0] + 16 && reached[1][2] > reached[0][2], "{reached:?}");
        attack::count_control();
    });
}

/// Verifies that attack C-04 fails: memory in System V segments, which outlive the process that created them,
/// does not starve the next exec.
#[test]
#[ignore = "starts real sandboxes"]
fn memory_that_belongs_to_nobody_does_not_starve_the_next() {
    withstand("C-04", RUNC, async |field| {
        let sandbox =
            field.lab.sandbox_with(Limits { memory_bytes: 64 * MIB, tmp_bytes: 16 * MIB, ..small() }).await;
        for _ in 0..2 {
            assert_eq!(collect(&sandbox, &field.payload(&["sysv"])).await.end.outcome, Outcome::Oom);
        }
        // Control: the segments filled the memory twice, each time until a process was killed.
        attack::count_control();
        let next = collect(&sandbox, &exec(&["python3", "-c", "print(bytearray(8 << 20)[0])"])).await;
        assert_eq!(next.end.outcome, Outcome::Exited { code: 0 }, "{:?}", sandbox.usage().await.unwrap());
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack C-08 fails: a full disk affects only its own sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_full_disk_is_full_for_its_sandbox_only() {
    withstand("C-08", OCI_BOTH, async |field| {
        let witness = field.sandbox().await;
        let mut reached = Vec::new();
        for disk_bytes in [64 * MIB, 96 * MIB] {
            let sandbox = field.lab.sandbox_with(Limits { disk_bytes, ..small() }).await;
            let said = field.with_witness(&witness, field.attack(&sandbox, &["stay full"])).await;
            said.assert(
                "sandbox",
                &[
                    ("answer", "ENOSPC"),
                    ("deleted but open", "ENOSPC"),
                    ("promised", "ENOSPC|EFBIG"),
                    ("other place", "ENOSPC|EFBIG"),
                    ("stays", "ENOSPC"),
                ],
            );
            said.assert_held("sandbox");
            reached.push(said.number("written"));
            let image = field.lab.data().join("sandboxes").join(sandbox.id().as_str()).join("disk.img");
            let used = std::fs::metadata(image).unwrap().blocks() * 512;
            assert!(used <= disk_bytes + MIB, "the host gave {used} bytes");
            spools(field, &sandbox).await;
            sandbox.stop(Duration::ZERO).await.unwrap();
        }
        println!("C-08: wrote {reached:?} MiB on disks of 64 and 96 MiB");
        assert!(reached[0] < 64 && reached[1] > 64 && reached[1] < 96, "{reached:?}");
        attack::count_control();
    });
}

/// Verifies that attack C-09 fails: a disk without free inodes affects only its own sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_disk_without_inodes_is_so_for_its_sandbox_only() {
    withstand("C-09", OCI_BOTH, async |field| {
        let witness = field.sandbox().await;
        for disk_inodes in [500, 1000] {
            let sandbox = field.lab.sandbox_with(Limits { disk_inodes, ..small() }).await;
            let said = field.with_witness(&witness, field.attack(&sandbox, &[])).await;
            said.assert("sandbox", &[("answer", "ENOSPC|EDQUOT"), ("one more", "ENOSPC|EDQUOT")]);
            let made = said.number("made");
            println!("C-09: made {made} files with {disk_inodes} inodes");
            assert!(made <= disk_inodes + 64 && made + 64 > disk_inodes, "{made} of {disk_inodes}");
            attack::count_control();
            spools(field, &sandbox).await;
            let began = Instant::now();
            sandbox.stop(Duration::ZERO).await.unwrap();
            assert!(began.elapsed() < Duration::from_secs(5));
        }
    });
}

/// Verifies that attack C-12 fails: the number of open files is limited.
#[test]
#[ignore = "starts real sandboxes"]
fn open_files_end_at_the_limit() {
    withstand("C-12", BOTH, async |field| {
        let (witness, sandbox) = (field.sandbox().await, field.sandbox().await);
        for limit in ["256", "512"] {
            let said = field.attack(&sandbox, &[limit, "stay"]).await;
            assert_eq!(said.number("open").to_string(), limit, "{}", said.raw);
            attack::count_control();
        }
        let before = open_files();
        let said = field.with_witness(&witness, field.attack(&sandbox, &["0", "stay"])).await;
        said.assert("sandbox", &[("answer", "EMFILE"), ("raise", "EPERM")]);
        let limit = said.number("limit");
        assert!(limit <= 65_536);
        assert_eq!(said.number("open"), limit, "{}", said.raw);
        let flight = field.with_witness(&witness, field.attack(&sandbox, &["0"])).await;
        if field.is_container() {
            flight.assert("sandbox", &[("flight-answer", "ETOOMANYREFS")]);
            assert!(flight.number("in-flight") <= limit + 512, "{}", flight.raw);
            field.recovers(&sandbox).await;
        } else {
            // A user-space kernel does not count descriptors that are queued in sockets. It keeps them in its
            // own memory, which is limited.
            assert!(flight.raw.contains("SandboxLost { cause: Oom }"), "{}", flight.raw);
            field.recovers(&field.sandbox().await).await;
        }
        let began = Instant::now();
        while open_files() > before + OTHERS {
            assert!(began.elapsed() < CLOSED_WITHIN, "{} files are open, {before} before", open_files());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Verifies that attack C-20, modelled on CVE-2022-0492, fails: no cgroup tree is reachable.
#[test]
#[ignore = "starts real sandboxes"]
fn no_cgroup_tree_is_in_reach() {
    withstand("C-20", BOTH, async |field| {
        let control = Room { binds: Vec::new(), ..Room::default() }.attack("C-20", &[]);
        let mounted = control.all(1).any(|(thing, answer)| thing.starts_with("mount ") && answer == "ok");
        assert!(mounted, "control: {control:?}");
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        said.assert_held("sandbox");
        for (thing, answer) in said.all(12) {
            let wanted: &[&str] =
                if thing.starts_with("mount ") { &["EPERM"] } else { &["ENOENT", "EACCES", "EROFS"] };
            assert!(wanted.contains(&answer), "{thing} {answer}");
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack C-23 fails: a signal to every process reaches only processes of the same user in the
/// same sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn killing_everybody_kills_only_ones_own() {
    withstand("C-23", BOTH, async |field| {
        let control = Room { uid: 1000, powerful: false, ..Room::default() }.attack("C-23", &[]);
        control.assert("control", &[("victim", "dead")]);
        let (sandbox, other) = (field.sandbox().await, field.sandbox().await);
        let sleeper = exec(&["sleep", "600"]);
        let same_user = start(&sandbox, &sleeper).await.unwrap();
        let other_user = start(&sandbox, &ExecSpec { uid: Some(1001), ..sleeper.clone() }).await.unwrap();
        let other_sandbox = start(&other, &sleeper).await.unwrap();
        let said = field.attack(&sandbox, &[]).await;
        said.assert("sandbox", &[("victim", "dead")]);
        said.assert_held("sandbox");
        for signal in [1, 9, 15, 19] {
            said.assert("sandbox", &[(&format!("process 1 signal {signal}"), "EPERM")]);
        }
        assert_eq!(same_user.collect().await.unwrap().end.outcome, Outcome::Signaled { signal: 9 });
        field.recovers(&sandbox).await;
        for survivor in [other_user, other_sandbox] {
            assert_eq!(survivor.signal(15).await.unwrap(), 1, "another user's process is gone");
            assert_eq!(survivor.collect().await.unwrap().end.outcome, Outcome::Signaled { signal: 15 });
        }
    });
}

/// Asserts that a harmless command works, and that every byte of a large output is either kept or counted as
/// dropped.
async fn spools(field: &Field<'_>, sandbox: &Sandbox) {
    field.recovers(sandbox).await;
    let done = collect(sandbox, &exec(&["head", "-c", "3000000", "/dev/zero"])).await;
    let (kept, dropped) = (done.stdout.len() as u64, done.end.stdout_dropped);
    assert_eq!(done.end.stdout_bytes, 3_000_000, "{}", field.id);
    if field.is_container() {
        assert_eq!((kept, dropped), (3_000_000, 0), "{}", field.id);
    } else {
        // Under gVisor, the guest and user code write to the disk as the same user, so no blocks are reserved
        // for output. Lost output is counted.
        assert!(kept + dropped >= 3_000_000, "{}: {kept} kept, {dropped} dropped", field.id);
    }
}

/// Returns the number of open files on the whole host.
fn open_files() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/fs/file-nr").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

//! Limits of real sandboxes: each limit is enforced when it is reached, and everything else continues to
//! work. IDs from A2.05 to A2.10 refer to `docs/requirements.md`.

use std::time::{Duration, Instant};

use api::exec::{ExecSpec, LostCause, Outcome};
use api::limits::Limits;
use api::{ErrorCode, Ran};
use e2e::lab::{EVERYWHERE, collect, exec, on, promised, script, sh, start, text};
use e2e::service::until;
use node::Sandbox;
use runtime::Tier;

const RUNC: &[&str] = &["runc"];
const MIB: u64 = 1 << 20;

fn small() -> Limits {
    Limits { memory_bytes: 96 * MIB, disk_bytes: 96 * MIB, tmp_bytes: 48 * MIB, ..Limits::default() }
}

/// Verifies that attack C-01 fails: a fork bomb is contained, and both its own sandbox and other sandboxes
/// still respond.
#[test]
#[ignore = "starts real sandboxes"]
fn a_process_bomb_is_contained_and_everybody_else_is_answered() {
    on(RUNC, async |lab| {
        let bombed = lab.sandbox().await;
        let other = lab.sandbox().await;
        let spec =
            ExecSpec { deadline_ms: Some(20_000), ..script("bomb() { bomb | bomb & }; bomb; sleep 30") };
        let bomb = start(&bombed, &spec).await.unwrap();
        until(promised(10), "the bomb to reach the limit", async || {
            bombed.usage().await.unwrap().pids_refused > 0
        })
        .await;
        for sandbox in [&bombed, &other] {
            let began = Instant::now();
            let done = collect(sandbox, &exec(&["/bin/echo", "alive"])).await;
            assert_eq!(text(&done), "alive\n");
            assert!(began.elapsed() < promised(2), "{:?}", began.elapsed());
        }
        let usage = bombed.usage().await.unwrap();
        assert!(usage.pids <= Limits::default().pids + 1 && usage.pids_refused > 0, "{usage:?}");
        let began = Instant::now();
        bomb.cancel().await.unwrap();
        assert_eq!(bomb.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        assert!(began.elapsed() < promised(3), "{:?}", began.elapsed());
        assert!(bombed.usage().await.unwrap().pids < 5);
    });
}

/// A sandbox that uses all its CPU time and most of its memory still responds.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_that_burns_all_it_has_still_answers() {
    on(RUNC, async |lab| {
        let sandbox = lab.sandbox_with(small()).await;
        let burn = "for i in 1 2 3 4; do (while :; do :; done) & done; \
                    python3 -c 'import time; b = bytearray(60 << 20); time.sleep(60)' & wait";
        let burning = start(&sandbox, &script(burn)).await.unwrap();
        until(promised(10), "the loops and the memory", async || {
            let usage = sandbox.usage().await.unwrap();
            usage.cpu_us > 1_000_000 && usage.memory_bytes > 60 * MIB
        })
        .await;
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(text(&collect(&sandbox, &exec(&["/bin/echo", "alive"])).await), "alive\n");
            assert!(began.elapsed() < promised(2), "{:?}", began.elapsed());
        }
        burning.cancel().await.unwrap();
        assert_eq!(burning.collect().await.unwrap().end.outcome, Outcome::Cancelled);
    });
}

/// Runs an exec that uses too much memory, and checks its outcome for this tier.
async fn assert_oom(sandbox: &Sandbox, tier: Tier, spec: &ExecSpec) {
    let began = Instant::now();
    let done = collect(sandbox, spec).await;
    match tier {
        Tier::Container => {
            assert_eq!(done.end.outcome, Outcome::Oom, "{spec:?}: {}", String::from_utf8_lossy(&done.stderr));
            let memory = done.end.memory.expect("a report on memory");
            assert_eq!(memory.limit_bytes, small().memory_bytes);
            assert!(memory.peak_bytes > memory.limit_bytes * 9 / 10, "{memory:?}");
            // The guest survives, the next exec works, and no process is left.
            assert_eq!(text(&sh(sandbox, "echo next").await), "next\n");
            assert_eq!(sandbox.execs().await.unwrap().iter().map(|exec| exec.processes).sum::<u32>(), 0);
        }
        // gVisor either ends the sandbox or returns ENOMEM, which makes Python exit with code 1.
        Tier::UserKernel => {
            let lost = Outcome::SandboxLost { cause: LostCause::Oom };
            assert!([lost, Outcome::Exited { code: 1 }].contains(&done.end.outcome), "{spec:?}: {done:?}");
        }
    }
    assert!(began.elapsed() < promised(3), "{spec:?}: {:?}", began.elapsed());
}

/// Verifies that attack C-04 fails (requirement A2.05): exceeding the memory limit is reported whether a
/// process, a child or an orphan does so, and whether memory grows quickly or slowly.
#[test]
#[ignore = "starts real sandboxes"]
fn too_much_memory_is_oom_whoever_takes_it_and_however() {
    on(EVERYWHERE, async |lab| {
        let tier = lab.runtime.tier();
        let python = |code: &str| exec(&["python3", "-c", code]);
        let cases = [
            python("b = bytearray(200 << 20)"),
            script("python3 -c 'b = bytearray(200 << 20)'; echo survived; sleep 30"),
            script("(setsid python3 -c 'b = bytearray(200 << 20)' &) ; sleep 30"),
            python("import time\nbs = []\nwhile True: bs.append(bytearray(4 << 20)); time.sleep(0.01)"),
        ];
        let mut sandbox = lab.sandbox_with(small()).await;
        for spec in cases {
            assert_oom(&sandbox, tier, &spec).await;
            if tier == Tier::UserKernel {
                sandbox.stop(Duration::ZERO).await.unwrap();
                sandbox = lab.sandbox_with(small()).await;
            }
        }
    });
}

/// Files in `/dev/shm` and `/tmp` have their own limits, and also count towards the memory limit.
#[test]
#[ignore = "starts real sandboxes"]
fn memory_in_files_is_charged_and_does_not_outlive_its_oom() {
    on(RUNC, async |lab| {
        let limits = Limits { disk_bytes: 512 * MIB, ..small() };
        let sandbox = lab.sandbox_with(limits).await;
        let full =
            sh(&sandbox, "head -c 200M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x; rm /dev/shm/x").await;
        assert_eq!(text(&full), format!("{}\n", 24 * MIB), "a quarter of the memory, then ENOSPC");
        for _ in 0..3 {
            let both = "head -c 20M /dev/zero > /dev/shm/x; head -c 40M /dev/zero > /tmp/x; \
                        python3 -c 'b = bytearray(80 << 20)'; sleep 30";
            assert_oom(&sandbox, Tier::Container, &script(both)).await;
            // After an out-of-memory kill, `/dev/shm` is emptied, but the contents of `/tmp` remain for the
            // user.
            assert_eq!(text(&sh(&sandbox, "ls /dev/shm | wc -l; rm -f /tmp/x").await), "0\n");
        }
        // The page cache can be reclaimed, so it does not cause an out-of-memory kill.
        let cache =
            sh(&sandbox, "head -c 200M /dev/zero > /workspace/x && cat /workspace/x > /dev/null; echo $?")
                .await;
        assert_eq!((text(&cache).as_str(), cache.end.outcome), ("0\n", Outcome::Exited { code: 0 }));
    });
}

/// Verifies that attacks C-08 and C-09 fail (requirement A2.10): writes fail when disk space or inodes run
/// out, and output is still kept.
#[test]
#[ignore = "starts real sandboxes"]
fn a_full_disk_is_enospc_inside_and_output_is_still_kept() {
    on(EVERYWHERE, async |lab| {
        let limits = Limits { disk_bytes: 96 * MIB, disk_inodes: 1000, ..Limits::default() };
        let sandbox = lab.sandbox_with(limits).await;
        let fill = sh(&sandbox, "cat /dev/zero > /workspace/big; stat -c %s /workspace/big").await;
        assert!(String::from_utf8_lossy(&fill.stderr).contains("No space left"), "{fill:?}");
        let size: u64 = text(&fill).trim().parse().unwrap();
        eprintln!("{}: {} MiB of 96 were writable", lab.runtime.name(), size / MIB);
        // The rest holds the inodes and the reserve for retained output. In an engine, the home directory has a part.
        let least = if lab.runtime.properties().takes_images { 48 } else { 64 };
        assert!((least * MIB..96 * MIB).contains(&size), "{size}");
        // Retained output is stored on the same disk, in blocks that are reserved from user code.
        let done = sh(&sandbox, "head -c 3000000 /dev/zero").await;
        assert_eq!(done.end.stdout_bytes, 3_000_000);
        // Under gVisor, the guest and user code write as the same user, so no blocks are reserved, and only
        // the byte count is guaranteed.
        assert!(done.end.stdout_dropped == 0 || lab.runtime.tier() == Tier::UserKernel);
        if lab.runtime.name() == "podman" {
            // With Podman, Bellglass reports that it cannot limit the number of files.
            assert!(lab.runtime.lacks().await.unwrap().iter().any(|lack| lack.starts_with("disk_inodes")));
            return;
        }
        let inodes = sh(
            &sandbox,
            "rm /workspace/big; cd /workspace; i=0; while : > f$i; do i=$((i+1)); done; echo $i",
        )
        .await;
        let made: u64 = text(&inodes).trim().parse().unwrap();
        // ext4 rounds the number of inodes up, so that they fill the last block of its inode table. In an
        // engine, a quarter of the inodes belongs to the home directory.
        let least = if lab.runtime.properties().takes_images { 700 } else { 900 };
        assert!((least..=1024).contains(&made), "{made}");
    });
}

/// Checks requirement A2.06: CPU time is capped at the limit.
#[test]
#[ignore = "starts real sandboxes"]
fn processor_time_is_capped() {
    on(RUNC, async |lab| {
        let sandbox = lab.sandbox_with(Limits { cpu_millis: 200, ..Limits::default() }).await;
        let before = sandbox.usage().await.unwrap().cpu_us;
        let began = Instant::now();
        let spec = ExecSpec {
            deadline_ms: Some(3000),
            ..script("for i in 1 2; do (while :; do :; done) & done; wait")
        };
        assert_eq!(collect(&sandbox, &spec).await.end.outcome, Outcome::Timeout);
        let used =
            (sandbox.usage().await.unwrap().cpu_us - before) as f64 / began.elapsed().as_micros() as f64;
        eprintln!("{used:.3} of a core");
        // The lower bound shows that the loops ran, so that there was something to cap.
        assert!((0.15..=0.22).contains(&used), "{used:.3} of a core");
    });
}

/// A limit that cannot be enforced is refused with `limit_exceeded` when the sandbox is created.
#[test]
#[ignore = "starts real sandboxes"]
fn a_limit_out_of_range_is_refused_by_name_and_nothing_starts() {
    on(EVERYWHERE, async |lab| {
        for limits in [
            Limits { memory_bytes: 1, ..Limits::default() },
            Limits { memory_bytes: u64::MAX, ..Limits::default() },
            Limits { pids: 100_000, ..Limits::default() },
            Limits { disk_bytes: 1 << 50, ..Limits::default() },
        ] {
            let started =
                Sandbox::start(std::sync::Arc::clone(&lab.runtime), lab.id(), &lab.spec(limits)).await;
            let error = started.err().expect("it started").to_api();
            assert_eq!((error.code, error.ran), (ErrorCode::LimitExceeded, Ran::No));
        }
        assert!(lab.runtime.list().await.unwrap().is_empty());
    });
}

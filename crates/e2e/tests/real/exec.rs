//! Execs in real sandboxes: outcomes, remaining processes, input and environment.

use std::time::{Duration, Instant};

use api::exec::{Background, ExecSpec, Outcome};
use api::{ErrorCode, Ran};
use bytes::Bytes;
use e2e::lab::{EVERYWHERE, collect, exec, on, script, sh, start, text, until_there};

const RUNC: &[&str] = &["runc"];

fn exited(code: i32) -> Outcome {
    Outcome::Exited { code }
}

/// An exec ends with its process. A background child keeps running and is listed.
#[test]
#[ignore = "starts real sandboxes"]
fn a_background_child_does_not_hold_the_exec() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let began = Instant::now();
        let done = sh(&sandbox, "sleep 600 & echo ok").await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!((text(&done).as_str(), &done.end.outcome), ("ok\n", &exited(0)));
        assert_eq!(done.end.left_running, 1);
        let listed = sandbox.execs().await.unwrap();
        assert_eq!(listed.last().unwrap().processes, 1, "the child still runs and is listed");
    });
}

/// A caller that has lost the response can repeat its request, even before the original start has succeeded
/// or failed.
#[test]
#[ignore = "starts real sandboxes"]
fn a_start_that_is_asked_for_twice_at_once_is_answered_the_same_twice() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        for number in 0..20 {
            let id: api::ExecId = format!("missing{number}").parse().unwrap();
            let spec = exec(&["/no/such/program"]);
            let (first, second) = tokio::join!(sandbox.exec(id.clone(), &spec), sandbox.exec(id, &spec));
            let first = first.err().expect("it started").to_api();
            assert_eq!((first.code, first.ran), (ErrorCode::SpawnFailed, Ran::No));
            assert_eq!(first, second.err().expect("it attached to nothing").to_api());
            let id: api::ExecId = format!("there{number}").parse().unwrap();
            let spec = script(&format!("echo {number}"));
            let (first, second) = tokio::join!(sandbox.exec(id.clone(), &spec), sandbox.exec(id, &spec));
            for reader in [first.unwrap(), second.unwrap()] {
                assert_eq!(text(&reader.collect().await.unwrap()), format!("{number}\n"));
            }
        }
        let listed = sandbox.execs().await.unwrap();
        assert_eq!(listed.len(), 20, "what was there, each once");
        assert!(listed.iter().all(|exec| exec.deadline_ms.is_some()), "each has its deadline: {listed:?}");
    });
}

/// Verifies that attack A-17 fails: a daemon that keeps stdout open does not delay the end of its exec, and
/// its later output is not recorded.
#[test]
#[ignore = "starts real sandboxes"]
fn a_daemon_that_keeps_stdout_does_not_hold_the_exec() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let daemon = "import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork()==0:\n  \
                      while True: print('late', flush=True); time.sleep(0.05)\n os._exit(0)\nprint('main')";
        let began = Instant::now();
        let done = collect(&sandbox, &exec(&["python3", "-c", daemon])).await;
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(text(&done).contains("main"));
        assert_eq!(done.end.outcome, exited(0));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let listed = sandbox.execs().await.unwrap();
        let info = listed.last().unwrap();
        assert_eq!(info.processes, 1, "the daemon is listed with the exec that started it");
        assert_eq!(info.stdout_bytes, done.end.stdout_bytes, "late output is not added to an ended exec");
    });
}

/// Cancelling an exec also kills a grandchild that has moved to its own session and keeps the pipe open.
#[test]
#[ignore = "starts real sandboxes"]
fn ending_an_exec_ends_a_grandchild_that_holds_the_pipe() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let exec = start(&sandbox, &script("(setsid sh -c ': > up; exec sleep 600' &) ; sleep 600 & wait"))
            .await
            .unwrap();
        until_there(&sandbox, "up").await;
        let began = Instant::now();
        exec.cancel().await.unwrap();
        let done = exec.collect().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(done.end.outcome, Outcome::Cancelled);
        assert_eq!(sandbox.execs().await.unwrap().iter().map(|one| one.processes).sum::<u32>(), 0);
    });
}

/// If a process closes stdout and stderr, the exec still waits for the process and reports its exit code.
#[test]
#[ignore = "starts real sandboxes"]
fn closed_pipes_do_not_end_an_exec() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let began = Instant::now();
        let done = sh(&sandbox, "exec >&- 2>&-; sleep 1; exit 7").await;
        assert!(began.elapsed() >= Duration::from_secs(1));
        assert_eq!(done.end.outcome, exited(7));
    });
}

/// Writing 1 MiB to stderr causes no deadlock, and both streams are complete.
#[test]
#[ignore = "starts real sandboxes"]
fn a_full_stderr_does_not_block_stdout() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let done = sh(&sandbox, "head -c 1048576 /dev/zero >&2; echo done").await;
        assert_eq!((done.stderr.len(), text(&done).as_str()), (1 << 20, "done\n"));
    });
}

/// An exec whose process exits immediately never hangs.
#[test]
#[ignore = "starts real sandboxes"]
fn a_process_that_ends_at_once_is_never_waited_for() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        for _ in 0..50 {
            let done = collect(&sandbox, &exec(&["/bin/true"])).await;
            assert_eq!(done.end.outcome, exited(0));
        }
    });
}

/// If a signal terminates a process, the outcome names the signal. Every exit code is reported unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn a_signal_is_never_taken_for_success() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        for (name, signal) in [("KILL", 9), ("SEGV", 11), ("ABRT", 6), ("SYS", 31), ("TERM", 15)] {
            let done = sh(&sandbox, &format!("kill -{name} $$")).await;
            assert_eq!(done.end.outcome, Outcome::Signaled { signal });
        }
        for code in [0, 1, 3, 126, 127, 255] {
            assert_eq!(sh(&sandbox, &format!("exit {code}")).await.end.outcome, exited(code));
        }
    });
}

/// If a program cannot be started, or its directory cannot be entered, the exec fails with `spawn_failed` and
/// `ran: no`.
#[test]
#[ignore = "starts real sandboxes"]
fn what_cannot_be_started_is_an_error_and_did_not_run() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let setup = "cd /workspace; echo hi >plain; printf '#!/no/such\\n' >bad; chmod +x bad; mkdir dir; \
                     head -c 100 /dev/urandom >junk; chmod +x junk; mkdir -m 0 closed";
        assert_eq!(sh(&sandbox, setup).await.end.outcome, exited(0));
        let in_closed = ExecSpec { cwd: Some("/workspace/closed".into()), ..exec(&["/bin/true"]) };
        let in_nowhere = ExecSpec { cwd: Some("/nowhere".into()), ..exec(&["/bin/true"]) };
        let at = |path: &str| exec(&[path]);
        for spec in [
            at("no-such-program"),
            at("/no/such/program"),
            at("/workspace/plain"),
            at("/workspace/bad"),
            at("/workspace/dir"),
            at("/workspace/junk"),
            in_closed,
            in_nowhere,
        ] {
            let error = start(&sandbox, &spec).await.err().expect("it started").to_api();
            assert_eq!((error.code, error.ran), (ErrorCode::SpawnFailed, Ran::No), "{spec:?}: {error:?}");
        }
        assert_eq!(sandbox.execs().await.unwrap().iter().filter(|exec| exec.processes > 0).count(), 0);
    });
}

/// Without stdin, a program reads EOF immediately; with stdin, it reads EOF after the last byte.
#[test]
#[ignore = "starts real sandboxes"]
fn stdin_is_empty_unless_asked_for_and_ends_after_its_last_byte() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let began = Instant::now();
        let done = collect(&sandbox, &exec(&["cat"])).await;
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_eq!((done.stdout.len(), &done.end.outcome), (0, &exited(0)));
        let with_stdin = ExecSpec { stdin: true, ..exec(&["cat"]) };
        let exec = start(&sandbox, &with_stdin).await.unwrap();
        let within = Duration::from_secs(5);
        assert_eq!(exec.write_stdin(0, Bytes::from_static(b"hello "), false, within).await.unwrap(), 6);
        // Bytes that are sent a second time at the same offset are not written again.
        assert_eq!(exec.write_stdin(0, Bytes::from_static(b"hello "), false, within).await.unwrap(), 6);
        assert_eq!(exec.write_stdin(6, Bytes::from_static(b"world"), true, within).await.unwrap(), 11);
        assert_eq!(text(&exec.collect().await.unwrap()), "hello world");
    });
}

/// Scripts can open their streams by path, as in `echo x > /dev/stderr`. This does not work under gVisor,
/// where it would also let other processes open the streams.
#[test]
#[ignore = "starts real sandboxes"]
fn a_program_may_open_its_streams_by_their_names() {
    on(&["runc"], async |lab| {
        let sandbox = lab.sandbox().await;
        let script =
            "echo out > /dev/stdout; echo err > /dev/stderr; echo more >> /proc/self/fd/2; cat /dev/stdin";
        let spec = ExecSpec { stdin: true, ..exec(&["bash", "-c", script]) };
        let exec = start(&sandbox, &spec).await.unwrap();
        let within = Duration::from_secs(5);
        exec.write_stdin(0, Bytes::from_static(b"in\n"), true, within).await.unwrap();
        let done = exec.collect().await.unwrap();
        assert_eq!((text(&done), &done.end.outcome), ("out\nin\n".into(), &exited(0)), "{done:?}");
        assert_eq!(done.stderr, b"err\nmore\n");
    });
}

/// Verifies that attack A-09 fails: orphaned grandchildren are reaped, and no zombie is counted as a running
/// process.
#[test]
#[ignore = "starts real sandboxes"]
fn ten_thousand_orphans_leave_no_zombie() {
    on(RUNC, async |lab| {
        let sandbox = lab.sandbox().await;
        let orphans = "import os\nfor _ in range(10000):\n p=os.fork()\n if p==0:\n  if os.fork()==0: os._exit(0)\n  \
                       os._exit(0)\n os.waitpid(p,0)\nprint('done')";
        let done = collect(&sandbox, &exec(&["python3", "-c", orphans])).await;
        assert_eq!((text(&done).as_str(), &done.end.outcome), ("done\n", &exited(0)));
        let zombies =
            sh(&sandbox, "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l; ls -d /proc/[0-9]* | wc -l").await;
        let counts: Vec<u32> = text(&zombies).split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(counts[0], 0);
        assert!(counts[1] < 10, "{counts:?}");
        assert!(sandbox.execs().await.unwrap().iter().all(|exec| exec.processes == 0));
    });
}

/// An exec can have 300 KB of arguments and 200 KB of environment. Beyond the limits, the error is
/// `limit_exceeded`.
#[test]
#[ignore = "starts real sandboxes"]
fn long_command_lines_work_or_are_refused_by_name() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let words = vec!["x".repeat(1000); 300];
        let mut spec = exec(&["/bin/bash", "-c", "echo $#; echo ${#BIG0} ${#BIG1}", "name"]);
        spec.argv.extend(words);
        spec.env.insert("BIG0".into(), "y".repeat(100_000));
        spec.env.insert("BIG1".into(), "z".repeat(100_000));
        assert_eq!(text(&collect(&sandbox, &spec).await), "300\n100000 100000\n");
        let too_long = exec(&["/bin/echo", &"x".repeat(200_000)]);
        let error = start(&sandbox, &too_long).await.err().unwrap().to_api();
        assert_eq!((error.code, error.ran), (ErrorCode::LimitExceeded, Ran::No));
        let many = ExecSpec {
            env: (0..40).map(|n| (format!("V{n}"), "v".repeat(60_000))).collect(),
            ..exec(&["env"])
        };
        assert_eq!(start(&sandbox, &many).await.err().unwrap().to_api().code, ErrorCode::LimitExceeded);
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_same_request_starts_one_exec_and_another_is_a_conflict() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let id: api::ExecId = "once".parse().unwrap();
        let spec = script("echo run >> /workspace/runs; cat /workspace/runs");
        for _ in 0..3 {
            let done = sandbox.exec(id.clone(), &spec).await.unwrap().collect().await.unwrap();
            assert_eq!(text(&done), "run\n");
        }
        let error = sandbox.exec(id, &script("echo other")).await.err().unwrap().to_api();
        assert_eq!(error.code, ErrorCode::Conflict);
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn signals_reach_all_processes_of_an_exec_and_no_others() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let other = start(&sandbox, &exec(&["sleep", "600"])).await.unwrap();
        let exec =
            start(&sandbox, &script("sleep 601 & sleep 602 & trap 'echo got; exit 5' INT; : > up; wait"))
                .await
                .unwrap();
        until_there(&sandbox, "up").await;
        assert_eq!(exec.signal(2).await.unwrap(), 3);
        assert!(exec.signal(0).await.is_err() && exec.signal(99).await.is_err());
        let done = exec.collect().await.unwrap();
        assert_eq!((text(&done).as_str(), &done.end.outcome), ("got\n", &exited(5)));
        assert_eq!(other.signal(15).await.unwrap(), 1);
        assert_eq!(other.collect().await.unwrap().end.outcome, Outcome::Signaled { signal: 15 });
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn what_an_exec_leaves_behind_can_be_ended_with_it() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let spec =
            ExecSpec { background: Background::Kill, ..script("(setsid sleep 600 &); sleep 601 & echo ok") };
        let done = collect(&sandbox, &spec).await;
        assert_eq!((text(&done).as_str(), done.end.left_running), ("ok\n", 0));
        assert_eq!(sandbox.execs().await.unwrap().last().unwrap().processes, 0);
    });
}

/// Checks requirements A2.03 and A2.04: every exec has a user, a UTF-8 locale, UTC, a writable home and a
/// read-only root file system.
#[test]
#[ignore = "starts real sandboxes"]
fn every_exec_finds_a_usable_home() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let look = "id -un; id -u; pwd; echo $LANG $TZ $HOME; locale 2>/dev/null | head -1; date +%Z; \
                    touch ~/x /workspace/x /tmp/x && echo writable; touch /x /etc/x 2>/dev/null || echo sealed; \
                    df -B1 --output=size /dev/shm | tail -1; getent passwd 1000 | cut -d: -f1,6; env | wc -l";
        let done = sh(&sandbox, look).await;
        let text = text(&done);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines[..10],
            [
                "sandbox",
                "1000",
                "/workspace",
                "C.UTF-8 UTC /home/sandbox",
                "LANG=C.UTF-8",
                "UTC",
                "writable",
                "sealed",
                "67108864",
                "sandbox:/home/sandbox",
            ],
            "{text}"
        );
        // Nine of the variables are proxy settings.
        assert!(lines[10].parse::<u32>().unwrap() <= 15 + 9, "{text}");
        let files = sh(&sandbox, "ulimit -Hn; ulimit -c").await;
        let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
        // The limit must not exceed a sandbox's share of the machine's open files.
        let share = runtime::tables::open_files(&api::limits::Limits::default());
        assert_eq!(e2e::lab::text(&files), format!("{}\n0\n", hard.min(share)));
    });
}

/// The host's hardware data, kernel command line, keys and kernel log are not visible inside.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_inside_tells_of_the_host() {
    const LOOK: &str = "cat /sys/class/dmi/id/* /sys/devices/virtual/dmi/id/* /sys/firmware/dmi/tables/* 2>/dev/null; \
                        cat /proc/cmdline; echo; cat /proc/keys /proc/key-users 2>/dev/null; dmesg 2>/dev/null; \
                        cat /dev/kmsg 2>/dev/null; cat /proc/kmsg 2>/dev/null; true";
    // Returns the words that are long enough to be specific to the host.
    let words = |text: &str| -> std::collections::BTreeSet<String> {
        text.split_whitespace().filter(|word| word.len() >= 8).map(str::to_owned).collect()
    };
    on(EVERYWHERE, async |lab| {
        // Positive control: root on the host finds such words in the same sources.
        let control = "cat /proc/cmdline /proc/keys; dmesg 2>/dev/null | tail -200; cat /sys/class/dmi/id/* 2>/dev/null";
        let host = std::process::Command::new("sh").args(["-c", control]).output().unwrap();
        let host = words(&String::from_utf8_lossy(&host.stdout));
        assert!(host.len() > 5, "{host:?}");
        let mut seen = Vec::new();
        for _ in 0..2 {
            let sandbox = lab.sandbox().await;
            seen.push(text(&sh(&sandbox, LOOK).await));
        }
        for one in &seen {
            let told: Vec<String> = words(one).intersection(&host).cloned().collect();
            // gVisor's kernel log and command line are invented, and contain words that real kernels commonly
            // use.
            assert!(told.is_empty() || lab.runtime.name() == "runsc" && told.len() < 3, "{told:?} in {one}");
        }
        if lab.runtime.name() != "runsc" {
            assert_eq!(seen[0].trim(), "", "nothing at all");
        }
    });
}

//! How real sandboxes and their execs end: deadlines, deaths, restarts and leaks.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, LostCause, Outcome};
use api::limits::{self, Limits};
use api::{ErrorCode, Ran};
use e2e::cutter::Cutter;
use e2e::lab::{EVERYWHERE, Lab, collect, exec, on, script, sh, sized, start, text};
use node::Sandbox;
use runtime::Runtime;
use runtime::oci::{Dirs, Flavor, Oci};

const RUNC: &[&str] = &["runc"];

/// Verifies that attack A-07 fails: a deadline kills the whole process tree. The test checks this both from
/// the host and from inside.
#[test]
#[ignore = "starts real sandboxes"]
fn a_deadline_ends_the_whole_tree() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let tree = "(setsid sh -c 'sleep 600 & sleep 601' &); (sleep 602 &); trap '' TERM; sleep 603";
        let spec = ExecSpec { deadline_ms: Some(500), ..script(tree) };
        let began = Instant::now();
        assert_eq!(collect(&sandbox, &spec).await.end.outcome, Outcome::Timeout);
        assert!(began.elapsed() < Duration::from_millis(500 + 2000), "{:?}", began.elapsed());
        if lab.runtime.name() == "runc" {
            assert_eq!(sandbox.usage().await.unwrap().pids, 0);
        }
        assert_eq!(text(&sh(&sandbox, "pgrep -c sleep").await), "0\n");
    });
}

/// Verifies that attack A-06 fails: a process that ignores SIGTERM gets SIGKILL after its grace period, and
/// the outcome is `timeout`.
#[test]
#[ignore = "starts real sandboxes"]
fn a_process_that_ignores_sigterm_is_killed_after_its_grace() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let ignore = "import signal,time\nfor s in (1,2,15): signal.signal(s, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)";
        let spec =
            ExecSpec { deadline_ms: Some(1500), grace_ms: Some(300), ..exec(&["python3", "-c", ignore]) };
        let began = Instant::now();
        let done = collect(&sandbox, &spec).await;
        let took = began.elapsed();
        assert_eq!((text(&done).as_str(), &done.end.outcome), ("deaf\n", &Outcome::Timeout));
        assert!(took >= Duration::from_millis(1800) && took < Duration::from_millis(2800), "{took:?}");
        // If a process handles SIGTERM and ends within its grace period, the outcome is the same.
        let spec = ExecSpec {
            deadline_ms: Some(500),
            grace_ms: Some(5000),
            ..script("trap 'exit 0' TERM; sleep 600 & wait")
        };
        let began = Instant::now();
        assert_eq!(collect(&sandbox, &spec).await.end.outcome, Outcome::Timeout);
        assert!(began.elapsed() < Duration::from_secs(3));
    });
}

/// A deadline of zero or above the maximum is refused. No deadline, or exactly the maximum, is accepted.
#[test]
#[ignore = "starts real sandboxes"]
fn a_deadline_is_a_time_or_absent_and_nothing_else() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        for (deadline_ms, code) in [
            (Some(0), ErrorCode::InvalidRequest),
            (Some(limits::DEADLINE_MS_MAX + 1), ErrorCode::LimitExceeded),
        ] {
            let error =
                start(&sandbox, &ExecSpec { deadline_ms, ..exec(&["true"]) }).await.err().unwrap().to_api();
            assert_eq!((error.code, error.ran), (code, Ran::No));
        }
        for deadline_ms in [None, Some(limits::DEADLINE_MS_MAX)] {
            let done = collect(&sandbox, &ExecSpec { deadline_ms, ..exec(&["true"]) }).await;
            assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
        }
    });
}

/// Verifies that attack A-01 fails: when the guest is killed with SIGKILL, every stream ends with a typed
/// outcome.
#[test]
#[ignore = "starts real sandboxes"]
fn the_death_of_process_1_ends_every_stream_within_two_seconds() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let execs = [
            start(&sandbox, &exec(&["sleep", "600"])).await,
            start(&sandbox, &exec(&["cat", "/dev/zero"])).await,
        ];
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        kill_process_1(lab, &sandbox);
        for exec in execs {
            let done = exec.unwrap().collect().await.unwrap();
            assert_eq!(done.end.outcome, Outcome::SandboxLost { cause: LostCause::Died });
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        let error = start(&sandbox, &exec(&["true"])).await.err().unwrap().to_api();
        assert_eq!(error.code, ErrorCode::SandboxLost);
    });
}

fn kill_process_1(lab: &Lab, sandbox: &Sandbox) {
    let pid = rustix::process::Pid::from_raw(lab.process_of(sandbox.id())).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The guest's dead-man timer ends a sandbox without any action from outside the sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_ends_by_itself_when_its_time_is_over() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox_with(Limits { ttl_ms: 2000, ..Limits::default() }).await;
        let done = collect(&sandbox, &exec(&["sleep", "600"])).await;
        let lost = |cause| Outcome::SandboxLost { cause };
        assert_eq!(done.end.outcome, lost(LostCause::Expired));
    });
}

/// Execs and their output outlive the host process that started them.
#[test]
#[ignore = "starts real sandboxes"]
fn a_new_process_takes_over_and_loses_nothing() {
    on(EVERYWHERE, async |lab| {
        let first = lab.again();
        let sandbox = Sandbox::start(first, lab.id(), &lab.spec(Limits::default())).await.unwrap();
        let exec = start(&sandbox, &script("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; exit 3"))
            .await
            .unwrap();
        let (id, exec_id) = (sandbox.id().clone(), exec.id().clone());
        drop(exec);
        drop(sandbox);
        // Wait until the first instance's tasks notice the drop and release the sandbox, as if their process
        // had died.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let second = lab.again();
        let sandbox = Sandbox::attach(second, id, Limits::default().memory_bytes);
        let done = sandbox.exec_reader(exec_id).collect().await.unwrap();
        assert_eq!(
            (text(&done).as_str(), done.end.outcome),
            ("1\n2\n3\n4\n5\n6\n7\n8\n", Outcome::Exited { code: 3 })
        );
    });
}

/// Execs are tracked by the guest. If a connection breaks while an exec starts, the exec exists completely or
/// not at all.
#[test]
#[ignore = "starts real sandboxes"]
fn execs_started_on_breaking_connections_all_end_with_their_outcome() {
    on(RUNC, async |lab| {
        let cutter = Arc::new(Cutter::new(Arc::clone(&lab.runtime)));
        let sandbox = Sandbox::start(cutter.clone(), lab.id(), &lab.spec(Limits::default())).await.unwrap();
        for number in 0..60_u64 {
            let spec = script(&format!("echo {number}; exit {}", number % 50));
            let cut = async {
                tokio::time::sleep(Duration::from_micros(number * 60)).await;
                cutter.cut();
                std::future::pending::<()>().await;
            };
            let run = async { start(&sandbox, &spec).await.unwrap().collect().await.unwrap() };
            let done = tokio::select! {
                done = run => done,
                () = cut => continue,
            };
            assert_eq!(text(&done), format!("{number}\n"));
            assert_eq!(done.end.outcome, Outcome::Exited { code: i32::try_from(number % 50).unwrap() });
        }
        assert!(cutter.carried() > 10, "{}", cutter.carried());
    });
}

/// Code that a user injects into the start of a program, for example by `LD_PRELOAD`, runs only after the
/// last restriction has been applied.
#[test]
#[ignore = "starts real sandboxes"]
fn preloads_and_start_up_files_run_with_nothing_more_than_any_exec() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let plant = "mkdir -p /workspace/p; echo 'import os; open(\"/workspace/seen\",\"w\").write(open(\"/proc/self/status\").read())' \
                     > /workspace/p/sitecustomize.py; printf 'grep -E \"^(Uid|CapEff|CapBnd|Seccomp):\" /proc/self/status > /workspace/bash\\n' > /workspace/rc";
        assert_eq!(sh(&sandbox, plant).await.end.outcome, Outcome::Exited { code: 0 });
        let env = [
            ("PYTHONPATH", "/workspace/p"),
            ("BASH_ENV", "/workspace/rc"),
            ("LD_PRELOAD", "/workspace/none.so"),
        ];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let spec = ExecSpec { env, ..script("python3 -c pass; cat /workspace/seen /workspace/bash") };
        let seen = text(&collect(&sandbox, &spec).await);
        let lines = |name: &str| -> Vec<String> {
            let values = seen.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            values.map(|value| value.trim().to_owned()).collect()
        };
        assert_eq!(lines("Uid").len(), 2, "{seen}");
        assert!(lines("Uid").iter().all(|uid| uid.split_whitespace().all(|id| id == "1000")), "{seen}");
        assert!(
            lines("CapEff").iter().chain(&lines("CapBnd")).all(|caps| caps == "0000000000000000"),
            "{seen}"
        );
        assert!(lines("Seccomp").iter().all(|mode| mode == "2"), "{seen}");
    });
}

/// A sandbox does not start if any part of its isolation is missing.
#[test]
#[ignore = "starts real sandboxes"]
fn a_missing_part_of_the_isolation_is_refused() {
    on(EVERYWHERE, async |lab| {
        let missing = Flavor { binary: "/nonexistent/runtime".into(), ..Flavor::runc() };
        let runtime = Oci::new(missing, Dirs::below(lab.data())).map(|oci| Arc::new(oci) as Arc<dyn Runtime>);
        let error = match runtime {
            Ok(runtime) => Sandbox::start(runtime, lab.id(), &lab.spec(Limits::default()))
                .await
                .err()
                .expect("started")
                .to_api(),
            Err(error) => node::Error::from(error).to_api(),
        };
        assert_eq!(error.ran, Ran::No, "{error:?}");
        // A missing seccomp filter is visible in the posture of the first exec, and makes the start fail.
        let broken = tempfile::tempdir().unwrap();
        let wrapper = broken.path().join("runtime");
        let real = Flavor::runc().find().unwrap().binary;
        let script = format!(
            "#!/bin/sh\nfor word in \"$@\"; do case \"$last\" in --bundle) b=$word;; esac; last=$word; done\n\
             [ -n \"$b\" ] && python3 - \"$b/config.json\" <<'E'\nimport json,sys\np=sys.argv[1];c=json.load(open(p));\
             c['linux'].pop('seccomp',None);json.dump(c,open(p,'w'))\nE\nexec {} \"$@\"\n",
            real.display()
        );
        std::fs::write(&wrapper, script).unwrap();
        std::fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let flavor = Flavor { binary: wrapper, ..Flavor::runc() };
        let runtime = Arc::new(Oci::new(flavor, Dirs::below(lab.data())).unwrap());
        let started = Sandbox::start(runtime, lab.id(), &lab.spec(Limits::default())).await;
        let error = started.err().expect("a sandbox without its filter started").to_api();
        assert_eq!(error.code, ErrorCode::PostureMismatch, "{error:?}");
        assert!(error.message.contains("seccomp"), "{}", error.message);
    });
}

/// Sandboxes do not leak: 500 starts and stops leave nothing behind.
#[test]
#[ignore = "starts real sandboxes"]
fn five_hundred_cycles_leave_nothing() {
    on(RUNC, async |lab| {
        for _ in 0..sized(500, 100) {
            let sandbox = lab.sandbox().await;
            sandbox.stop(Duration::ZERO).await.unwrap();
        }
        lab.traces().assert_nothing_left();
        assert_eq!(std::fs::read_dir(lab.data().join("sandboxes")).unwrap().count(), 0);
    });
}

const CRASHER: &str = "BELLGLASS_CRASH_AT";

/// The calling process is killed after each startup step in turn, and the next command removes everything.
#[test]
#[ignore = "starts real sandboxes"]
fn a_start_killed_at_any_step_is_removed_by_the_next_command() {
    on(&["runc", "runsc"], async |lab| {
        for (number, step) in Oci::steps().iter().enumerate() {
            let id = format!("t{}nc{number}", std::process::id());
            let crashed = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "lifecycle::crash_here_when_told_to", "--ignored", "--nocapture"])
                .env(CRASHER, format!("{step} {id} {} {}", lab.runtime.name(), lab.data().display()))
                .status()
                .unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&crashed), Some(9), "{step}: {crashed}");
            reap_adopted();
            let removed = node::remove_orphans(&lab.machine).await.unwrap();
            assert!(removed.iter().any(|removed| removed.as_str() == id), "{step}: {removed:?}");
            lab.traces().assert_nothing_left();
            assert_eq!(std::fs::read_dir(lab.data().join("sandboxes")).unwrap().count(), 0, "{step}");
        }
        // The uid range has been released, so the next sandbox gets the first range.
        assert_eq!(text(&sh(&lab.sandbox().await, "cut -d: -f1 /etc/passwd | tail -1").await), "sandbox\n");
    });
}

/// Reaps the orphans of a killed process, which this process adopts. The only orphan is the process that
/// holds a user namespace and exits when its parent dies.
fn reap_adopted() {
    for _ in 0..50 {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => return,
        }
    }
}

/// Acts as the process that the previous test starts and that is killed at a given step. It is not a test.
#[test]
#[ignore = "starts real sandboxes"]
fn crash_here_when_told_to() {
    let Ok(told) = std::env::var(CRASHER) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let [step, id, runtime, data] = words[..] else { panic!("{told}") };
    let flavor = node::Machine::flavors().into_iter().find(|flavor| flavor.name == runtime).unwrap();
    let oci = Oci::new(flavor.find().unwrap(), Dirs::below(data)).unwrap().crash_at(step);
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guest =
        std::fs::read_dir(format!("{data}/guest")).unwrap().flatten().next().unwrap().path().join("guest");
    let spec = runtime::Spec {
        layers: vec![e2e::layer::base()],
        image: String::new(),
        limits: Limits::default(),
        profile: runtime::Profile::Run,
        guest,
    };
    executor.block_on(async { oci.start(&id.parse().unwrap(), &spec).await }).unwrap();
    panic!("{step} was never reached");
}

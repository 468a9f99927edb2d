//! Runs that time out, are cancelled or crash: their outcomes, and the absence of leftovers (requirement
//! A3.05).

use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome, Stream};
use api::limits::Limits;
use client::Event;
use e2e::lab::promised;
use e2e::room::{Room, in_a_room_with, python};

const MEMORY_BYTES: u64 = 512 << 20;

/// Python code that starts children in their own sessions and process groups. The children ignore every
/// signal that can be ignored. `until_gone` finds them by their name, `straggler`.
const STRAYS: &str = "import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(3):
    subprocess.Popen(['bash', '-c', 'trap \"\" TERM INT HUP; exec -a straggler sleep 1000'], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('bash', ['bash', '-c', 'exec -a straggler sleep 1000'])
    os._exit(0)
print('begun', flush=True)
";

#[test]
#[ignore = "starts real sandboxes"]
fn a_run_that_is_ended_leaves_no_process_and_the_next_is_not_affected() {
    let limits = Limits { memory_bytes: MEMORY_BYTES, ..Limits::default() };
    in_a_room_with(limits, &[], async |_, room| {
        room.run("print('warm')").await.well();
        timeouts(room).await;
        cancelled(room).await;
        failing(room).await;
        memory_errors(room).await;
        memory(room).await;
    });
}

/// Checks that no process of the previous run is left, and that a new run works normally.
async fn undisturbed(room: &Room) {
    room.until_gone("straggler", promised(10)).await;
    let began = Instant::now();
    let ran = room.run("import numpy\nprint(numpy.arange(3).sum())").await.well();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("3\n", ""));
    assert!(began.elapsed() < promised(10), "{:?}", began.elapsed());
}

/// Checks requirement A3.03: a timed-out run returns its output so far, and the sandbox remains usable.
async fn timeouts(room: &Room) {
    for (name, tail) in [
        ("busy", "while True: pass"),
        ("asleep", "time.sleep(1000)"),
        ("deaf", "while True:\n    try:\n        time.sleep(1000)\n    except BaseException: pass"),
        ("in threads", "import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()"),
    ] {
        let code = format!("{STRAYS}sys.stdout.write('so far')\nsys.stdout.flush()\n{tail}");
        let spec = ExecSpec { deadline_ms: Some(1500), ..python(&code) };
        let began = Instant::now();
        let ran = room.exec(&spec).await;
        assert_eq!(
            (ran.end.outcome.clone(), ran.stdout.as_str()),
            (Outcome::Timeout, "begun\nso far"),
            "{name}"
        );
        assert!(began.elapsed() < promised(8), "{name}: {:?}", began.elapsed());
        assert!(ran.end.duration_us >= 1_400_000, "{:?}", ran.end);
        assert_eq!(ran.end.left_running, 0, "{name}");
        undisturbed(room).await;
    }
    // The deadline counts from the start of the run, so this run finishes in time.
    let spec = ExecSpec { deadline_ms: Some(3000), ..python("import time\ntime.sleep(2)\nprint('in time')") };
    assert_eq!(room.exec(&spec).await.well().stdout, "in time\n");
}

async fn cancelled(room: &Room) {
    let code = format!("{STRAYS}time.sleep(1000)");
    let mut exec = room.client.exec(&room.id, &python(&code)).await.unwrap();
    loop {
        let event = tokio::time::timeout(promised(20), exec.next()).await.unwrap().unwrap().unwrap();
        if matches!(&event, Event::Data { stream: Stream::Stdout, .. }) {
            break;
        }
    }
    let began = Instant::now();
    room.client.cancel(&room.id, exec.id()).await.unwrap();
    let end = tokio::time::timeout(promised(10), exec.collect()).await.unwrap().unwrap().end;
    assert_eq!((end.outcome, end.left_running), (Outcome::Cancelled, 0));
    assert!(began.elapsed() < promised(5), "{:?}", began.elapsed());
    undisturbed(room).await;
}

/// Checks that a failure affects only its own run. The failures are a crash in native code, closed streams
/// and too many processes.
async fn failing(room: &Room) {
    let ran = room.run("import ctypes\nctypes.string_at(0)").await;
    assert_eq!(ran.end.outcome, Outcome::Signaled { signal: 11 }, "{ran:?}");
    undisturbed(room).await;
    let ran = room.run("import os\nprint('held')\nfor n in range(3, 1024):\n    try: os.close(n)\n    except OSError: pass\nprint('on')").await;
    assert!(ran.stdout.starts_with("held\n"), "{ran:?}");
    undisturbed(room).await;
    // A user-space kernel (gVisor) does not count the processes of a sandbox.
    if !room.is_container() {
        return;
    }
    let code = "import os\ntry:\n    while True: os.posix_spawn('/bin/sleep', ['straggler', '1000'], {})\nexcept OSError:\n    os._exit(9)";
    let spec = ExecSpec { background: api::exec::Background::Kill, ..python(code) };
    assert_eq!(room.exec(&spec).await.code(), 9);
    undisturbed(room).await;
}

/// Checks that a failed allocation in Python is reported as `MemoryError`. If the kernel kills the process,
/// the outcome is `oom`.
async fn memory_errors(room: &Room) {
    let code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\nx = bytearray(16 << 30)";
    let ran = room.run(code).await;
    assert_eq!((ran.code(), ran.error().name.as_str()), (1, "MemoryError"), "{ran:?}");
    let ran = room.run("import numpy\nnumpy.ones((1 << 20, 1 << 20, 1 << 10))").await;
    assert_eq!(ran.code(), 1, "{ran:?}");
    assert!(ran.error().name.ends_with("MemoryError"), "{ran:?}");
    undisturbed(room).await;
}

/// Checks that the outcome of a run that exceeds the memory limit names the cause. In a container, it also
/// contains the limit and the peak usage.
async fn memory(room: &Room) {
    let ran = room.run("print('eats', flush=True)\nx = []\nwhile True: x.append(bytearray(8 << 20))").await;
    if room.is_container() {
        assert_eq!((ran.end.outcome.clone(), ran.stdout.as_str()), (Outcome::Oom, "eats\n"), "{ran:?}");
        let memory = ran.end.memory.expect("what memory looked like");
        assert_eq!(memory.limit_bytes, MEMORY_BYTES);
        assert!(memory.peak_bytes > MEMORY_BYTES * 9 / 10 && memory.peak_bytes <= MEMORY_BYTES, "{memory:?}");
        undisturbed(room).await;
        // Repeat the test, because the interpreter from which runs are forked has been restarted in the
        // meantime.
        let ran = room.run("x = bytearray(8 << 30)\nfor n in range(0, len(x), 4096): x[n] = 1").await;
        assert_eq!(ran.end.outcome, Outcome::Oom);
        undisturbed(room).await;
    } else {
        // gVisor limits the memory of the sandbox as a whole, so exceeding the limit ends the sandbox, with
        // the cause `oom`.
        let lost = Outcome::SandboxLost { cause: api::exec::LostCause::Oom };
        assert_eq!(ran.end.outcome, lost, "{ran:?}");
        let after = room.refused(&python("print(1)")).await;
        assert_eq!(after.code, api::ErrorCode::SandboxLost, "{after:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

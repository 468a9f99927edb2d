//! Attacks of group A on the guest, its channel and the end of execs.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::SandboxId;
use api::exec::{Background, ExecEnd, ExecSpec, LostCause, Outcome, Stream};
use api::frame::{HEADER_BYTES, Header};
use api::hello::{HELLO_BYTES, Hello, Kind};
use e2e::attack;
use e2e::lab::{collect, exec, sh, start, text};
use node::{Event, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

use super::field::{BOTH, Field, OCI_BOTH, THROUGH, said, small, turn_off, withstand};
use super::room::{BASE, Room};

/// Timeout for a loss to be detected, and for the processes of a terminated exec to be gone.
const SOON: Duration = Duration::from_secs(2);
/// Timeout for the guest to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// Shell script that runs its arguments in a separate session, and then kills this session and all its
/// process groups, like a supervisor that knows no other way. It prints whether the daemon is still alive.
const KILLS_SESSION: &str = r#"
setsid bash -c '"$@"; sleep 60' supervised "$@" & sleep 1
for stat in /proc/[0-9]*/stat; do
    read -r pid _ _ _ group session _ < "$stat" 2>/dev/null || continue
    [ "$session" = "$!" ] && kill -KILL -- "-$group" "$pid" && echo "session killed"
done
kill -0 "$(cat /tmp/daemon)" && echo "daemon alive"; exit 0
"#;

/// Verifies that attack A-01 fails: user code cannot act on process 1.
#[test]
#[ignore = "starts real sandboxes"]
fn process_1_is_out_of_reach_of_user_code() {
    withstand("A-01", BOTH, async |field| {
        let control = Room { uid: 1000, powerful: false, ..Room::default() }.attack("A-01", &["child"]);
        control.assert("control", &[("limits", "ok"), ("trace", "ok"), ("memory", "ok"), ("signal 9", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        for (thing, answer) in said.all(12) {
            // A user-space kernel stores these values and never acts on them.
            let is_idle = !field.is_container() && ["affinity", "priority"].contains(&thing);
            assert!(is_idle || ["EPERM", "EACCES"].contains(&answer), "{thing} {answer}");
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack A-01 fails: if the guest is killed from outside, for example by the kernel's OOM
/// killer, the node detects this and no request hangs.
#[test]
#[ignore = "starts real sandboxes"]
fn a_killed_guest_is_known_at_once_and_nothing_hangs() {
    withstand("A-01", OCI_BOTH, async |field| {
        field.has_no_control("the guest is killed from outside, and no defence prevents that");
        let sandbox = field.sandbox().await;
        let running = start(&sandbox, &exec(&["sleep", "600"])).await.unwrap();
        let began = Instant::now();
        kill_process(first(field, &sandbox), Signal::KILL).unwrap();
        let done = running.collect().await.unwrap();
        assert_eq!(done.end.outcome, Outcome::SandboxLost { cause: LostCause::Died });
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        let error = start(&sandbox, &exec(&["true"])).await.err().unwrap().to_api();
        assert_eq!(error.code, api::ErrorCode::SandboxLost);
        sandbox.stop(Duration::ZERO).await.unwrap();
        field.recovers(&field.sandbox().await).await;
    });
}

/// Verifies that attack A-02 fails: user code cannot open or replace the channel.
#[test]
#[ignore = "starts real sandboxes"]
fn the_channel_cannot_be_entered_or_taken_over() {
    withstand("A-02", OCI_BOTH, async |field| {
        let open = tempfile::tempdir().unwrap();
        let place = open.path().join("channel");
        std::fs::create_dir(&place).unwrap();
        let _listener = UnixListener::bind(place.join("node.sock")).unwrap();
        for path in [open.path().to_owned(), place.clone(), place.join("node.sock")] {
            std::os::unix::fs::chown(&path, Some(BASE), Some(BASE)).unwrap();
        }
        let room = Room { binds: vec![(open.path().to_owned(), "/mnt")], ..Room::default() };
        let control = room.attack("A-02", &["/mnt/channel"]);
        let acts = ["list", "dial", "bind beside", "link", "rename", "unlink", "bind in its place"];
        control.assert("control", &acts.map(|act| (act, "ok")));
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &["/.bellglass/channel"]).await;
        said.assert_held("sandbox");
        for (thing, answer) in said.all(7) {
            assert!(["EACCES", "EROFS", "EPERM"].contains(&answer), "{thing} {answer}");
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack A-02 fails: an impostor is rejected, even if it reaches the socket, speaks the
/// protocol and is first in the queue.
#[test]
#[ignore = "starts real sandboxes"]
fn a_dialler_that_is_not_process_1_is_sent_away() {
    withstand("A-02", OCI_BOTH, async |field| {
        let control = {
            let _undefended = ["A-02", "I-12"].map(turn_off);
            let id = started(field).await;
            let read = as_impostor(field, &id).await;
            field.lab.runtime.stop(&id, Duration::ZERO).await.unwrap();
            read
        };
        assert_eq!(control.as_ref().ok(), Some(&HELLO_BYTES), "control: {control:?}");
        let id = started(field).await;
        let read = as_impostor(field, &id).await;
        let reset = read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(reset || matches!(read, Ok(0)), "the impostor was greeted: {read:?}");
        let sandbox = Sandbox::attach(Arc::clone(&field.lab.runtime), id, small().memory_bytes);
        field.recovers(&sandbox).await;
    });
}

async fn started(field: &Field<'_>) -> SandboxId {
    let id = field.lab.id();
    field.lab.runtime.start(&id, &field.lab.spec(small())).await.unwrap();
    id
}

/// Connects to the node's socket before the guest does, and returns how much of a greeting arrives.
async fn as_impostor(field: &Field<'_>, id: &SandboxId) -> std::io::Result<usize> {
    let runtime = &field.lab.runtime;
    let first = runtime.connect(id, CONNECT_WITHIN).await.unwrap();
    // In a container, the socket is on the sandbox's own file system, which can be reached through the
    // sandbox's process 1.
    let socket = match field.is_container() {
        true => format!("/proc/{}/root/.bellglass/channel/node.sock", field.lab.process_of(id)).into(),
        false => field.lab.data().join("sandboxes").join(id.as_str()).join("channel/node.sock"),
    };
    let mut impostor = UnixStream::connect(&socket).unwrap();
    let hello = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false };
    impostor.write_all(&hello.encode()).unwrap();
    // The guest connects again, and is queued behind the impostor.
    drop(first);
    drop(runtime.connect(id, CONNECT_WITHIN).await.unwrap());
    impostor.set_read_timeout(Some(SOON)).unwrap();
    impostor.read(&mut [0; HELLO_BYTES])
}

/// Verifies that attack A-03 fails: frames in an output are treated as plain bytes. The tests of `node` cover
/// frames from a hostile process 1.
#[test]
#[ignore = "starts real sandboxes"]
fn words_of_the_channel_in_an_output_are_only_bytes() {
    withstand("A-03", BOTH, async |field| {
        let forged = forged();
        // Control: on the channel itself, these bytes are a frame that ends the exec with a false outcome.
        let header = forged.first_chunk::<HEADER_BYTES>().unwrap();
        assert!(matches!(Header::decode(header), Ok(Header::End { .. })));
        attack::count_control();
        let hex: String = forged.iter().map(|byte| format!("{byte:02x}")).collect();
        let sandbox = field.sandbox().await;
        let other = start(&sandbox, &exec(&["sleep", "600"])).await.unwrap();
        let done = collect(&sandbox, &field.payload(&[&hex])).await;
        assert!(done.stdout == forged && done.stderr == forged, "bytes were changed");
        assert_eq!(done.end.outcome, Outcome::Exited { code: 7 });
        assert_eq!(other.signal(15).await.unwrap(), 1, "another exec was ended");
        assert_eq!(other.collect().await.unwrap().end.outcome, Outcome::Signaled { signal: 15 });
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack A-05 fails: stopping processes while execs start does not block the guest.
#[test]
#[ignore = "starts real sandboxes"]
fn who_stops_what_is_being_born_does_not_stop_the_guest() {
    withstand("A-05", BOTH, async |field| {
        let control = Room { uid: 1000, powerful: false, ..Room::default() }.attack("A-05", &["0.2"]);
        control.assert("control", &[("victim", "stopped")]);
        let sandbox = field.sandbox().await;
        let stopper = start(&sandbox, &field.payload(&["55"])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..10 {
            let began = Instant::now();
            let spec = ExecSpec { deadline_ms: Some(200), grace_ms: Some(0), ..exec(&["true"]) };
            if let Ok(exec) = start(&sandbox, &spec).await {
                exec.collect().await.unwrap();
            }
            sandbox.execs().await.unwrap();
            assert!(began.elapsed() < 2 * SOON, "the guest was held up for {:?}", began.elapsed());
        }
        stopper.cancel().await.unwrap();
        assert_eq!(stopper.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        field.recovers(&sandbox).await;
        field.is_empty(&sandbox).await;
    });
}

/// Verifies that attack A-06 fails: a process that ignores signals is killed after its grace period.
#[test]
#[ignore = "starts real sandboxes"]
fn who_ignores_signals_is_killed_after_its_grace() {
    withstand("A-06", BOTH, async |field| {
        let sandbox = field.sandbox().await;
        let spec = ExecSpec { deadline_ms: Some(2500), grace_ms: Some(500), ..field.payload(&[]) };
        let began = Instant::now();
        let mut stubborn = start(&sandbox, &spec).await.unwrap();
        let mut seen = String::new();
        while seen.matches("ready").count() < 4 {
            let Some(Event::Data { bytes, .. }) = stubborn.next().await.unwrap() else { panic!("{seen}") };
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        // Control: the process survives every signal that a process can ignore.
        for signal in [1, 2, 15] {
            assert_eq!(stubborn.signal(signal).await.unwrap(), 4);
        }
        let done = stubborn.collect().await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(2500 + 500 + 1000), "{:?}", began.elapsed());
        assert!(text(&done).contains("survived 15"), "control: {}", text(&done));
        attack::count_control();
        assert_eq!(done.end.outcome, Outcome::Timeout);
        field.recovers(&sandbox).await;
        field.is_empty(&sandbox).await;
    });
}

/// Verifies that attack A-07 fails: a daemon ends with its exec, or at the latest with its sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_daemon_ends_with_its_exec_or_at_the_latest_with_its_sandbox() {
    withstand("A-07", BOTH, async |field| {
        // Control: a supervisor that kills the session and its process groups does not reach the daemon.
        let mut argv = ["/bin/bash", "-c", KILLS_SESSION, "supervisor"].map(str::to_owned).to_vec();
        argv.extend(super::field::payload(field.id, &[]));
        let control = Room { uid: 1000, powerful: false, ..Room::default() }.run(&argv);
        control.assert("control", &[("session", "killed"), ("daemon", "alive")]);
        let sandbox = field.sandbox().await;
        let lives = "kill -0 $(cat /tmp/daemon) && echo lives; rm /tmp/daemon";
        // Control: the daemon survives an exec that is configured not to kill background processes.
        let group = ExecSpec { argv: field.payload(&[]).argv, ..field.payload(&[]) };
        let done = collect(&sandbox, &group).await;
        assert_eq!((text(&done).as_str(), done.end.left_running), ("daemon started\n", 1));
        assert_eq!(text(&sh(&sandbox, lives).await), "lives\n");
        let done = collect(&sandbox, &ExecSpec { background: Background::Kill, ..group }).await;
        assert_eq!((text(&done).as_str(), done.end.left_running), ("daemon started\n", 0));
        assert_eq!(text(&sh(&sandbox, lives).await), "");
        let began = Instant::now();
        sandbox.stop(Duration::ZERO).await.unwrap();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        field.recovers(&field.sandbox().await).await;
    });
}

/// Verifies that attack A-17 fails: the end of an exec does not wait for a child that keeps the streams open.
#[test]
#[ignore = "starts real sandboxes"]
fn an_end_does_not_wait_for_who_keeps_the_streams() {
    withstand("A-17", BOTH, async |field| {
        // Control: a program that reads until the streams close waits for the child.
        let began = Instant::now();
        let control = Room { uid: 1000, ..Room::default() }.run(&reading_to_the_end(field.id));
        assert!(began.elapsed() > SOON && control.code != Some(3), "control: {control:?}");
        let sandbox = field.sandbox().await;
        let began = Instant::now();
        let done = collect(&sandbox, &field.payload(&[])).await;
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert_eq!((said(&done).code, done.end.left_running), (Some(3), 1));
        assert!(text(&done).starts_with("main\n"));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let info = sandbox.execs().await.unwrap().pop().unwrap();
        assert_eq!(info.stdout_bytes, done.end.stdout_bytes, "late output was added");
        field.recovers(&sandbox).await;
    });
}

/// Returns the host pid of process 1.
fn first(field: &Field<'_>, sandbox: &Sandbox) -> Pid {
    let path = field.lab.data().join("sandboxes").join(sandbox.id().as_str()).join("pid");
    let text = std::fs::read_to_string(path).unwrap();
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Returns three forged frames: an end with a false outcome, a gap, and a header that announces more data
/// than follows.
fn forged() -> Vec<u8> {
    let end = ExecEnd {
        outcome: Outcome::Exited { code: THROUGH },
        stdout_bytes: 0,
        stdout_dropped: 0,
        stderr_bytes: 0,
        stderr_dropped: 0,
        results_bytes: 0,
        state_lost: false,
        duration_us: 1,
        left_running: 0,
        memory: None,
    };
    let json = serde_json::to_vec(&end).unwrap();
    let length = u32::try_from(json.len()).unwrap();
    let gap = Header::Gap { stream: Stream::Stdout, to: u64::MAX };
    let data = Header::Data { stream: Stream::Stderr, offset: 0, length: 1 << 20 };
    [&Header::End { length }.encode()[..], &json, &gap.encode()[..], &data.encode()[..]].concat()
}

/// Returns a shell command that reads the payload's output until it ends, for at most three seconds.
fn reading_to_the_end(id: &str) -> Vec<String> {
    let payload = super::field::payload(id, &[]);
    let script = "timeout 3 bash -c 'x=$(\"$0\" \"$@\"); exit 3' \"$@\"";
    let mut argv: Vec<String> = ["/bin/bash", "-c", script, "reader"].map(str::to_owned).into();
    argv.extend(payload);
    argv
}

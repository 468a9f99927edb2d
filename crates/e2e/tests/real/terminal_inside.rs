//! Terminals as a program sees them: their size, input, end, and the limit on their number.

use std::time::{Duration, Instant};

use api::ErrorCode;
use api::exec::{ExecSpec, Outcome, Stream};
use api::limits::TERMINALS_MAX;
use api::terminal::TerminalSize;
use bytes::Bytes;
use e2e::lab::{EVERYWHERE, promised, script, sh, start, text};
use e2e::on;
use node::{Event, Exec};

const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// Timeout for typed text to appear on a busy machine.
const SHOWS: Duration = Duration::from_secs(30);

fn on_terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec { terminal: Some(SIZE), ..spec }
}

/// Reads until the output contains this text, and appends everything that was read to `seen`.
async fn until(exec: &mut Exec, seen: &mut String, wanted: &str) {
    let reading = async {
        while !seen.contains(wanted) {
            match exec.next().await.unwrap() {
                Some(Event::Data { stream, bytes, .. }) => {
                    assert_eq!(stream, Stream::Stdout, "a terminal has one stream");
                    seen.push_str(&String::from_utf8_lossy(&bytes));
                }
                other => panic!("{other:?} instead of {wanted:?} after {seen:?}"),
            }
        }
    };
    tokio::time::timeout(SHOWS, reading).await.unwrap_or_else(|_| panic!("no {wanted:?} in {seen:?}"));
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_program_on_a_terminal_sees_one_of_its_own_in_its_size() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        // gVisor does not allow opening `/dev/tty`, but the terminal can be opened by its name.
        let is_gvisor = lab.runtime.name() == "runsc";
        let again = if is_gvisor { "\"$(cat /tmp/name)\"" } else { "/dev/tty" };
        let look = "tty > /tmp/name && [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo three; stty size; echo $TERM; \
                    stat -c 'owner %u' \"$(cat /tmp/name)\"; echo again > AGAIN; echo named > \"$(cat /tmp/name)\"; \
                    script -qc 'stty size && echo nested' /dev/null < /dev/null | tail -1; exit 5";
        let look = look.replace("AGAIN", again);
        let done = e2e::lab::collect(&sandbox, &on_terminal(script(&look))).await;
        let seen = text(&done);
        assert_eq!(done.end.outcome, Outcome::Exited { code: 5 }, "{seen}");
        let rows: Vec<&str> = seen.lines().map(str::trim_end).collect();
        assert_eq!(
            rows,
            ["three", "24 80", "xterm-256color", "owner 1000", "again", "named", "nested"],
            "{seen:?}"
        );
        assert_eq!(done.end.stderr_bytes, 0);
        // The last output arrives even if the program exits immediately afterwards.
        for _ in 0..20 {
            let done = e2e::lab::collect(&sandbox, &on_terminal(script("seq 500; echo last"))).await;
            assert!(text(&done).ends_with("\r\nlast\r\n"), "{:?}", text(&done));
        }
        // An exec without a terminal has no controlling terminal.
        assert_eq!(text(&sh(&sandbox, "tty; : > /dev/tty; true").await), "not a tty\n");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn keys_sizes_and_the_end_of_a_terminal_do_what_they_do_everywhere() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let text = "trap 'echo size $(stty size)' WINCH; trap 'echo interrupted' INT; echo ready; \
                    while ! [ -e /workspace/go ]; do sleep 0.1; done; echo waiting; \
                    while read -r line; do echo got:$line; done; echo over";
        let (mut exec, mut seen) =
            (start(&sandbox, &on_terminal(script(text))).await.unwrap(), String::new());
        until(&mut exec, &mut seen, "ready").await;
        exec.resize(TerminalSize { cols: 123, rows: 45 }).await.unwrap();
        until(&mut exec, &mut seen, "size 45 123").await;
        let keys = sandbox.exec_reader(exec.id().clone());
        let type_keys = async |offset: u64, text: &'static str| {
            keys.write_stdin(offset, Bytes::from_static(text.as_bytes()), false, SHOWS).await.unwrap()
        };
        assert_eq!(type_keys(0, "\u{3}").await, 1);
        let mut reader = sandbox.exec_reader(exec.id().clone());
        until(&mut reader, &mut String::new(), "interrupted").await;
        sh(&sandbox, "touch /workspace/go").await;
        until(&mut exec, &mut seen, "waiting").await;
        // Keys that are sent a second time at the same offset are not typed again.
        assert_eq!(type_keys(1, "a line\r").await, 8);
        assert_eq!(type_keys(1, "a line\r").await, 8);
        // gVisor also leaves the Ctrl-C byte in the input.
        let got = if lab.runtime.name() == "runsc" { "got:\u{3}a line" } else { "got:a line" };
        until(&mut exec, &mut seen, got).await;
        let refused = exec.write_stdin(8, Bytes::new(), true, SHOWS).await.unwrap_err().to_api();
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "{refused:?}");
        assert_eq!(exec.write_stdin(8, Bytes::from_static(b"\x04"), false, SHOWS).await.unwrap(), 9);
        until(&mut exec, &mut seen, "over").await;
        assert_eq!(seen.matches("got:").count(), 1, "{seen}");
        let Some(Event::End(end)) = exec.next().await.unwrap() else { panic!("no end") };
        assert_eq!(end.outcome, Outcome::Exited { code: 0 });
        let late = exec.resize(SIZE).await.unwrap_err().to_api();
        assert_eq!(late.code, ErrorCode::Conflict, "{late:?}");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_exec_on_a_terminal_ends_with_its_process_whoever_holds_the_terminal() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        // One child runs in the background, as a shell would start it. The other child ignores the hang-up
        // signal.
        let left = "sleep 600 & (trap '' HUP; exec sleep 601) & sleep 0.2; echo done";
        let began = Instant::now();
        let done = e2e::lab::collect(&sandbox, &on_terminal(script(left))).await;
        assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
        assert!(began.elapsed() < promised(5), "{:?}", began.elapsed());
        assert!(done.end.left_running >= 1, "{:?}", done.end);
        // An interactive shell ignores SIGTERM, but cancelling it still completes in time.
        for _ in 0..3 {
            let shell = start(&sandbox, &on_terminal(e2e::lab::exec(&["bash", "-i"]))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            shell.cancel().await.unwrap();
            let began = Instant::now();
            assert_eq!(shell.collect().await.unwrap().end.outcome, Outcome::Cancelled);
            assert!(began.elapsed() < promised(5), "{:?}", began.elapsed());
        }
        // Once the processes that hold a terminal are killed, no terminal is left.
        sh(&sandbox, "pkill -9 sleep").await;
        assert_eq!(text(&sh(&sandbox, "sleep 0.5; ls /dev/pts").await), "ptmx\n");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_has_so_many_terminals_and_gives_each_back() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let sleeper = on_terminal(e2e::lab::exec(&["sleep", "600"]));
        for round in 0..2 {
            let mut open = Vec::new();
            for _ in 0..TERMINALS_MAX {
                open.push(start(&sandbox, &sleeper).await.unwrap());
            }
            let refused = start(&sandbox, &sleeper).await.err().expect("one too many").to_api();
            assert_eq!(refused.code, ErrorCode::Capacity, "round {round}: {refused:?}");
            for exec in open {
                exec.cancel().await.unwrap();
                assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
            }
        }
        // A flood on one terminal does not delay other execs.
        let flood = start(&sandbox, &on_terminal(e2e::lab::exec(&["yes"]))).await.unwrap();
        let began = Instant::now();
        assert_eq!(text(&sh(&sandbox, "echo quick").await), "quick\n");
        assert!(began.elapsed() < promised(5), "{:?}", began.elapsed());
        flood.cancel().await.unwrap();
    });
}

//! Attack A-15: too many terminals, and terminals that are oversized, disconnected or flooded.

use std::time::{Duration, Instant};

use api::ErrorCode;
use api::exec::{ExecSpec, Outcome};
use api::limits::TERMINALS_MAX;
use api::terminal::TerminalSize;
use bytes::Bytes;
use e2e::lab::{exec, script, sh, sized, start, text};
use node::{Event, Exec};

use super::field::{BOTH, OCI_BOTH, withstand};
use super::room::Room;

const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// Number of resizes and keys in a storm: first in a full run, then in CI.
const STORM: (usize, usize) = (10_000, 2_000);
/// Maximum duration of a storm. A sandbox processes about a thousand requests per second.
const STORM_WITHIN: Duration = Duration::from_secs(120);

/// Python program that waits until `/workspace/go` exists, and then prints how often it was interrupted.
const COUNTS_INTERRUPTS: &str = "
import os, signal, time
count = 0
def interrupted(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
print('ready', flush=True)
while not os.path.exists('/workspace/go'):
    time.sleep(0.05)
print('caught', count, flush=True)
";

fn on_terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec { terminal: Some(SIZE), deadline_ms: None, ..spec }
}

/// Returns the number of terminals in use on the whole machine.
fn in_use() -> u64 {
    std::fs::read_to_string("/proc/sys/kernel/pty/nr").unwrap().trim().parse().unwrap()
}

/// Asserts that no terminals have leaked. Other processes use terminals too, but a leak in a sandbox would
/// lose dozens.
fn assert_given_back(before: u64) {
    let now = in_use();
    assert!(now < before + TERMINALS_MAX as u64, "{now} terminals in use, {before} before");
}

/// Reads the output until it contains this text.
async fn until(exec: &mut Exec, wanted: &str) -> String {
    let mut seen = String::new();
    let reading = async {
        while !seen.contains(wanted) {
            match exec.next().await.unwrap() {
                Some(Event::Data { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                Some(Event::Gap { .. }) => {}
                other => panic!("{other:?} instead of {wanted:?}"),
            }
        }
    };
    tokio::time::timeout(STORM_WITHIN, reading).await.unwrap_or_else(|_| panic!("no {wanted:?}"));
    seen
}

/// Verifies that attack A-15 fails: a program that opens a thousand terminals is stopped at the limit, and no
/// terminal leaks.
#[test]
#[ignore = "starts real sandboxes"]
fn a_thousand_terminals_end_at_the_cap_and_none_is_lost() {
    withstand("A-15", OCI_BOTH, async |field| {
        // Control: without the limit on the mount, the same program gets a thousand terminals.
        let room = Room { uid: 1000, powerful: false, ..Room::default() };
        let control = room.attack("A-15", &["hoard"]);
        control.assert("control", &[("a thousand terminals", "ok")]);
        assert_eq!(control.number("opened"), 1000, "{}", control.raw);

        let before = in_use();
        let (witness, sandbox) = (field.sandbox().await, field.sandbox().await);
        let said = field.with_witness(&witness, field.attack(&sandbox, &["hoard"])).await;
        if field.is_container() {
            said.assert("sandbox", &[("a thousand terminals", "ENOSPC")]);
            assert_eq!(said.number("opened"), 2 * TERMINALS_MAX as u64, "{}", said.raw);
        } else {
            // With gVisor, terminals exist only in the memory of the sandbox's own kernel, so the host's
            // count does not change.
            assert_given_back(before);
        }
        field.attack(&sandbox, &["tear"]).await.assert("sandbox", &[("torn", "200")]);
        // Request terminals from outside. The first requests succeed and the others are refused. Refused
        // requests leave nothing behind.
        let sleeper = on_terminal(exec(&["sleep", "600"]));
        let (mut open, mut refused) = (Vec::new(), 0);
        for _ in 0..1000 {
            match start(&sandbox, &sleeper).await {
                Ok(exec) => open.push(exec),
                Err(error) => {
                    assert_eq!(error.to_api().code, ErrorCode::Capacity);
                    refused += 1;
                }
            }
        }
        assert_eq!((open.len(), refused), (TERMINALS_MAX, 1000 - TERMINALS_MAX));
        for exec in open {
            exec.cancel().await.unwrap();
            assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        }
        field.recovers(&sandbox).await;
        assert_eq!(text(&sh(&sandbox, "ls /dev/pts").await), "ptmx\n", "a terminal was left");
        assert_given_back(before);
    });
}

/// Verifies that attack A-15 fails: sizes beyond the limit are refused, and far more resizes than a user
/// needs delay no other request.
#[test]
#[ignore = "starts real sandboxes"]
fn a_storm_of_sizes_ends_with_the_last_and_keeps_nobody_waiting() {
    withstand("A-15", BOTH, async |field| {
        let (witness, sandbox) = (field.sandbox().await, field.sandbox().await);
        let spec = on_terminal(script("trap : WINCH; echo ready; read -r _; stty size; echo over"));
        let mut terminal = start(&sandbox, &spec).await.unwrap();
        until(&mut terminal, "ready").await;
        let storm = async {
            for number in 0..sized(STORM.0, STORM.1) {
                let refused = terminal.resize(TerminalSize { cols: 65_535, rows: 65_535 }).await.unwrap_err();
                assert_eq!(refused.to_api().code, ErrorCode::LimitExceeded);
                // Control: valid sizes are applied.
                if number % 10 == 0 {
                    let side = 1 + u32::try_from(number % 1000).unwrap();
                    terminal.resize(TerminalSize { cols: side, rows: side }).await.unwrap();
                }
            }
            terminal.resize(TerminalSize { cols: 77, rows: 7 }).await.unwrap();
        };
        let began = Instant::now();
        field.with_witness(&witness, storm).await;
        assert!(began.elapsed() < STORM_WITHIN, "{:?}", began.elapsed());
        terminal.write_stdin(0, Bytes::from_static(b"\r"), false, STORM_WITHIN).await.unwrap();
        let seen = until(&mut terminal, "over").await;
        assert!(seen.contains("7 77"), "{seen:?}");
        e2e::attack::count_control();
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack A-15 fails: neither keys in rapid succession, which the program may not even read,
/// nor readers that disconnect block other requests.
#[test]
#[ignore = "starts real sandboxes"]
fn a_storm_of_keys_and_readers_that_vanish_block_nobody() {
    withstand("A-15", BOTH, async |field| {
        let (witness, sandbox) = (field.sandbox().await, field.sandbox().await);
        let before = in_use();
        // Use Python instead of bash, which can wait forever for a child that has exited during such a storm.
        let mut terminal =
            start(&sandbox, &on_terminal(exec(&["python3", "-c", COUNTS_INTERRUPTS]))).await.unwrap();
        until(&mut terminal, "ready").await;
        let storm = async {
            let keys = Bytes::from(vec![3_u8; 100]);
            for number in 0..sized(STORM.0, STORM.1) as u64 / 100 {
                terminal.write_stdin(number * 100, keys.clone(), false, STORM_WITHIN).await.unwrap();
            }
        };
        field.with_witness(&witness, storm).await;
        sh(&sandbox, "touch /workspace/go").await;
        let seen = until(&mut terminal, "caught").await;
        // Control: the keys have arrived.
        assert!(!seen.contains("caught 0\r"), "{seen:?}");
        e2e::attack::count_control();
        // For a program that never reads, input that does not fit waits at the sender, and the guest still
        // serves other requests.
        let deaf = start(&sandbox, &on_terminal(script("stty raw -echo; exec sleep 600"))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let much = Bytes::from(vec![b'x'; 1 << 20]);
        let waited = deaf.write_stdin(0, much, false, Duration::from_secs(2)).await;
        assert!(waited.is_err(), "a megabyte was taken by nobody");
        field.recovers(&sandbox).await;
        // Disconnect readers during a flood, and then cancel the execs.
        let flood = start(&sandbox, &on_terminal(exec(&["yes"]))).await.unwrap();
        for _ in 0..50 {
            let mut reader = sandbox.exec_reader(flood.id().clone());
            reader.next().await.unwrap();
        }
        field.recovers(&sandbox).await;
        for exec in [deaf, flood] {
            exec.cancel().await.unwrap();
            assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        }
        field.recovers(&sandbox).await;
        assert_eq!(text(&sh(&sandbox, "ls /dev/pts").await), "ptmx\n", "a terminal was left");
        assert_given_back(before);
    });
}

//! Attacks of group O on the output of processes, as the node sees it. The tests of the service cover the
//! effects on clients, terminals and logs.

use std::time::{Duration, Instant};

use api::exec::{ExecEnd, ExecSpec, Outcome, OutputMode, Stream};
use api::frame::PAYLOAD_BYTES_MAX;
use api::limits;
use e2e::lab::{collect, sh, start, text};
use node::{Event, Exec, Sandbox};

use super::field::{BOTH, Field, OCI_BOTH, withstand};
use super::room::Room;

/// Maximum memory growth of the node and of the guest, regardless of the amount of output. This is the limit
/// that promise P9 of `docs/specification.md` states.
const FLAT_BYTES: u64 = 4 << 20;
/// Maximum time until the processes of a terminated exec are gone.
const SOON: Duration = Duration::from_secs(3);

/// Statistics about reading the output of one exec.
struct Seen {
    /// Number of bytes of each stream that were either received or reported as missing.
    told: [u64; 2],
    /// Number of bytes, in both streams together, that were reported as missing.
    missed: u64,
    /// Size of the largest chunk of data.
    longest: usize,
    /// Maximum resident memory of this process while it was reading.
    peak: u64,
    end: ExecEnd,
}

/// Reads an exec to its end without keeping the data, and asserts that the offsets have no gaps.
async fn skim(mut exec: Exec, mut look: impl FnMut(Stream, &[u8])) -> Seen {
    let (mut told, mut missed, mut longest, mut peak) = ([0; 2], 0, 0, 0);
    let mut pieces = 0;
    loop {
        match exec.next().await.unwrap().unwrap() {
            Event::Data { stream, offset, bytes } => {
                let at = &mut told[stream as usize];
                assert_eq!(offset, *at);
                *at += bytes.len() as u64;
                longest = longest.max(bytes.len());
                look(stream, &bytes);
            }
            Event::Gap { stream, from, to } => {
                let at = &mut told[stream as usize];
                assert_eq!(from, *at);
                *at = to;
                missed += to - from;
            }
            Event::Result { .. } => panic!("a result of a command"),
            Event::End(end) => return Seen { told, missed, longest, peak, end },
        }
        if pieces % 64 == 0 {
            peak = peak.max(resident("self"));
        }
        pieces += 1;
    }
}

/// Verifies that attack O-01 fails: endless output stays within its limit in every mode.
#[test]
#[ignore = "starts real sandboxes"]
fn output_without_end_stays_within_its_bound_in_every_mode() {
    withstand("O-01", OCI_BOTH, async |field| {
        const HOARD: u64 = 50_000_000;
        let control = Room::default().attack("O-01", &["hoard", &HOARD.to_string()]);
        assert!(control.number("held") > HOARD, "control: {control:?}");
        let (sandbox, witness) = (field.lab.sandbox().await, field.sandbox().await);
        // The first flood allocates buffers that the node and the guest keep.
        let flood = |milliseconds| ExecSpec {
            deadline_ms: Some(milliseconds),
            grace_ms: Some(0),
            ..field.payload(&["1", "2"])
        };
        skim(start(&sandbox, &flood(500)).await.unwrap(), |_, _| {}).await;
        let guest = guest(field, &sandbox);
        let before = [resident("self"), resident(&guest)];
        let exec = start(&sandbox, &flood(3000)).await.unwrap();
        let seen = field.with_witness(&witness, skim(exec, |_, _| {})).await;
        let grown = [seen.peak.saturating_sub(before[0]), resident(&guest).saturating_sub(before[1])];
        let end = &seen.end;
        assert_eq!(end.outcome, Outcome::Timeout);
        assert_eq!(seen.told, [end.stdout_bytes, end.stderr_bytes], "bytes are neither told nor missed");
        for (written, dropped) in
            [(end.stdout_bytes, end.stdout_dropped), (end.stderr_bytes, end.stderr_dropped)]
        {
            assert_eq!(written - dropped, limits::OUTPUT_BYTES, "of {written} bytes {dropped} were dropped");
        }
        assert!(grown[0] < FLAT_BYTES, "the node grew by {} KiB", grown[0] >> 10);
        assert!(!field.is_container() || grown[1] < FLAT_BYTES, "the guest grew by {} KiB", grown[1] >> 10);
        println!(
            "O-01 {}: {} MB written in 3 s, the reader missed {}; node {} KiB, guest {} KiB more",
            field.lab.runtime.name(),
            (end.stdout_bytes + end.stderr_bytes) / 1_000_000,
            seen.missed / 1_000_000,
            grown[0] >> 10,
            grown[1] >> 10
        );
        waits(field, &sandbox).await;
        let killed = ExecSpec {
            output: OutputMode::Kill,
            output_bytes: Some(1_000_000),
            ..field.payload(&["1", "2"])
        };
        let seen = skim(start(&sandbox, &killed).await.unwrap(), |_, _| {}).await;
        assert_eq!((seen.end.outcome, seen.missed), (Outcome::OutputLimit, 0));
        assert!(seen.told.iter().all(|bytes| *bytes <= 1_000_000), "{:?}", seen.told);
        field.recovers(&sandbox).await;
        field.is_empty(&sandbox).await;
    });
}

/// Asserts that a writer in mode `block` waits without using processor time, and can be cancelled.
async fn waits(field: &Field<'_>, sandbox: &Sandbox) {
    let blocked =
        ExecSpec { output: OutputMode::Block, output_bytes: Some(1_000_000), ..field.payload(&["1", "2"]) };
    let exec = start(sandbox, &blocked).await.unwrap();
    let began = Instant::now();
    let written = async || {
        let info = sandbox.execs().await.unwrap().into_iter().find(|info| info.id == *exec.id()).unwrap();
        (info.stdout_bytes, info.stderr_bytes)
    };
    while written().await != (1_000_000, 1_000_000) {
        assert!(began.elapsed() < SOON, "{:?} written", written().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let before = sandbox.usage().await.unwrap().cpu_us;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let spent = sandbox.usage().await.unwrap().cpu_us - before;
    assert!(spent < 250_000, "who waits spent {spent} us in half a second");
    assert_eq!(written().await, (1_000_000, 1_000_000));
    exec.cancel().await.unwrap();
    let began = Instant::now();
    let seen = skim(exec, |_, _| {}).await;
    assert!(began.elapsed() < SOON && seen.end.outcome == Outcome::Cancelled, "{:?}", seen.end);
}

/// Verifies that attack O-03 fails: an endless line is split into chunks of limited size.
#[test]
#[ignore = "starts real sandboxes"]
fn a_line_without_an_end_is_cut_by_its_size() {
    withstand("O-03", BOTH, async |field| {
        const HELD: u64 = 50_000_000;
        let control = Room::default().attack("O-03", &["lines", &HELD.to_string()]);
        assert_eq!(control.number("held"), HELD, "control: {control:?}");
        let bytes: u64 = if field.is_container() { 256 << 20 } else { 32 << 20 };
        let sandbox = field.lab.sandbox().await;
        field.recovers(&sandbox).await;
        let spec = ExecSpec {
            output: OutputMode::Block,
            deadline_ms: Some(60_000),
            ..field.payload(&[&bytes.to_string(), "120"])
        };
        let (before, began) = (resident("self"), Instant::now());
        let exec = start(&sandbox, &spec).await.unwrap();
        let seen = skim(exec, |_, bytes| assert!(bytes.iter().all(|byte| *byte == b'x'))).await;
        assert_eq!((seen.end.outcome, seen.told, seen.missed), (Outcome::Exited { code: 0 }, [bytes, 0], 0));
        assert!(seen.longest <= PAYLOAD_BYTES_MAX, "a piece of {} bytes", seen.longest);
        let grown = seen.peak.saturating_sub(before);
        assert!(grown < FLAT_BYTES, "the node grew by {} KiB", grown >> 10);
        println!(
            "O-03 {}: {} MiB in {:.1?}, the longest piece {} KiB; node {} KiB more",
            field.lab.runtime.name(),
            bytes >> 20,
            began.elapsed(),
            seen.longest >> 10,
            grown >> 10
        );
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack O-05 fails: bytes that are not text arrive unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn bytes_that_are_no_text_arrive_as_they_are() {
    withstand("O-05", BOTH, async |field| {
        let wild = e2e::wild::bytes();
        // Control: decoding the bytes chunk by chunk yields a different text.
        let whole = String::from_utf8_lossy(&wild);
        let pieces: String =
            wild.chunks(1).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        assert_ne!(whole, pieces, "control");
        e2e::attack::count_control();
        let sandbox = field.sandbox().await;
        let hex: String = wild.iter().map(|byte| format!("{byte:02x}")).collect();
        let done = collect(&sandbox, &field.payload(&[&hex])).await;
        assert!(done.stdout == wild && done.stderr == wild, "bytes were changed");
        assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack O-06 fails: streams that are closed or stay open do not affect the end of an exec.
#[test]
#[ignore = "starts real sandboxes"]
fn streams_that_close_or_stay_open_decide_nothing() {
    withstand("O-06", BOTH, async |field| {
        const FLOOD: u64 = 30_000_000;
        let control = Room::default().attack("O-06", &["reader", &FLOOD.to_string()]);
        control.assert("control", &[("first stream", "waits")]);
        let sandbox = field.lab.sandbox().await;
        for output in [OutputMode::Keep, OutputMode::Block] {
            let spec = ExecSpec { output, ..field.payload(&["one", &FLOOD.to_string()]) };
            let seen = skim(start(&sandbox, &spec).await.unwrap(), |_, _| {}).await;
            assert_eq!((seen.end.outcome, seen.told), (Outcome::Exited { code: 5 }, [0, FLOOD]));
        }
        let began = Instant::now();
        let done = collect(&sandbox, &field.payload(&["neither"])).await;
        assert_eq!(done.end.outcome, Outcome::Exited { code: 6 });
        assert!(began.elapsed() > Duration::from_secs(1), "it ended with its streams: {:?}", began.elapsed());
        let done = collect(&sandbox, &field.payload(&["twice"])).await;
        assert_eq!(
            done.end.outcome,
            Outcome::Exited { code: 8 },
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert_eq!((done.stdout, done.stderr), (vec![b'x'; 1000], vec![b'x'; 1000]));
        late(field, &sandbox).await;
        field.recovers(&sandbox).await;
        field.is_empty(&sandbox).await;
    });
}

/// Asserts that output written after the end of an exec is not added to the exec's output, and that the
/// writer is not blocked.
async fn late(field: &Field<'_>, sandbox: &Sandbox) {
    let began = Instant::now();
    let exec = start(sandbox, &field.payload(&["after", "/workspace/late"])).await.unwrap();
    let id = exec.id().clone();
    let done = exec.collect().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((done.end.outcome, done.end.left_running), (Outcome::Exited { code: 7 }, 1));
    assert_eq!(done.stdout.len() as u64, done.end.stdout_bytes);
    tokio::time::sleep(Duration::from_millis(500)).await;
    // A second reader gets the same output, even though the child is still writing.
    let again = sandbox.exec_reader(id).collect().await.unwrap();
    assert!(
        again.stdout == done.stdout && again.end.stdout_bytes == done.end.stdout_bytes,
        "late output was added"
    );
    let noted = sh(sandbox, "for i in $(seq 40); do [ -s late ] && break; sleep 0.1; done; cat late").await;
    assert_eq!(text(&noted), "ok", "the late writer was held up");
}

/// Verifies that attack O-07 fails: two concurrent streams are each complete and in order.
#[test]
#[ignore = "starts real sandboxes"]
fn two_streams_at_once_are_each_complete_and_in_order() {
    withstand("O-07", BOTH, async |field| {
        let control = Room::default().attack("O-07", &["merged"]);
        assert!(control.number("torn") > 0, "control: {control:?}");
        let sandbox = field.lab.sandbox().await;
        let began = Instant::now();
        let done = collect(&sandbox, &field.payload(&[])).await;
        let took = began.elapsed();
        assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{:?}", done.end);
        assert_eq!((done.end.stdout_dropped, done.end.stderr_dropped), (0, 0));
        for stream in [&done.stdout, &done.stderr] {
            let mut expected = 0;
            for line in stream.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                expected += 1;
                assert_eq!(String::from_utf8_lossy(line), expected.to_string());
            }
            assert_eq!(expected, 1_000_000);
        }
        println!("O-07 {}: 2 × 1,000,000 numbers in {took:.1?}", field.lab.runtime.name());
        field.recovers(&sandbox).await;
    });
}

/// Returns the resident memory of a process in bytes.
fn resident(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// Returns the host pid of the guest. For gVisor, it is the pid of the user-space kernel that runs the guest.
fn guest(field: &Field<'_>, sandbox: &Sandbox) -> String {
    let path = field.lab.data().join("sandboxes").join(sandbox.id().as_str()).join("pid");
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

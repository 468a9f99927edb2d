//! Output of execs in real sandboxes: each byte arrives once, dropped bytes are counted, and memory use stays
//! flat.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome, OutputMode, Stream};
use api::limits::{self, Limits};
use e2e::cutter::Cutter;
use e2e::lab::{EVERYWHERE, collect, exec, on, script, sh, sized, start, text};
use node::{Event, Sandbox};

/// Period of the test output in bytes. It is not a multiple of any buffer size, so a lost, duplicated or
/// moved byte changes the bytes at later offsets.
const BLOCK_BYTES: u64 = 1_000_003;
const NUMBERED: &str = "import sys,os\nn=int(sys.argv[1]);m=1000003;b=bytes((i*i>>7)&255 for i in range(m))*2\n\
    v=memoryview(b);at=0\nwhile at<n: at+=os.write(1,v[at%m:at%m+min(m,n-at)])";

fn numbered(bytes: u64) -> ExecSpec {
    ExecSpec { deadline_ms: Some(280_000), ..exec(&["python3", "-c", NUMBERED, &bytes.to_string()]) }
}

/// Returns true if these bytes equal the output of [`NUMBERED`] at this offset.
fn is_numbered(offset: u64, bytes: &[u8]) -> bool {
    bytes
        .iter()
        .zip((offset % BLOCK_BYTES..BLOCK_BYTES).chain((0..BLOCK_BYTES).cycle()))
        .all(|(byte, index)| *byte == ((index * index) >> 7) as u8)
}

/// Returns the resident memory of a process in bytes.
fn resident(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// The head, the tail and the number of dropped bytes of large output are exact. Memory use stays flat, and
/// throughput is high.
#[test]
#[ignore = "starts real sandboxes"]
fn ten_gigabytes_are_kept_as_head_and_tail_with_flat_memory() {
    on(EVERYWHERE, async |lab| {
        let total: u64 =
            if lab.runtime.name() == "runc" { sized(10_000_000_000, 1_000_000_000) } else { 1_000_000_000 };
        let sandbox = lab.sandbox().await;
        // The first exec and its second reader fill pools and buffers, which then remain allocated.
        let mut first = start(&sandbox, &numbered(50_000_000)).await.unwrap();
        while !matches!(first.next().await.unwrap(), Some(Event::End(_)) | None) {}
        retained(&sandbox, first.id().clone()).await;
        let guest = lab.process_of(sandbox.id()).to_string();
        let (node_before, guest_before) = (resident("self"), resident(&guest));
        let began = Instant::now();
        let mut exec = start(&sandbox, &numbered(total)).await.unwrap();
        let (mut at, mut gaps, mut peak) = (0, 0, [0; 2]);
        let end = loop {
            match exec.next().await.unwrap().unwrap() {
                Event::Data { stream: Stream::Stdout, offset, bytes } => {
                    assert_eq!(offset, at);
                    assert!(is_numbered(offset, &bytes), "wrong bytes at {offset}");
                    at += bytes.len() as u64;
                }
                Event::Gap { stream: Stream::Stdout, from, to } => {
                    assert_eq!(from, at);
                    gaps += to - from;
                    at = to;
                }
                Event::End(end) => break end,
                other @ (Event::Data { .. } | Event::Gap { .. } | Event::Result { .. }) => {
                    panic!("{other:?}")
                }
            }
            if peak[0] == 0 || at % 97 == 0 {
                peak = [peak[0].max(resident("self")), peak[1].max(resident(&guest))];
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!((end.outcome, end.stdout_bytes, at), (Outcome::Exited { code: 0 }, total, total));
        // A second reader, after the end, gets the retained output: the head, one gap and the tail.
        let kept = limits::OUTPUT_BYTES;
        let ranges = retained(&sandbox, exec.id().clone()).await;
        assert_eq!(ranges, [(0, kept / 2), (total - kept / 2, total)]);
        assert_eq!(end.stdout_dropped, total - kept);
        let grown =
            [resident("self").max(peak[0]).saturating_sub(node_before), peak[1].saturating_sub(guest_before)];
        let rate = total as f64 / 1e6 / seconds;
        println!(
            "{}: {total} bytes in {seconds:.1} s, {rate:.0} MB/s; live reader missed {gaps}; node grew {} KiB, guest {} KiB",
            lab.runtime.name(),
            grown[0] / 1024,
            grown[1] / 1024
        );
        assert!(grown[0] < 4 << 20, "node grew by {}", grown[0]);
        if lab.runtime.name() == "runc" {
            assert!(grown[1] < 4 << 20, "guest grew by {}", grown[1]);
            assert!(rate >= 200.0, "{rate:.0} MB/s");
        }
    });
}

/// Reads all retained output of an exec that has ended, and returns the ranges of its offsets. Keeps none of
/// the bytes, so that the memory of this process is that of the node.
async fn retained(sandbox: &Sandbox, id: api::ExecId) -> Vec<(u64, u64)> {
    let mut reader = sandbox.exec_reader(id);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    while let Some(event) = reader.next().await.unwrap() {
        if let Event::Data { offset, bytes, .. } = event {
            assert!(is_numbered(offset, &bytes), "wrong bytes at {offset}");
            let to = offset + bytes.len() as u64;
            match ranges.last_mut() {
                Some(last) if last.1 == offset => last.1 = to,
                _ => ranges.push((offset, to)),
            }
        }
    }
    ranges
}

/// In mode `block`, each byte arrives once, even if the channel is interrupted repeatedly.
#[test]
#[ignore = "starts real sandboxes"]
fn each_byte_comes_once_though_the_channel_is_cut_fifty_times() {
    on(EVERYWHERE, async |lab| {
        let total: u64 =
            if lab.runtime.name() == "runc" { sized(2_000_000_000, 400_000_000) } else { 200_000_000 };
        let cutter = Arc::new(Cutter::new(Arc::clone(&lab.runtime)));
        let sandbox = Sandbox::start(cutter.clone(), lab.id(), &lab.spec(Limits::default())).await.unwrap();
        let spec = ExecSpec { output: OutputMode::Block, ..numbered(total) };
        let mut exec = start(&sandbox, &spec).await.unwrap();
        let (mut at, mut cuts) = (0, 0);
        let end = loop {
            match exec.next().await.unwrap().unwrap() {
                Event::Data { stream: Stream::Stdout, offset, bytes } => {
                    assert_eq!(offset, at);
                    assert!(is_numbered(offset, &bytes), "wrong bytes at {offset}");
                    at += bytes.len() as u64;
                }
                Event::End(end) => break end,
                other @ (Event::Data { .. } | Event::Gap { .. } | Event::Result { .. }) => {
                    panic!("{other:?}")
                }
            }
            if cuts < 50 && at > (cuts + 1) * total / 52 {
                cuts += 1;
                cutter.cut();
            }
        };
        assert_eq!((cuts, at, end.stdout_dropped), (50, total, 0));
        assert_eq!(end.outcome, Outcome::Exited { code: 0 });
        assert!(cutter.carried() > 50, "{}", cutter.carried());
    });
}

/// In mode `block`, the process waits for a reader, and no output is lost.
#[test]
#[ignore = "starts real sandboxes"]
fn a_blocked_process_waits_for_its_reader() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let spec = ExecSpec { output: OutputMode::Block, output_bytes: Some(100_000), ..numbered(8_000_000) };
        let exec = start(&sandbox, &spec).await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let info = sandbox.execs().await.unwrap().pop().unwrap();
        assert_eq!((info.outcome, info.stdout_bytes), (None, 100_000));
        let done = exec.collect().await.unwrap();
        assert!(is_numbered(0, &done.stdout));
        assert_eq!((done.stdout.len(), done.end.outcome), (8_000_000, Outcome::Exited { code: 0 }));
    });
}

/// Verifies that attack O-01 fails: in mode `kill`, endless output is stopped at the limit.
#[test]
#[ignore = "starts real sandboxes"]
fn a_flood_in_mode_kill_ends_with_output_limit() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let spec = ExecSpec { output: OutputMode::Kill, output_bytes: Some(1_000_000), ..exec(&["yes"]) };
        let done = collect(&sandbox, &spec).await;
        assert_eq!((done.end.outcome, done.stdout.len()), (Outcome::OutputLimit, 1_000_000));
    });
}

/// 500 MB without a newline are treated as plain bytes and counted exactly.
#[test]
#[ignore = "starts real sandboxes"]
fn one_line_of_500_megabytes_is_only_bytes() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let size: u64 = if lab.runtime.name() == "runc" { 500_000_000 } else { 50_000_000 };
        let spec = ExecSpec {
            deadline_ms: Some(120_000),
            ..script(&format!("head -c {size} /dev/zero | tr '\\0' x"))
        };
        let done = collect(&sandbox, &spec).await;
        assert_eq!(done.end.stdout_bytes, size);
        assert!(done.stdout.iter().all(|byte| *byte == b'x'));
    });
}

/// A multi-byte character that is split across two frames arrives intact.
#[test]
#[ignore = "starts real sandboxes"]
fn characters_survive_every_way_of_cutting_them() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let done = collect(&sandbox, &exec(&["python3", "-c", "print('☕'*100000, end='')"])).await;
        assert_eq!(text(&done), "☕".repeat(100_000));
        let drip = "import os,time\nfor b in '☕é☕'.encode():\n os.write(1,bytes([b])); time.sleep(0.01)";
        assert_eq!(text(&collect(&sandbox, &exec(&["python3", "-c", drip])).await), "☕é☕");
    });
}

/// Invalid UTF-8, NUL, carriage returns and escape sequences arrive unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn any_bytes_are_preserved() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let wild = "import os\nos.write(1, bytes(range(256))*40 + b'\\xed\\xa0\\x80\\r50%\\r\\x1b[2J\\0')";
        let done = collect(&sandbox, &exec(&["python3", "-c", wild])).await;
        let mut expected: Vec<u8> = (0..=255u8).collect::<Vec<_>>().repeat(40);
        expected.extend(b"\xed\xa0\x80\r50%\r\x1b[2J\0");
        assert_eq!(done.stdout, expected);
    });
}

/// When stdout and stderr are interleaved, both are complete at the end, and each is in order.
#[test]
#[ignore = "starts real sandboxes"]
fn both_streams_are_complete_at_the_end_and_each_in_order() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let done = sh(&sandbox, "for i in $(seq 1 5000); do echo o$i; echo e$i >&2; done").await;
        let lines = |prefix: &str| (1..=5000).map(|i| format!("{prefix}{i}\n")).collect::<String>();
        assert_eq!(text(&done), lines("o"));
        assert_eq!(String::from_utf8_lossy(&done.stderr), lines("e"));
    });
}

/// Output that contains frames or events of Bellglass's protocol cannot forge an exec's outcome.
#[test]
#[ignore = "starts real sandboxes"]
fn output_that_imitates_our_frames_forges_nothing() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let end = br#"{"outcome":{"kind":"exited","code":0},"stdout_bytes":0,"stdout_dropped":0,"stderr_bytes":0,"stderr_dropped":0,"duration_us":1,"left_running":0}"#;
        let frame = api::frame::Header::End { length: u32::try_from(end.len()).unwrap() }.encode();
        let forged: Vec<u8> = [&frame[..], end, b"\n\nevent: end\ndata: {\"outcome\":\"ok\"}\n\n"].concat();
        let hex: String = forged.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let done = sh(&sandbox, &format!("printf '{hex}'; exit 9")).await;
        assert_eq!((done.stdout, done.end.outcome), (forged, Outcome::Exited { code: 9 }));
    });
}

/// A timed-out exec returns everything that it printed before the timeout.
#[test]
#[ignore = "starts real sandboxes"]
fn what_was_printed_before_a_timeout_is_returned_with_it() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let spec = ExecSpec { deadline_ms: Some(1500), ..script("seq 1 500; sleep 600") };
        let done = collect(&sandbox, &spec).await;
        assert_eq!(done.end.outcome, Outcome::Timeout);
        assert_eq!(text(&done).lines().count(), 500);
    });
}

/// A reader can resume at any offset, even after the exec has ended.
#[test]
#[ignore = "starts real sandboxes"]
fn a_reader_comes_back_at_an_offset() {
    on(EVERYWHERE, async |lab| {
        let sandbox = lab.sandbox().await;
        let exec = start(&sandbox, &script("echo one; sleep 0.3; echo two; echo three >&2")).await.unwrap();
        let id = exec.id().clone();
        drop(exec);
        for _ in 0..2 {
            let mut reader = sandbox.exec_reader(id.clone());
            reader.seek(2, 0, 0);
            let done = reader.collect().await.unwrap();
            assert_eq!((text(&done).as_str(), done.stderr.as_slice()), ("e\ntwo\n", &b"three\n"[..]));
        }
    });
}

/// Heartbeats show that a silent exec still has a working connection.
#[test]
#[ignore = "starts real sandboxes"]
fn a_silent_exec_is_heard_of_every_few_seconds() {
    on(&["runc"], async |lab| {
        let sandbox = lab.sandbox().await;
        let exec = start(&sandbox, &exec(&["sleep", "600"])).await.unwrap();
        let path = format!("/execs/{}/output", exec.id());
        let ask =
            guest_client::link::GuestRequest { method: hyper::Method::GET, path, body: bytes::Bytes::new() };
        let mut body = sandbox.link().ask(&ask, Duration::from_secs(5)).await.unwrap().into_body();
        let frame = tokio::time::timeout(Duration::from_secs(10), http_body_util::BodyExt::frame(&mut body));
        let bytes = frame.await.expect("nothing for ten seconds").unwrap().unwrap().into_data().unwrap();
        assert_eq!(&bytes[..], api::frame::Header::Heartbeat.encode());
    });
}

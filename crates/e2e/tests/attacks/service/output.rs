//! Attacks O-01, O-02 and O-04: output that is endless, unread, or written one byte at a time.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::account::Role;
use api::exec::{ExecSpec, Outcome, OutputMode, Stream};
use api::limits::{self, Limits};
use api::sandbox::{CreateSandbox, Tier};
use client::Event;
use e2e::lab::exec;
use e2e::service::{PLENTY, Service, served};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ground::{
    Bystander, Undefended, address, cpu_of, head, held, inside, recovers, rss_bytes, threads_of, tiers,
};
use super::wire::open;

/// The file that every `tail` process follows.
const DROP: &str = "/workspace/drop";
/// Maximum memory growth of the server because of all streams in this module.
const MEMORY_BYTES: u64 = 64 << 20;

async fn sandbox(service: &Service, tier: Tier) -> SandboxId {
    let limits = Limits { pids: 1024, disk_bytes: 512 << 20, ..e2e::service::small_limits() };
    service
        .client()
        .create(&CreateSandbox { tier, limits: limits.into(), ..e2e::service::small() })
        .await
        .unwrap()
        .id
}

/// Runs an operation. Returns its result, and the share of a processor core that a process used during the
/// operation.
async fn share_of_a_core<T>(pid: u32, act: impl Future<Output = T>) -> (T, f64) {
    let (before, began) = (cpu_of(pid), Instant::now());
    let done = act.await;
    (done, (cpu_of(pid) - before).as_secs_f64() / began.elapsed().as_secs_f64())
}

/// Verifies that attacks O-01 and O-02 fail: unread output does not increase memory use in any mode.
#[test]
#[ignore = "starts real sandboxes"]
fn output_that_nobody_reads_grows_nowhere() {
    const FOR: Duration = Duration::from_secs(5);
    served(async || {
        let service = Service::start();
        let client = service.client();
        for tier in tiers() {
            let home = sandbox(&service, tier).await;
            let guest = u32::try_from(service.process_of(&home)).unwrap();
            let flood = |output| ExecSpec { output, ..inside("O-01", &["1", "2"]) };
            let before = [rss_bytes(service.pid()), rss_bytes(guest)];
            let kept = client.start(&home, &flood(OutputMode::Keep)).await.unwrap().id;
            let blocked = client.start(&home, &flood(OutputMode::Block)).await.unwrap().id;
            let bystander = Bystander::of(&service);
            let deaf = |id| open(&service, &service.key, &format!("/v1/sandboxes/{home}/execs/{id}/output"));
            let (_, unread) = share_of_a_core(service.pid(), tokio::time::sleep(FOR)).await;
            let half: Vec<TcpStream> = [&kept, &blocked].map(deaf).into();
            let (_, stuck) = share_of_a_core(service.pid(), tokio::time::sleep(FOR)).await;
            let grown =
                [rss_bytes(service.pid()), rss_bytes(guest)].map(|now| now >> 10).into_iter().zip(before);
            let grown: Vec<u64> = grown.map(|(now, before)| now.saturating_sub(before >> 10)).collect();
            let slowest = bystander.was_served();
            let written = client.exec_info(&home, &kept).await.unwrap();
            let waits = client.exec_info(&home, &blocked).await.unwrap();
            drop(half);
            // Control: the amount of output far exceeds the memory growth. In mode `block`, the process has
            // written as much as fits.
            let megabytes = (written.stdout_bytes + written.stderr_bytes) / 1_000_000;
            assert!(
                megabytes << 10 > 4 * (grown[0] + grown[1]),
                "{megabytes} MB written, {grown:?} KiB grown"
            );
            e2e::attack::count_control();
            assert!(megabytes > 100, "{megabytes} MB");
            assert_eq!(
                (waits.stdout_bytes, waits.stderr_bytes),
                (limits::OUTPUT_BYTES, limits::OUTPUT_BYTES)
            );
            assert!(grown[0] << 10 < MEMORY_BYTES, "the server grew by {} KiB", grown[0]);
            assert!(tier == Tier::UserKernel || grown[1] < 8 << 10, "the guest grew by {} KiB", grown[1]);
            assert!(unread < 0.5 && stuck < 0.5, "the server used {unread:.2} and {stuck:.2} cores");
            client.cancel(&home, &kept).await.unwrap();
            head_and_tail(&service, &home, &kept).await;
            client.stop(&home).await.unwrap();
            held(
                "O-02",
                &format!(
                    "{tier:?}: {megabytes} MB unread; server {} KiB, guest {} KiB more, {unread:.2} and {stuck:.2} cores; \
                     a bystander waited {slowest:?}",
                    grown[0], grown[1]
                ),
            );
        }
        recovers(&service).await;
    });
}

/// Verifies that attack O-02 fails: readers that do not read delay no other client, even in the same sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn readers_that_have_stopped_hold_up_nobody_else_in_their_sandbox() {
    const DEAF: usize = 6;
    served(async || {
        let service = Service::start();
        let client = service.client();
        for tier in tiers() {
            let home = sandbox(&service, tier).await;
            let flood = |output| ExecSpec { output, ..inside("O-01", &["1"]) };
            let kept = client.start(&home, &flood(OutputMode::Keep)).await.unwrap().id;
            let blocked = client.start(&home, &flood(OutputMode::Block)).await.unwrap().id;
            let reader = service.key_of("default", Role::Read, PLENTY).await;
            let before = rss_bytes(service.pid());
            let mut deaf = Vec::new();
            for number in 0..DEAF {
                let id = if number % 2 == 0 { &kept } else { &blocked };
                deaf.push(
                    deaf_reader(&service, &reader, &format!("/v1/sandboxes/{home}/execs/{id}/output")).await,
                );
            }
            let waiting = until_full(&service).await;
            let grown = rss_bytes(service.pid()).saturating_sub(before);
            let mut slowest = Duration::ZERO;
            for _ in 0..5 {
                let began = Instant::now();
                let done = client.exec(&home, &exec(&["echo", "here"])).await.unwrap();
                let done = done.collect().await.unwrap();
                assert_eq!(done.stdout, b"here\n");
                client.exec_info(&home, &kept).await.unwrap();
                slowest = slowest.max(began.elapsed());
            }
            for id in [&kept, &blocked] {
                let began = Instant::now();
                client.cancel(&home, id).await.unwrap();
                slowest = slowest.max(began.elapsed());
            }
            assert!(slowest < Duration::from_secs(5), "others waited {slowest:?}");
            assert!(grown < 2 * MEMORY_BYTES, "{DEAF} deaf readers cost {} KiB", grown >> 10);
            // Control: the streams were open with full buffers, and they continue when they are read.
            let mut first = [0; 1024];
            for mut stream in deaf {
                let reading = tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut first));
                reading.await.expect("a deaf reader had nothing to read").unwrap();
            }
            e2e::attack::count_control();
            client.stop(&home).await.unwrap();
            held(
                "O-02",
                &format!(
                    "{tier:?}: {DEAF} deaf readers, {} KiB on their way, {} KiB more; others waited {slowest:?}",
                    waiting >> 10,
                    grown >> 10
                ),
            );
        }
        recovers(&service).await;
    });
}

/// Waits until the amount of data that the kernel buffers between a server and its clients stops growing.
/// Returns this amount.
async fn until_full(service: &Service) -> u64 {
    const SAME: usize = 4;
    let port: u16 = address(service).rsplit_once(':').unwrap().1.parse().unwrap();
    let (port, began, mut seen) = (format!(":{port:04X}"), Instant::now(), Vec::new());
    loop {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let ours = rows.filter(|row| row.len() > 4 && row[1].ends_with(&port));
        let queued = ours.map(|row| u64::from_str_radix(row[4].split(':').next().unwrap(), 16).unwrap());
        let queued: u64 = queued.sum();
        seen.push(queued);
        if queued > 0 && seen.len() >= SAME && seen[seen.len() - SAME..].iter().all(|one| *one == queued) {
            return queued;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the streams are never full: {seen:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Opens a stream with a small receive buffer in the kernel, and does not read from the stream.
async fn deaf_reader(service: &Service, key: &str, path: &str) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address(service).parse().unwrap()).await.unwrap();
    let bearer = format!("Bearer {key}");
    let request = head("GET", path, &[("authorization", &bearer)]) + "\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Asserts that a late reader gets the oldest and the newest half of the retained output, with a gap between
/// them.
async fn head_and_tail(service: &Service, home: &SandboxId, id: &api::ExecId) {
    let mut reader = service.client().reader(home, id);
    let (mut kept, mut gaps, mut head) = (0, Vec::new(), 0);
    let end = loop {
        match reader.next().await.unwrap().unwrap() {
            Event::Data { stream: Stream::Stdout, bytes, .. } => {
                kept += bytes.len() as u64;
                head += if gaps.is_empty() { bytes.len() as u64 } else { 0 };
            }
            Event::Gap { stream: Stream::Stdout, from, to } => gaps.push(to - from),
            Event::Data { .. } | Event::Gap { .. } | Event::Result { .. } => {}
            Event::End(end) => break end,
        }
    };
    assert_eq!(end.outcome, Outcome::Cancelled);
    assert_eq!((kept, head), (limits::OUTPUT_BYTES, limits::OUTPUT_BYTES / 2));
    assert_eq!(gaps, [end.stdout_dropped]);
}

/// Verifies that attack O-01 fails: a reader that reads a flood as fast as it can uses less than one
/// processor core of the server.
#[test]
#[ignore = "starts real sandboxes"]
fn a_flood_that_is_read_takes_less_than_a_core_and_keeps_nobody_waiting() {
    const FOR: Duration = Duration::from_secs(4);
    served(async || {
        let service = Service::start();
        let client = service.client();
        for tier in tiers() {
            let home = sandbox(&service, tier).await;
            let spec = ExecSpec { deadline_ms: Some(4000), grace_ms: Some(0), ..inside("O-01", &["1", "2"]) };
            let before = rss_bytes(service.pid());
            let bystander = Bystander::of(&service);
            let reading = async {
                let mut exec = client.exec(&home, &spec).await.unwrap();
                let (mut read, mut missed) = (0, 0);
                loop {
                    match exec.next().await.unwrap().unwrap() {
                        Event::Data { bytes, .. } => read += bytes.len() as u64,
                        Event::Gap { from, to, .. } => missed += to - from,
                        Event::Result { .. } => panic!("a result of a command"),
                        Event::End(end) => return (read, missed, end),
                    }
                }
            };
            let ((read, missed, end), cores) = share_of_a_core(service.pid(), reading).await;
            let grown = rss_bytes(service.pid()).saturating_sub(before);
            let slowest = bystander.was_served();
            // Control: the output was a flood, and every byte was either received or reported as missing.
            assert!(end.duration_us >= FOR.as_micros() as u64 && end.outcome == Outcome::Timeout, "{end:?}");
            e2e::attack::count_control();
            assert_eq!(read + missed, end.stdout_bytes + end.stderr_bytes);
            assert!(read > 10_000_000, "{read} bytes were read");
            assert!(grown < MEMORY_BYTES, "the server grew by {} KiB", grown >> 10);
            assert!(cores < 1.0, "the server used {cores:.2} cores");
            client.stop(&home).await.unwrap();
            held(
                "O-01",
                &format!(
                    "{tier:?}: {} MB read, {} missed; {cores:.2} cores, {} KiB more; a bystander waited {slowest:?}",
                    read / 1_000_000,
                    missed / 1_000_000,
                    grown >> 10
                ),
            );
        }
        recovers(&service).await;
    });
}

/// Verifies that attack O-04 fails: hundreds of slow streams do not each use a thread.
#[test]
#[ignore = "starts real sandboxes"]
fn hundreds_of_dripping_streams_have_no_thread_each() {
    const CONTROL: usize = 100;
    const SECONDS: u64 = 8;
    served(async || {
        let undefended = Undefended::start("O-04");
        let dial = || TcpStream::connect(format!("127.0.0.1:{}", undefended.port)).unwrap();
        let crowd: Vec<TcpStream> = (0..CONTROL).map(|_| dial()).collect();
        let threads = crowd.iter().map(|stream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line.trim().parse::<usize>().unwrap()
        });
        assert!(threads.max().unwrap() >= CONTROL, "the control does not bite");
        drop((crowd, undefended));
        let service = Service::start();
        for tier in tiers() {
            let count = if tier == Tier::Container { 400 } else { 100 };
            let home = sandbox(&service, tier).await;
            // The server starts its permanent threads when it does work for the first time.
            recovers(&service).await;
            let before = (threads_of(service.pid()), rss_bytes(service.pid()));
            let counts: Arc<Vec<AtomicU64>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
            let readers = drip(&service, &home, &counts).await;
            let dripping = inside("O-04", &[DROP, "60"]);
            let driver = service.client().exec(&home, &dripping).await.unwrap();
            // Wait until every stream has received its first byte.
            let began = Instant::now();
            while counts.iter().any(|bytes| bytes.load(Ordering::Relaxed) == 0) {
                assert!(began.elapsed() < Duration::from_secs(15), "not every stream drips");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let bystander = Bystander::of(&service);
            let sleeping = tokio::time::sleep(Duration::from_secs(SECONDS));
            let (_, cores) = share_of_a_core(service.pid(), sleeping).await;
            let slowest = bystander.was_served();
            let after = (threads_of(service.pid()), rss_bytes(service.pid()));
            let least = counts.iter().map(|bytes| bytes.load(Ordering::Relaxed)).min().unwrap();
            drop(driver);
            service.client().stop(&home).await.unwrap();
            for reader in readers {
                let end = tokio::time::timeout(Duration::from_secs(10), reader)
                    .await
                    .expect("a stream goes on")
                    .unwrap();
                assert!(matches!(end, Outcome::SandboxLost { .. }), "{end:?}");
            }
            // Control: about one byte per second arrived on each stream.
            assert!(least >= SECONDS / 2, "a stream got {least} bytes in {SECONDS} s");
            let threads = after.0.saturating_sub(before.0);
            let each = after.1.saturating_sub(before.1) / count as u64;
            assert!(threads < 16, "{threads} threads more for {count} streams");
            assert!(each < 128 << 10, "{each} bytes for each stream");
            assert!(cores < 0.8, "the server used {cores:.2} cores");
            held(
                "O-04",
                &format!(
                    "{tier:?}: {count} streams, {threads} threads and {} KiB each more, {cores:.2} cores; a bystander \
                     waited {slowest:?}",
                    each >> 10
                ),
            );
        }
        recovers(&service).await;
    });
}

/// Starts one silent exec for each counter, with a reader that counts the bytes it receives.
async fn drip(
    service: &Service,
    home: &SandboxId,
    counts: &Arc<Vec<AtomicU64>>,
) -> Vec<tokio::task::JoinHandle<Outcome>> {
    let mut readers = Vec::new();
    // `tail` is the cheapest available program that writes a byte from time to time.
    let silent = ExecSpec { deadline_ms: None, ..exec(&["tail", "-n", "0", "-s", "1", "-f", DROP]) };
    let made = service.client().exec(home, &exec(&["touch", DROP])).await.unwrap().collect().await.unwrap();
    assert_eq!(made.end.outcome, Outcome::Exited { code: 0 });
    for number in 0..counts.len() {
        let (client, home, counts) = (service.client(), home.clone(), Arc::clone(counts));
        let mut exec = client.exec(&home, &silent).await.unwrap();
        readers.push(tokio::spawn(async move {
            loop {
                match exec.next().await.unwrap().unwrap() {
                    // `tail` prints a message on standard error about how it follows the file.
                    Event::Data { stream: Stream::Stderr, .. } => {}
                    Event::Data { bytes, .. } => {
                        counts[number].fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                    Event::Gap { .. } | Event::Result { .. } => panic!("a gap in a few bytes, or a result"),
                    Event::End(end) => return end.outcome,
                }
            }
        }));
    }
    readers
}

//! WebSocket, events, large bodies and tunnels through ports.

use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::sandbox::Tier;
use e2e::lab::{script, sized};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ground::{Application, WITHIN, exchange, head, on_each_tier, rss_bytes};

/// Maximum memory growth of the server during a transfer. It covers the flow-control windows of the
/// connections, and the overhead of a debug build.
const MEMORY_BYTES: u64 = 16 << 20;

#[test]
#[ignore = "starts real sandboxes"]
fn websocket_and_events_pass_as_they_come() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let mut socket = application.websocket();
        for number in 0..100 {
            let text = format!("message {number}");
            assert_eq!(exchange(&mut socket, &text), text);
        }
        let begun = Instant::now();
        let mut events = application.open("GET /events?count=3", "");
        assert!(head(&mut events).contains("text/event-stream"));
        let mut times = Vec::new();
        while times.len() < 3 {
            let mut line = String::new();
            assert!(events.read_line(&mut line).unwrap() > 0, "the events ended");
            if line.starts_with("data: ") {
                assert_eq!(line.trim_end(), format!("data: {}", times.len()));
                times.push(begun.elapsed());
            }
        }
        // The application sends events 300 ms apart, and each event arrives before the next is sent.
        assert!(times[1] - times[0] > Duration::from_millis(150), "{times:?}");
        assert!(times[2] - times[1] > Duration::from_millis(150), "{times:?}");
        drop(socket);
        drop(events);
        application.until_held(0).await;
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_gibibyte_goes_both_ways_with_flat_memory() {
    on_each_tier(async |service, tier| {
        // Copying takes longer under gVisor, where a smaller transfer is sufficient.
        let count: usize = if tier == Tier::Container { sized(1024, 256) } else { 256 };
        let application = Application::start(service, tier).await;
        let block: Vec<u8> = (0..1_usize << 20).map(|i| ((i * 7 + (i >> 8) * 13) & 255) as u8).collect();
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            // The first transfer of each kind allocates memory that the server keeps.
            application.text("/blocks?count=1", &[version, "-o", "/dev/null"]);
            let before = rss_bytes(service.pid());
            let (pid, most, done) = (service.pid(), AtomicU64::new(0), AtomicBool::new(false));
            let (down, up) = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        most.fetch_max(rss_bytes(pid), Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(20));
                    }
                });
                let down = download(&application, version, &block, count);
                let up = upload(&application, version, &block, count);
                done.store(true, Ordering::Relaxed);
                (down, up)
            });
            let grown = most.load(Ordering::Relaxed).saturating_sub(before);
            let rate = |took: Duration| count as f64 / took.as_secs_f64();
            eprintln!(
                "{tier:?} {version}: {count} MiB down at {:.0} MiB/s, up at {:.0} MiB/s; the server grew by {} KiB",
                rate(down),
                rate(up),
                grown >> 10
            );
            assert!(grown < MEMORY_BYTES, "{grown} bytes");
        }
    });
}

fn transfer(application: &Application, version: &str, path: &str) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "300", version, "-H"]);
    command.arg(format!("bellglass-token: {}", application.port.token));
    command.arg(format!("{}{path}", application.port.url));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn download(application: &Application, version: &str, block: &[u8], count: usize) -> Duration {
    let begun = Instant::now();
    let mut child = transfer(application, version, &format!("/blocks?count={count}")).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut got = vec![0; block.len()];
    for number in 0..count {
        stdout.read_exact(&mut got).unwrap();
        assert!(got == block, "block {number} is not what was sent");
    }
    assert_eq!(stdout.read(&mut got).unwrap(), 0);
    assert!(child.wait().unwrap().success());
    begun.elapsed()
}

fn upload(application: &Application, version: &str, block: &[u8], count: usize) -> Duration {
    let begun = Instant::now();
    let mut command = transfer(application, version, "/blocks");
    let mut child = command.args(["-X", "POST", "-T", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..count {
        stdin.write_all(block).unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, format!("{{\"right\": {count}, \"wrong\": 0, \"rest\": 0}}"), "{output:?}");
    begun.elapsed()
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_tunnel_carries_bytes_and_the_end_of_each_direction() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let back: Vec<u8> = sent.iter().rev().copied().collect();
        // The echo server responds only after the client has closed its sending side.
        let mut tunnel = application.client.tunnel(&application.sandbox.id, 9000).await.unwrap();
        tunnel.write_all(&sent).await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut got = Vec::new();
        tokio::time::timeout(WITHIN, tunnel.read_to_end(&mut got)).await.unwrap().unwrap();
        assert!(got == back);
        let id = application.sandbox.id.as_str();
        let mut forward = service.command(&["forward", id, "0:9000", "0:8000"]);
        let mut child = Forward(forward.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = std::io::BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut address = || {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix("http://").unwrap().split_once(' ').unwrap().0.to_owned()
        };
        let (echo, web) = (address(), address());
        let through = |bytes: &[u8]| {
            let mut stream = TcpStream::connect(&echo).unwrap();
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got
        };
        assert!(through(&sent) == back);
        let seen = super::ground::asked(&format!("http://{web}/headers"), &[]).1;
        assert!(seen.contains(&format!("Host: {web}")), "{seen}");
        // A restart breaks open connections. New connections wait until the server is back.
        let mut open = TcpStream::connect(&echo).unwrap();
        open.write_all(b"half").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        service.kill();
        open.set_read_timeout(Some(WITHIN)).unwrap();
        // The kernel closes a killed server's connections in an orderly way, so the interruption may look
        // like a normal end of the stream.
        assert!(open.read(&mut [0; 16]).map_or(true, |count| count == 0), "a killed server talks");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| through(b"abc"));
            std::thread::sleep(Duration::from_millis(300));
            service.begin();
            assert_eq!(waiting.join().unwrap(), b"cba");
        });
    });
}

/// A process of `bellglass forward`, which is killed when this value is dropped.
struct Forward(std::process::Child);

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_application_that_does_not_read_holds_up_nobody_else() {
    const STALLED: usize = 40;
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let body = vec![0; 4 << 20];
        // Half are uploads that the application does not read. The others are downloads that this test does
        // not read.
        let mut stalled = Vec::new();
        for number in 0..STALLED {
            let stream = if number % 2 == 0 {
                let stream = application.open("POST /never", "content-length: 1000000000\r\n");
                stream.get_ref().set_nonblocking(true).unwrap();
                // Write until every buffer along the way is full.
                while stream.get_ref().write(&body).is_ok() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                stream
            } else {
                application.open("GET /blocks?count=1024", "")
            };
            stalled.push(stream);
        }
        application.until_held(STALLED / 2).await;
        let begun = Instant::now();
        let exec =
            application.client.exec(&application.sandbox.id, &script("echo alive; cat")).await.unwrap();
        let done = tokio::time::timeout(WITHIN, exec.collect()).await.expect("an exec waits").unwrap();
        assert_eq!(done.stdout, b"alive\n");
        application.text("/blocks?count=8", &["-o", "/dev/null"]);
        eprintln!(
            "{tier:?}: beside {STALLED} stalled connections an exec and 8 MiB took {:?}",
            begun.elapsed()
        );
        assert!(begun.elapsed() < e2e::lab::promised(10));
    });
}

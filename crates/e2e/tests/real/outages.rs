//! Failures of the machine on which a server runs: its port, clock, store and disk. Running sandboxes
//! continue, requests that cannot be served are refused with the cause, and everything works again after the
//! failure.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, SandboxState};
use client::{Client, Event, Exec};
use e2e::lab::{promised, script};
use e2e::service::{Service, served, small, until};
use e2e::wire::{Answer, sandbox};
use rustix::fs::FallocateFlags;
use tempfile::TempDir;

/// Creates a temporary directory that every user can traverse.
fn walked() -> TempDir {
    let place = tempfile::Builder::new().prefix("bellglass-outage").tempdir().unwrap();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o711)).unwrap();
    place
}

async fn says(client: &Client, id: &SandboxId, word: &str) {
    let done = client.exec(id, &script(&format!("echo {word} | tee -a /workspace/said"))).await.unwrap();
    let done = done.collect().await.unwrap();
    assert_eq!(
        (done.end.outcome, done.stdout),
        (Outcome::Exited { code: 0 }, format!("{word}\n").into_bytes())
    );
}

/// Starts an exec that prints a number every 100 ms until `/workspace/stop` exists.
async fn counter(client: &Client, id: &SandboxId) -> Exec {
    let text = "i=0; while [ ! -e /workspace/stop ]; do echo $((i++)); sleep 0.1; done";
    client.exec(id, &ExecSpec { deadline_ms: None, ..script(text) }).await.unwrap()
}

/// Reads a counter's output for this duration and returns the longest time without output.
async fn listen(exec: &mut Exec, during: Duration) -> Duration {
    let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    while begun.elapsed() < during {
        if let Some(Event::Data { .. }) = exec.next().await.unwrap() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest
}

/// Sends one create request. Returns the response and the time until it arrived.
async fn create(service: &Service) -> (Answer, Duration) {
    let begun = Instant::now();
    let answer = service.wire().ask("POST", "/v1/sandboxes", Some(&sandbox(&small()))).await;
    (answer, begun.elapsed())
}

/// Verifies that attack L-06 fails: a server refuses to start if another server already uses its address or
/// its data directory.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_that_cannot_have_its_port_or_its_data_says_so_and_ends() {
    served(async || {
        let service = Service::start();
        let id = service.client().create(&small()).await.unwrap().id;
        let address = service.url().replace("http://", "");
        let other = walked();
        for (data, listen, why, fix) in [
            (other.path(), address.as_str(), format!("cannot listen on {address}"), "--listen"),
            (service.data(), "127.0.0.1:0", "another server is using".into(), "--data"),
        ] {
            let begun = Instant::now();
            let mut command = Command::new(e2e::service::binary());
            command
                .arg("--data")
                .arg(data)
                .args(["serve", "--listen", listen])
                .env_remove("BELLGLASS_SERVER");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(&why) && said.contains(fix), "{said}");
            assert!(begun.elapsed() < promised(10), "{:?}", begun.elapsed());
        }
        says(&service.client(), &id, "unharmed").await;
    });
}

/// Returns a command prefix that shifts a program's wall clock, using Debian's package `faketime`.
fn clock(shift: &str) -> Vec<String> {
    let library = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let mut library = library.map(|path| path.join("faketime/libfaketime.so.1")).filter(|path| path.exists());
    let library = library.next().expect("libfaketime: apt-get install faketime");
    let words = ["env", "FAKETIME_DONT_FAKE_MONOTONIC=1"].map(str::to_owned);
    [words.to_vec(), vec![format!("LD_PRELOAD={}", library.display()), format!("FAKETIME={shift}")]].concat()
}

fn words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// Idle time and time to live do not depend on the wall clock, even if it is wrong by a year and jumps at
/// each restart.
#[test]
#[ignore = "starts real sandboxes"]
fn a_clock_that_is_a_year_off_or_jumps_changes_no_time_that_was_promised() {
    served(async || {
        let (ahead, behind) = (clock("+365d"), clock("-365d"));
        let mut service = Service::with(&words(&ahead), &[]);
        let client = service.client();
        let kept = client.create(&small()).await.unwrap();
        let now = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
        assert!(kept.created_at_ms > now + 300 * 86_400_000, "the server sees another clock");
        let limits = Limits { ttl_ms: 6000, ..e2e::service::small_limits() };
        let short = client.create(&CreateSandbox { limits: limits.into(), ..small() }).await.unwrap().id;
        let begun = Instant::now();
        for before in [&behind, &Vec::new(), &ahead] {
            let idle = client.create(&CreateSandbox { idle_ms: 1000, ..small() }).await.unwrap().id;
            let since = Instant::now();
            until(promised(5), "an idle sandbox to end", async || {
                client.sandbox(&idle).await.unwrap().state.is_terminal()
            })
            .await;
            assert_eq!(client.sandbox(&idle).await.unwrap().reason, Some(EndReason::Idle));
            assert!(since.elapsed() > Duration::from_millis(900), "{:?}", since.elapsed());
            says(&client, &kept.id, "here").await;
            service.kill();
            service.run_under(&words(before));
            service.begin();
            says(&client, &kept.id, "still-here").await;
        }
        until(promised(10), "a time to live to be over", async || {
            client.sandbox(&short).await.unwrap().state.is_terminal()
        })
        .await;
        let (ended, after) = (client.sandbox(&short).await.unwrap(), begun.elapsed());
        eprintln!("a time to live of 6 s was over after {after:?}, under four clocks");
        assert_eq!(ended.reason, Some(EndReason::Expired));
        assert!(after > Duration::from_millis(5500), "{after:?}");
        client.stop(&kept.id).await.unwrap();
    });
}

/// A process that holds the store's lock until this value is dropped.
struct Locked(Child);

impl Locked {
    fn new(store: &Path) -> Self {
        let text = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)\n\
                    c.execute('BEGIN EXCLUSIVE')\nprint('locked', flush=True)\nsys.stdin.read()\n";
        let mut python = Command::new("python3");
        python.args(["-c", text]).arg(store).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Self(child)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Verifies that attack L-04 fails: while the store is locked, running sandboxes continue, and create
/// requests are refused with `store_unavailable`.
#[test]
#[ignore = "starts real sandboxes"]
fn while_the_store_is_locked_what_runs_goes_on_and_what_is_new_is_refused_soon() {
    const LOCKED_FOR: Duration = Duration::from_secs(6);
    served(async || {
        let service = Service::start();
        let client = service.client();
        let (kept, stopped) =
            (client.create(&small()).await.unwrap().id, client.create(&small()).await.unwrap().id);
        let mut exec = counter(&client, &kept).await;
        let lock = Locked::new(&service.data().join("bellglass.db"));
        let listening = tokio::spawn(async move { listen(&mut exec, LOCKED_FOR).await });
        for _ in 0..3 {
            let (answer, took) = create(&service).await;
            assert_eq!((answer.status, answer.code().as_str()), (503, "store_unavailable"), "{answer:?}");
            assert!(answer.header("retry-after").is_some() && took < promised(1) * 3 / 2, "{took:?}");
        }
        says(&client, &kept, "through").await;
        let begun = Instant::now();
        assert_eq!(client.stop(&stopped).await.unwrap().state, SandboxState::Ended);
        assert!(begun.elapsed() < promised(5), "a stop took {:?}", begun.elapsed());
        let silent = listening.await.unwrap();
        assert!(silent < promised(1), "a running exec was not heard of for {silent:?}");
        drop(lock);
        // Now that the store is unlocked, the server persists the end of the sandbox.
        until(promised(10), "the end to be in the store", async || {
            client.sandboxes(false).await.unwrap().iter().all(|one| one.id != stopped)
        })
        .await;
        assert_eq!(create(&service).await.0.status, 201);
        for sandbox in client.sandboxes(false).await.unwrap() {
            client.stop(&sandbox.id).await.unwrap();
        }
        service.assert_nothing_left().await;
    });
}

/// A separate file system, which is unmounted when this value is dropped.
struct Disk {
    mounted: PathBuf,
    _place: TempDir,
}

impl Disk {
    fn new(bytes: u64) -> Self {
        let place = walked();
        let (image, mounted) = (place.path().join("image"), place.path().join("disk"));
        File::create(&image).unwrap().set_len(bytes).unwrap();
        std::fs::create_dir(&mounted).unwrap();
        run("mkfs.ext4", &["-q", "-m", "0", image.to_str().unwrap()]);
        run("mount", &["-o", "loop", image.to_str().unwrap(), mounted.to_str().unwrap()]);
        Self { mounted, _place: place }
    }

    /// Allocates every free block, and keeps the blocks until the returned value is dropped.
    fn fill(&self) -> Filling {
        let path = self.mounted.join("filling");
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let (mut end, mut chunk) = (file.metadata().unwrap().len(), 1 << 30);
        while chunk >= 1024 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), end, chunk) {
                Ok(()) => end += chunk,
                Err(_) => chunk /= 2,
            }
        }
        Filling(path)
    }
}

/// A file that fills a disk. It is removed when this value is dropped.
struct Filling(PathBuf);

impl Drop for Filling {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mounted).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
}

/// If the data directory has no free block, create requests are refused, and existing sandboxes continue to
/// work.
#[test]
#[ignore = "starts real sandboxes"]
fn a_full_data_directory_refuses_what_is_new_and_nothing_else() {
    served(async || {
        // A runtime keeps the last GiB of the disk free for the host.
        let disk = Disk::new(2 << 30);
        let data = tempfile::Builder::new().prefix("bellglass-serve").tempdir_in(&disk.mounted).unwrap();
        let mut service = Service::on(data, &[], &[]);
        let client = service.client();
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(client.create(&small()).await.unwrap().id);
        }
        let mut exec = counter(&client, &ids[0]).await;
        let mut filling = vec![disk.fill()];
        let refused = |answer: &Answer| {
            let known = ["capacity", "store_unavailable"].contains(&answer.code().as_str());
            assert!(answer.status == 503 && known, "{answer:?}");
        };
        refused(&create(&service).await.0);
        assert!(listen(&mut exec, Duration::from_secs(1)).await < promised(1));
        says(&client, &ids[0], "on-blocks-of-its-own").await;
        // Each stop frees the space of the sandbox's disk, so fill it again.
        let ended = client.stop(&ids[1]).await.unwrap();
        assert_eq!((ended.state, ended.reason), (SandboxState::Ended, Some(EndReason::Stopped)));
        filling.push(disk.fill());
        refused(&create(&service).await.0);
        // A server that is killed while the disk is full can start again, and takes over the running
        // sandboxes.
        service.kill();
        service.begin();
        says(&client, &ids[0], "again").await;
        assert_eq!(client.stop(&ids[2]).await.unwrap().state, SandboxState::Ended);
        filling.clear();
        says(&client, &ids[0], "with-room").await;
        let (answer, _) = create(&service).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        for sandbox in client.sandboxes(false).await.unwrap() {
            client.stop(&sandbox.id).await.unwrap();
        }
        service.assert_nothing_left().await;
        drop(service);
    });
}

/// A full `/run` does not affect the server, because it keeps all its state in its data directory.
#[test]
#[ignore = "starts real sandboxes"]
fn a_full_run_directory_is_no_trouble() {
    let full = "mount -t tmpfs -o size=64k none /run && { cat /dev/zero > /run/full; } 2> /dev/null; \
                ! echo more 2> /dev/null >> /run/full || exit 1; exec \"$@\"";
    served(async || {
        let service = Service::with(&["unshare", "-m", "sh", "-c", full, "sh"], &[]);
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        says(&client, &id, "works").await;
        client.stop(&id).await.unwrap();
        service.assert_nothing_left().await;
    });
}

/// If a create request is refused before it has any effect, the client retries it, and it takes effect once.
#[test]
#[ignore = "starts real sandboxes"]
fn a_client_that_is_told_to_ask_again_gets_what_it_wanted_once() {
    served(async || {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("bellglass.toml");
        std::fs::write(&config, "sandboxes_max = 1\npool_ready = 0\n").unwrap();
        let service = Service::with(&[], &["--config", config.to_str().unwrap()]);
        let client = service.client();
        let first = client.create(&small()).await.unwrap().id;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.create(&small()).await }
        });
        until(promised(10), "the second to be refused", async || service.words().contains("status=503"))
            .await;
        client.stop(&first).await.unwrap();
        let second = waiting.await.unwrap().unwrap().id;
        says(&client, &second, "once").await;
        assert_eq!(client.sandboxes(true).await.unwrap().len(), 2);
    });
}

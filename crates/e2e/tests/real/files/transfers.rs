//! Transfers of large files that are interrupted repeatedly: every file arrives complete, and memory use
//! stays flat.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::files::{Hash, Hashing};
use client::Client;
use e2e::random::Random;
use e2e::service::{Service, served};
use sha2::{Digest, Sha256};

use super::relay::Relay;
use super::{path, roomy, tiers};

/// Size of the transferred file, unless `BELLGLASS_TRANSFER_BYTES` sets a different size.
const BYTES: u64 = 64 << 20;
/// Number of times that the connection is cut (`CUTS`) and that the server is killed (`KILLS`) in each
/// direction.
const CUTS: u64 = 10;
const KILLS: u64 = 2;
/// Maximum memory growth of the client and of the server, regardless of the file's size.
const GROWTH_BYTES: u64 = 32 << 20;

fn bytes() -> u64 {
    std::env::var("BELLGLASS_TRANSFER_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(BYTES)
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Returns the resident memory of a sandbox's process 1, as measured inside the sandbox.
async fn resident_inside(client: &Client, id: &api::SandboxId) -> u64 {
    let text = super::said(client, id, "awk '/^VmRSS:/ { print $2 }' /proc/1/status").await;
    text.parse::<u64>().unwrap() * 1024
}

/// Creates a file of random bytes.
fn make(path: &Path, size: u64) {
    let mut random = std::fs::File::open("/dev/urandom").unwrap().take(size);
    std::io::copy(&mut random, &mut std::fs::File::create(path).unwrap()).unwrap();
}

fn hash(path: &Path) -> String {
    let (mut file, mut hasher, mut buffer) =
        (std::fs::File::open(path).unwrap(), Sha256::new(), vec![0; 1 << 20]);
    while let count @ 1.. = file.read(&mut buffer).unwrap() {
        hasher.update(&buffer[..count]);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Interrupts a transfer at random moments: first by cutting the connection, then by killing the server.
async fn trouble(service: &mut Service, relay: &Relay, reached: &AtomicU64, random: &mut Random) {
    let size = bytes();
    for number in 0..CUTS {
        relay.cut_after(random.below(size / (CUTS + KILLS)) + 1);
        while !relay.has_cut() {
            if reached.load(Ordering::Relaxed) >= size {
                eprintln!("arrived before cut {number}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    for number in 0..KILLS {
        let until = reached.load(Ordering::Relaxed) + random.below(size / (CUTS + KILLS));
        while reached.load(Ordering::Relaxed) < until.min(size) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if reached.load(Ordering::Relaxed) >= size {
            eprintln!("arrived before kill {number}");
            return;
        }
        service.kill();
        service.begin();
    }
}

/// A transfer resumes after each interruption. Its hash is verified, and memory use stays flat.
#[test]
#[ignore = "starts real sandboxes"]
fn a_file_that_is_cut_off_again_and_again_arrives_whole_both_ways() {
    served(async || {
        let mut service = Service::start();
        let mut random = Random::new();
        let here = tempfile::tempdir().unwrap();
        let (source, back) = (here.path().join("source"), here.path().join("back"));
        make(&source, bytes());
        let wanted = hash(&source);
        for tier in tiers() {
            let relay = Relay::to(&service.url()).await;
            let client = Client::new(&relay.url, &service.key).unwrap();
            let id = service.client().create(&roomy(tier, bytes() * 2 + (64 << 20))).await.unwrap().id;
            let files = client.files(&id);
            let direct = service.client();
            let before = (resident(service.pid()), resident(std::process::id()));
            let guest = resident_inside(&direct, &id).await;
            let (up, down) = (AtomicU64::new(0), AtomicU64::new(0));
            let began = Instant::now();
            let seen = |at| up.store(at, Ordering::Relaxed);
            let large = path("/workspace/large");
            let sending = files.upload(&source, &large, &seen);
            let (sent, ()) = tokio::join!(sending, trouble(&mut service, &relay, &up, &mut random));
            assert_eq!(sent.unwrap().hash.kind(), Hashing::Blake3);
            relay.cut_after(i64::MAX as u64);
            let sent = began.elapsed();
            // Verify with SHA-256, because the transfer itself uses a different hash.
            assert_eq!(direct.files(&id).hash(&large).await.unwrap().hash, Hash::Sha256(wanted.clone()));
            let began = Instant::now();
            let seen = |at| down.store(at, Ordering::Relaxed);
            let taking = files.download(&large, &back, &seen);
            let (taken, ()) = tokio::join!(taking, trouble(&mut service, &relay, &down, &mut random));
            taken.unwrap();
            assert_eq!(hash(&back), wanted);
            let after = (resident(service.pid()), resident(std::process::id()));
            let guest = (guest, resident_inside(&direct, &id).await);
            eprintln!(
                "{tier:?}: {} MiB up in {sent:?}, down in {:?}; server and client {before:?} -> {after:?}, guest {guest:?}",
                bytes() >> 20,
                began.elapsed()
            );
            assert!(guest.1 < guest.0 + GROWTH_BYTES / 4, "{guest:?}");
            assert!(
                after.0 < before.0 + GROWTH_BYTES && after.1 < before.1 + GROWTH_BYTES,
                "{before:?} {after:?}"
            );
            let left: Vec<_> = files.list(&path("/workspace"), 1).await.unwrap();
            assert_eq!(left.len(), 1, "no part is left: {left:?}");
            relay.cut_after(i64::MAX as u64);
            service.client().stop(&id).await.unwrap();
            std::fs::remove_file(&back).unwrap();
        }
        assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 1, "no part is left here");
    });
}

/// A download restarts if the file changes in the meantime, and fails with `conflict` if the file keeps
/// changing.
#[test]
#[ignore = "starts real sandboxes"]
fn a_file_that_never_holds_still_is_not_taken_for_whole() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let here = tempfile::tempdir().unwrap();
        for tier in tiers() {
            let id = client.create(&roomy(tier, 256 << 20)).await.unwrap().id;
            super::said(&client, &id, "head -c 50000000 /dev/zero > busy").await;
            let busy =
                e2e::lab::script("while :; do printf x | dd of=busy bs=1 conv=notrunc 2> /dev/null; done");
            let busy = client.start(&id, &api::exec::ExecSpec { deadline_ms: None, ..busy }).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            let target = here.path().join("busy");
            let error = client.files(&id).download(&path("busy"), &target, &|_| {}).await.unwrap_err();
            assert_eq!(error.code(), Some(api::ErrorCode::Conflict), "{error}");
            assert!(!target.exists());
            client.cancel(&id, &busy.id).await.unwrap();
            client.files(&id).download(&path("busy"), &target, &|_| {}).await.unwrap();
            assert_eq!(std::fs::metadata(&target).unwrap().len(), 50_000_000);
            std::fs::remove_file(&target).unwrap();
            client.stop(&id).await.unwrap();
        }
        std::fs::File::create(here.path().join("last")).unwrap().write_all(b"x").unwrap();
    });
}

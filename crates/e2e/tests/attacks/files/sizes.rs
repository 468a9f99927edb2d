//! Attacks P-11, P-12, P-16 and U-06: directories with too many files, trees that are too deep, files that are too
//! large, and events that are too frequent.

use std::io::Write as _;
use std::time::{Duration, Instant};

use api::ErrorCode;
use api::files::Change;
use api::layer::Compression;
use api::limits::Limits;
use api::sandbox::CreateSandbox;
use e2e::attack;
use e2e::service::small;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

use super::ground::{Ground, code, each_with, path, timed};

/// Maximum memory growth of the server during any of these operations.
const MEMORY_BYTES: u64 = 64 << 20;
/// Timeout for all events of a storm to be read.
const STORM_WITHIN: Duration = Duration::from_secs(60);

/// Returns a request for a sandbox with enough capacity for many files.
fn roomy() -> CreateSandbox {
    let limits = Limits {
        disk_bytes: 2 << 30,
        disk_inodes: 300_000,
        memory_bytes: 512 << 20,
        ..e2e::service::small_limits()
    };
    CreateSandbox { limits: limits.into(), ..small() }
}

/// Verifies that attack P-11 fails: a large directory is listed in pages, and the depth of a walk is limited.
#[test]
#[ignore = "starts real sandboxes"]
fn a_crowded_directory_is_listed_in_pages_and_a_deep_tree_ends_somewhere() {
    each_with(&roomy(), async |ground| {
        ground
            .run(
                "mkdir many && cd many && seq 1 50000 | xargs touch && cd .. && python3 -c \"\nimport os\nfor _ in range(2000):\n    \
                 os.mkdir('d'); os.chdir('d')\n\"",
            )
            .await;
        let before = ground.memory_bytes();
        let (page, took) = timed(ground.files.page(&path("many"), 1, None)).await;
        let page = page.unwrap();
        assert!(page.items.len() <= 1000 && page.next.is_some());
        let (listed, whole) = timed(ground.files.list(&path("many"), 1)).await;
        assert_eq!(listed.unwrap().len(), 50_000);
        let (deep, _) = timed(ground.files.list(&path("d"), 256)).await;
        assert_eq!(deep.unwrap().len(), 256);
        assert_eq!(code(ground.files.list(&path("d"), 257).await), ErrorCode::LimitExceeded);
        assert_eq!(code(ground.files.remove(&path("d"), true).await), ErrorCode::LimitExceeded);
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        // Control: a walk without a limit reaches the end of the tree.
        assert_eq!(ground.run("find d -type d 2>/dev/null | wc -l").await, "2000");
        attack::count_control();
        ground.run("rm -rf d many").await;
        ground.held(
            "P-11",
            &format!("a page of 50,000 in {took:?}, all in {whole:?}, {} MiB more", grown >> 20),
        );
    });
}

/// Verifies that attack P-12 fails: a sparse file is streamed with limited memory, and a disconnected reader
/// frees its resources.
#[test]
#[ignore = "starts real sandboxes"]
fn a_file_of_holes_is_streamed_within_bounds_and_let_go_at_once() {
    each_with(&roomy(), async |ground| {
        ground.run("truncate -s 1T holes && truncate -s 1G some && du -k holes | cut -f1").await;
        let before = ground.memory_bytes();
        assert_eq!(
            code(ground.files.read(&path("holes"), u64::MAX).await),
            ErrorCode::LimitExceeded,
            "more than any disk has"
        );
        assert_eq!(code(ground.files.hash(&path("holes")).await), ErrorCode::LimitExceeded);
        // Once the reader has been dropped, the process that served it ends.
        let mut reader = ground.files.reader(&path("some")).await.unwrap();
        assert!(reader.next().await.unwrap().is_some());
        drop(reader);
        let begun = Instant::now();
        while ground
            .run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'guest file[s]' || true")
            .await
            != "0"
        {
            assert!(begun.elapsed() < Duration::from_secs(10), "it goes on");
        }
        let gone = begun.elapsed();
        ground.run("mkdir tiny && cd tiny && seq 1 20000 | xargs touch").await;
        let mut archive = ground.files.pack(&path("tiny"), Compression::Gzip).await.unwrap();
        let mut bytes = 0;
        while let Some(piece) = archive.next().await.unwrap() {
            bytes += piece.len();
        }
        assert_eq!(archive.report().unwrap().entries, 20_000);
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        // Control: a program that reads the sparse file gets every byte of its holes.
        assert_eq!(ground.run("head -c 100000000 holes | wc -c").await, "100000000");
        attack::count_control();
        ground.run("rm -rf holes some tiny").await;
        ground.held(
            "P-12",
            &format!("gone after {gone:?}; 20,000 files in {bytes} bytes; {} MiB more", grown >> 20),
        );
    });
}

/// Number of entries in the archive of U-06: one more than an archive may have.
const ENTRIES: usize = 1_000_001;

/// Verifies that attack U-06 fails: an archive of a million empty files ends at the inodes of the sandbox's
/// disk, and an archive of as many entries that are left out ends at the limit of entries.
#[test]
#[ignore = "starts real sandboxes"]
fn a_million_empty_files_end_at_a_limit() {
    let with_inodes = |disk_inodes| {
        let limits = Limits { disk_inodes, ..e2e::service::small_limits() };
        CreateSandbox { limits: limits.into(), ..small() }
    };
    let [small, large] = [512, 1024].map(with_inodes);
    let (files, fifos) = (packed_entries(EntryType::Regular), packed_entries(EntryType::Fifo));
    each_with(&large, async |ground| {
        let before = ground.memory_bytes();
        // Control: a disk with fewer inodes takes fewer files.
        let fewer = ground.client.create(&CreateSandbox { tier: ground.request.tier, ..small.clone() }).await;
        let fewer = fewer.unwrap().id;
        let mut made = Vec::new();
        for id in [&fewer, &ground.sandbox] {
            let remote = ground.client.files(id);
            let refused = remote.unpack(&path("into"), Compression::Gzip, &mut &files[..]).await;
            let Err(client::Error::Refused(refused)) = refused else { panic!("{refused:?}") };
            assert!(refused.fix.contains("disk_inodes"), "{refused:?}");
            let count = remote.list(&path("into"), 1).await.unwrap().len();
            made.push(count);
        }
        assert!((300..512).contains(&made[0]) && (800..1024).contains(&made[1]), "{made:?}");
        attack::count_control();
        ground.client.stop(&fewer).await.unwrap();
        ground.run("rm -rf into").await;
        let refused = ground.files.unpack(&path("fifos"), Compression::Gzip, &mut &fifos[..]).await;
        let Err(client::Error::Refused(refused)) = refused else { panic!("{refused:?}") };
        assert!(refused.message.contains("the number of entries"), "{refused:?}");
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        ground.run("rm -rf fifos").await;
        ground.held("U-06", &format!("{made:?} files made with 512 and 1024 inodes"));
    });
}

/// Returns a compressed archive of empty entries of this kind, all with different names.
fn packed_entries(kind: EntryType) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut header = Header::new_gnu();
    for number in 0..ENTRIES {
        header.set_path(format!("{number}")).unwrap();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        header.set_cksum();
        encoder.write_all(header.as_bytes()).unwrap();
    }
    encoder.write_all(&[0; 1024]).unwrap();
    encoder.finish().unwrap()
}

/// Verifies that attack P-16 fails: 100,000 events in rapid succession use limited memory, and missed events
/// are reported.
#[test]
#[ignore = "starts real sandboxes"]
fn a_storm_of_events_is_bounded_and_says_what_was_missed() {
    each_with(&roomy(), async |ground| {
        // Control: without the defence, the queue holds every event that the kernel reports.
        let control = ground.without_defence("P-16").await;
        let (unbounded, _) = storm(&control).await;
        control.end().await;
        let before = ground.memory_bytes();
        let (events, overflows) = storm(ground).await;
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        assert!(overflows > 0, "{events} events, {overflows} overflows");
        assert!(unbounded > 2 * events, "control: {unbounded} events, {events} with the defence");
        ground.held(
            "P-16",
            &format!("{events} of 100,000 events, {overflows} times that some were missed; without the defence {unbounded}"),
        );
    });
}

/// Causes 100,000 events while the client does not read. Returns how many events and overflows it reads
/// afterwards.
async fn storm(ground: &Ground) -> (u64, u64) {
    let mut watching = ground.files.watch(&path("/workspace"), true);
    watching.begin().await.unwrap();
    ground
        .begin(
            "mkdir storm && cd storm && python3 -c \"\nimport os\nfor n in range(50000):\n    p = f'{n:060}'\n    \
             os.close(os.open(p, os.O_CREAT))\n    os.unlink(p)\n\"; touch /workspace/over",
        )
        .await;
    // Do not read the events for a while, so that their buffer overflows.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (mut events, mut overflows, mut over) = (0u64, 0u64, false);
    let begun = Instant::now();
    while !over {
        assert!(begun.elapsed() < STORM_WITHIN, "{events} events, {overflows} overflows, over: {over}");
        let told = match tokio::time::timeout(Duration::from_secs(15), watching.next()).await {
            Ok(told) => told.unwrap(),
            // The last events were lost too. The overflow that was already reported covers them.
            Err(_) if overflows > 0 => break,
            Err(_) => panic!("{events} events and silence"),
        };
        events += 1;
        overflows += u64::from(told.event == Change::Overflow);
        over |= told.path.as_deref() == Some("/workspace/over");
    }
    (events, overflows)
}

//! Attacks P-11, P-12 and P-16: directories with too many files, trees that are too deep, files that are too
//! large, and events that are too frequent.

use std::time::{Duration, Instant};

use api::ErrorCode;
use api::files::Change;
use api::layer::Compression;
use api::limits::Limits;
use api::sandbox::CreateSandbox;
use e2e::service::small;

use super::ground::{code, each_with, path, timed};

/// Maximum memory growth of the server during any of these operations.
const MEMORY_BYTES: u64 = 64 << 20;

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
        ground.run("rm -rf holes some tiny").await;
        ground.held(
            "P-12",
            &format!("gone after {gone:?}; 20,000 files in {bytes} bytes; {} MiB more", grown >> 20),
        );
    });
}

/// Verifies that attack P-16 fails: 100,000 events in rapid succession use limited memory, and missed events
/// are reported.
#[test]
fn a_storm_of_events_is_bounded_and_says_what_was_missed() {
    each_with(&roomy(), async |ground| {
        let mut watching = ground.files.watch(&path("/workspace"), true);
        watching.begin().await.unwrap();
        let before = ground.memory_bytes();
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
        while !over || overflows == 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{events} events, {overflows} overflows, over: {over}"
            );
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
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        assert!(events < 100_000 && overflows > 0, "{events} events, {overflows} overflows");
        ground.held(
            "P-16",
            &format!("{events} events told of 100,000, {overflows} times that some were missed"),
        );
    });
}

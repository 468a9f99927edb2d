//! Attacks P-05, P-09, P-17 and U-08: files and directories that change during an operation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::ErrorCode;
use api::layer::Compression;

use super::ground::{code, each, path, timed};

/// Python program that keeps exchanging a directory with a symlink to another directory for the given number
/// of seconds.
const TRADES: &str = r#"
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
end = time.monotonic() + float(sys.argv[1])
count = 0
def trade(number):
    global count
    base = b"/workspace/race/%d" % number
    os.makedirs(base + b"/dir/inner", exist_ok=True)
    open(base + b"/dir/inner/own", "w").write("own")
    os.symlink("/etc", base + b"/link")
    while time.monotonic() < end:
        libc.renameat2(-100, base + b"/dir", -100, base + b"/link", 2)
        count += 1
threads = [threading.Thread(target=trade, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(count)
"#;

/// Verifies that attack P-05 fails: a walk never leaves its tree, even if directories in the tree are
/// exchanged with symlinks.
#[test]
fn a_walk_never_leaves_its_tree_whatever_trades_places_under_it() {
    each(async |ground| {
        ground.files.write(&path("trade.py"), TRADES.into(), None).await.unwrap();
        ground.begin("python3 trade.py 6 > trades").await;
        let (mut walks, begun) = (0, Instant::now());
        while begun.elapsed() < Duration::from_secs(5) {
            let race = path("/workspace/race");
            for info in ground.files.list(&race, 9).await.unwrap_or_default() {
                assert!(info.path.starts_with("/workspace/race/"), "{info:?}");
                assert!(
                    !info.path.ends_with("passwd") && !info.path.ends_with("hostname"),
                    "it left: {info:?}"
                );
            }
            if let Ok(mut archive) = ground.files.pack(&race, Compression::None).await {
                let mut bytes = Vec::new();
                while let Ok(Some(piece)) = archive.next().await {
                    bytes.extend_from_slice(&piece);
                }
                assert!(!bytes.windows(9).any(|window| window == b"root:x:0:"), "it left");
            }
            let copy = path(format!("/workspace/copy{walks}"));
            let _ = ground.files.copy(&race, &copy, false).await;
            let _ = ground.files.remove(&copy, true).await;
            walks += 1;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let trades: u64 = ground.run("cat trades").await.parse().unwrap();
        // Control: if the names are opened by path, one of them leads to `/etc`.
        assert_eq!(
            ground
                .run("ls /workspace/race/0/link/passwd /workspace/race/0/dir/passwd 2>/dev/null | wc -l")
                .await,
            "1"
        );
        assert!(trades > 1000, "{trades}");
        ground.files.remove(&path("/workspace/race"), true).await.unwrap();
        assert_ne!(ground.run("wc -l < /etc/passwd").await, "0");
        ground.held("P-05", &format!("{walks} walks under {trades} trades"));
    });
}

/// Verifies that attack P-09 fails: reading a file while it changes returns one consistent version or an
/// error.
#[test]
fn a_file_that_changes_while_it_is_read_is_never_taken_for_whole() {
    each(async |ground| {
        // While the file grows, a read returns at least the initial content, or an error.
        ground.run("head -c 8000000 /dev/zero > grows").await;
        ground.begin("while [ ! -e stop ]; do echo more >> grows; done").await;
        let bytes = ground.files.read(&path("grows"), 1 << 30).await;
        // Each attempt may see a different version, so the node may return an error after several attempts.
        if let Ok(bytes) = &bytes {
            assert!(bytes.len() >= 8_000_000);
        }
        ground.run("touch stop").await;
        // While the file is repeatedly truncated and rewritten, a read never returns a mixture of versions.
        ground
            .begin("while [ ! -e end ]; do head -c 3000000 /dev/zero | tr '\\0' a > cut; head -c 3000000 /dev/zero | tr '\\0' b > cut; done")
            .await;
        let (mut whole, mut told) = (0, 0);
        for _ in 0..20 {
            match ground.files.read(&path("cut"), 1 << 30).await {
                Ok(bytes) if bytes.is_empty() || bytes.iter().all(|byte| *byte == bytes[0]) => whole += 1,
                Ok(bytes) => panic!("a mixture of {} bytes", bytes.len()),
                Err(_) => told += 1,
            }
        }
        // Control: a process that reads the file without this check gets a mixture of versions.
        let mixtures = "for i in $(seq 40); do { head -c 1000; sleep 0.02; cat; } < cut | tr -s ab; echo; done | grep -cE 'ab|ba'";
        assert_ne!(ground.run(mixtures).await, "0");
        ground.run("touch end").await;
        // Every read returned a single version or reported that the file had changed.
        ground.held("P-09", &format!("of 20 reads {whole} were one version, {told} said that it changed"));
    });
}

/// Verifies that attack U-08 fails: two concurrent writers leave the complete content of one of them.
#[test]
fn two_who_write_one_file_leave_one_of_the_two() {
    each(async |ground| {
        let files = Arc::new(ground.client.files(&ground.sandbox));
        let (one, other) = (vec![b'1'; 2_000_000], vec![b'2'; 2_000_000]);
        for _ in 0..10 {
            let place = path("both");
            let (first, second) = tokio::join!(
                files.write(&place, one.clone().into(), None),
                files.write(&place, other.clone().into(), None)
            );
            assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
            let bytes = files.read(&place, 1 << 30).await.unwrap();
            assert!(bytes == one || bytes == other, "a mixture of {} bytes", bytes.len());
        }
        assert_eq!(ground.run("ls -A /workspace").await, "both", "nothing is left beside it");
        // With a false length, or a body that ends early, no file appears.
        let address = ground.service.url().split_once("://").unwrap().1.to_owned();
        for (length, sent) in [(1000, 10), (5, 0)] {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            let head = format!(
                "PUT /v1/sandboxes/{}/files/content?path=lied HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {length}\r\n\r\n",
                ground.sandbox, ground.service.key
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&vec![b'x'; sent]).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read(&mut [0; 1000]);
        }
        assert_eq!(code(ground.files.stat(&path("lied")).await), ErrorCode::NotFound);
        // A wrong offset is reported and changes nothing.
        let wire = ground.service.wire();
        let target = format!("/v1/sandboxes/{}/files/content?path=both&offset=99999999", ground.sandbox);
        assert_eq!(wire.ask("PUT", &target, None).await.status, 409);
        assert_eq!(ground.files.stat(&path("both")).await.unwrap().size_bytes, 2_000_000);
        // Control: concurrent writers that write in place leave a mixture of both contents, or a file with
        // the length of the longer content.
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("both");
        std::fs::write(&place, "1111").unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            &std::fs::File::options().write(true).open(&place).unwrap(),
            b"22",
            0,
        )
        .unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"2211");
        ground.held("U-08", "20 writes of one name, 2 lies, 1 wrong offset");
    });
}

/// Verifies that attack P-17 fails: stopping a sandbox ends every transfer with a result or an error.
#[test]
fn a_sandbox_that_is_stopped_ends_every_transfer_with_a_word() {
    each(async |ground| {
        let sandbox = ground.client.create(&ground.request).await.unwrap().id;
        let files = ground.client.files(&sandbox);
        files.write(&path("large"), vec![0; 50_000_000].into(), None).await.unwrap();
        let mut transfers = tokio::task::JoinSet::new();
        for number in 0..100 {
            let files = files.clone();
            transfers.spawn(async move {
                if number % 2 == 0 {
                    files.read(&path("large"), 1 << 30).await.map(drop)
                } else {
                    files.write(&path(format!("up{number}")), vec![7; 5_000_000].into(), None).await.map(drop)
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (stopped, took) = timed(ground.client.stop(&sandbox)).await;
        stopped.unwrap();
        let (mut done, mut refused) = (0, 0);
        while let Some(ended) =
            tokio::time::timeout(Duration::from_secs(60), transfers.join_next()).await.unwrap()
        {
            match ended.unwrap() {
                Ok(()) => done += 1,
                Err(client::Error::Refused(error)) => {
                    assert!(!error.fix.is_empty());
                    refused += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(done + refused, 100);
        ground.held(
            "P-17",
            &format!("stopped in {took:?} under 100 transfers: {done} were done, {refused} told why not"),
        );
    });
}

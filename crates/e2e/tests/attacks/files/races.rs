//! Attacks P-05, P-09, P-17 and U-08: files and directories that change during an operation.

use std::time::{Duration, Instant};

use api::ErrorCode;
use api::files::FilePath;
use api::layer::Compression;

use super::ground::{Ground, code, each, path, timed};

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
        if libc.renameat2(-100, base + b"/dir", -100, base + b"/link", 2) != 0:
            # gVisor exchanges no names in one step.
            for old, new in ((b"/dir", b"/old"), (b"/link", b"/dir"), (b"/old", b"/link")):
                os.rename(base + old, base + new)
        count += 1
threads = [threading.Thread(target=trade, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(count)
"#;

/// Python program that keeps replacing the content of a file in place, letter by letter. Between two contents
/// it pauses, so that some reads meet one content only.
const REPLACES: &str = r#"
import os, time
piece, file = 65536, os.open("changes", os.O_CREAT | os.O_RDWR)
def fill(letter):
    for at in range(0, 3 << 20, piece):
        os.pwrite(file, letter * piece, at)
        time.sleep(0.001)
fill(b"a")
open("ready", "w")
while not os.path.exists("end"):
    for letter in (b"b", b"a"):
        time.sleep(0.1)
        fill(letter)
"#;
/// Size of that file.
const REPLACED_BYTES: usize = 3 << 20;
/// Number of reads of that file.
const READS: usize = 40;
/// Duration of the walks under exchanged directories.
const WALKS_FOR: Duration = Duration::from_secs(5);

/// What walks of a tree did while its directories were exchanged with links.
#[derive(Debug, Default)]
struct Walks {
    listed: u32,
    packed: u32,
    copied: u32,
    removed: u32,
    /// Number of walks that reached a file outside the tree.
    left: u32,
    trades: u64,
}

impl Walks {
    /// Lists, packs, copies and removes a tree again and again.
    async fn of(ground: &Ground) -> Self {
        ground.files.write(&path("trade.py"), TRADES.into(), None).await.unwrap();
        ground.begin("python3 trade.py 6 > trades && touch traded").await;
        ground.until_there("race/3/link").await;
        let (mut walks, begun, race) = (Self::default(), Instant::now(), path("/workspace/race"));
        while begun.elapsed() < WALKS_FOR {
            if let Ok(listed) = ground.files.list(&race, 9).await {
                walks.listed += 1;
                assert!(listed.iter().all(|info| info.path.starts_with("/workspace/race/")), "{listed:?}");
                walks.left += u32::from(listed.iter().any(|info| info.path.ends_with("passwd")));
            }
            if let Ok(bytes) = packed(ground, &race).await {
                walks.packed += 1;
                walks.left += u32::from(bytes.windows(9).any(|window| window == b"root:x:0:"));
            }
            let copy = path("/workspace/copied");
            walks.copied += u32::from(ground.files.copy(&race, &copy, false).await.is_ok());
            walks.removed += u32::from(ground.files.remove(&copy, true).await.is_ok());
        }
        ground.until_there("traded").await;
        walks.trades = ground.run("cat trades").await.parse().unwrap();
        walks
    }
}

async fn packed(ground: &Ground, place: &FilePath) -> Result<Vec<u8>, client::Error> {
    let mut archive = ground.files.pack(place, Compression::None).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = archive.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Verifies that attack P-05 fails: a walk never leaves its tree, even if directories in the tree are
/// exchanged with symlinks.
#[test]
#[ignore = "starts real sandboxes"]
fn a_walk_never_leaves_its_tree_whatever_trades_places_under_it() {
    each(async |ground| {
        // Control: without the defence, the same walks reach files of `/etc`.
        let control = ground.without_defence("P-05").await;
        let naive = Walks::of(&control).await;
        assert!(naive.left > 0, "control: {naive:?}");
        control.end().await;
        let walks = Walks::of(ground).await;
        assert_eq!(walks.left, 0, "{walks:?}");
        let each = [walks.listed, walks.packed, walks.copied, walks.removed];
        assert!(each.iter().all(|done| *done > 0) && walks.trades > 1000, "{walks:?}");
        ground.files.remove(&path("/workspace/race"), true).await.unwrap();
        assert_ne!(ground.run("wc -l < /etc/passwd").await, "0");
        ground.held("P-05", &format!("{walks:?}, without the defence {naive:?}"));
    });
}

/// What reads of a file returned while its content was replaced.
#[derive(Debug, Default)]
struct Reads {
    whole: usize,
    mixed: usize,
    changed: usize,
}

impl Reads {
    async fn of(ground: &Ground) -> Self {
        ground.files.write(&path("replace.py"), REPLACES.into(), None).await.unwrap();
        ground.begin("python3 replace.py").await;
        ground.until_there("ready").await;
        let mut reads = Self::default();
        for _ in 0..READS {
            match ground.files.read(&path("changes"), 1 << 30).await {
                Ok(bytes) => {
                    assert_eq!(bytes.len(), REPLACED_BYTES);
                    let is_whole = bytes.iter().all(|byte| *byte == bytes[0]);
                    *if is_whole { &mut reads.whole } else { &mut reads.mixed } += 1;
                }
                error => {
                    assert_eq!(code(error), ErrorCode::Conflict);
                    reads.changed += 1;
                }
            }
        }
        ground.run("touch end").await;
        reads
    }
}

/// Verifies that attack P-09 fails: reading a file while it changes returns one consistent version or an
/// error.
#[test]
#[ignore = "starts real sandboxes"]
fn a_file_that_changes_while_it_is_read_is_never_taken_for_whole() {
    each(async |ground| {
        // Control: without the defence, some of the same reads return a mixture of two versions.
        let control = ground.without_defence("P-09").await;
        let naive = Reads::of(&control).await;
        assert!(naive.mixed > 0 && naive.changed == 0, "control: {naive:?}");
        control.end().await;
        // While a file grows, a read returns its initial content and possibly more, or an error.
        ground.run("head -c 8000000 /dev/zero > grows").await;
        ground.begin("while [ ! -e stop ]; do echo more >> grows; done").await;
        match ground.files.read(&path("grows"), 1 << 30).await {
            Ok(bytes) => assert!(bytes.len() >= 8_000_000, "{} bytes", bytes.len()),
            error => assert_eq!(code(error), ErrorCode::Conflict),
        }
        ground.run("touch stop").await;
        let reads = Reads::of(ground).await;
        assert!(reads.mixed == 0 && reads.whole > 0 && reads.changed > 0, "{reads:?}");
        ground.held("P-09", &format!("{reads:?}, without the defence {naive:?}"));
    });
}

/// Verifies that attack U-08 fails: two concurrent writers leave the complete content of one of them.
#[test]
#[ignore = "starts real sandboxes"]
fn two_who_write_one_file_leave_one_of_the_two() {
    each(async |ground| {
        // Control: if the guest writes in place, the same writes leave a mixture, or no file.
        let control = ground.without_defence("U-08").await;
        let naive = not_whole(&control, 30).await;
        assert!(naive > 0, "control: {naive} of 30 pairs of writes");
        control.end().await;
        assert_eq!(not_whole(ground, 10).await, 0);
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
        let figures =
            format!("20 writes of one name, 2 lies, 1 wrong offset; without the defence {naive} mixtures");
        ground.held("U-08", &figures);
    });
}

/// Writes two contents to one file at the same time, several times, and returns how often neither of them is
/// there afterwards.
async fn not_whole(ground: &Ground, pairs: usize) -> usize {
    let contents = [b'1', b'2'].map(|byte| vec![byte; 2_000_000]);
    let (place, mut broken) = (path("both"), 0);
    for _ in 0..pairs {
        let [one, other] = contents.clone().map(|bytes| ground.files.write(&place, bytes.into(), None));
        let (first, second) = tokio::join!(one, other);
        let there = ground.files.read(&place, 1 << 30).await.is_ok_and(|bytes| contents.contains(&bytes));
        broken += usize::from(!(there && first.is_ok() && second.is_ok()));
    }
    broken
}

/// Verifies that attack P-17 fails: stopping a sandbox ends every transfer with a result or an error.
#[test]
#[ignore = "starts real sandboxes"]
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
        assert!(refused > 0, "all transfers were done before the stop");
        println!("P-17: stopped in {took:?} under 100 transfers: {done} were done, {refused} told why not");
        let why = "no defence can be turned off; the stop interrupted some transfers";
        e2e::attack::held_without_control("P-17", ground.tier, why);
    });
}

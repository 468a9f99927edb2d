//! Tests of the log, each with a real file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use api::code::Code;
use api::exec::ExecSpec;

use super::chain::LINE_BYTES_MAX;
use super::files::{beside, full};
use super::writer::{Word, Writer};
use super::{Act, Audit, Bounds, DETAIL_BYTES_MAX, Damaged, Entry, Error, QUEUE, Verified};

/// Limits for 4 files of 4 KiB.
const SMALL: Bounds = Bounds { bytes_max: 16 << 10 };

fn verify(path: &Path) -> Result<Verified, Damaged> {
    super::verify(path, false, None)
}

struct Place {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    Place { path: directory.path().join("audit.log"), _directory: directory }
}

/// Opens the log. Retries while the log is in use, because a writer that was just dropped may need a moment
/// to close the file.
fn open(path: &Path) -> Audit {
    let began = Instant::now();
    loop {
        match Audit::open(path, 1000, Bounds::default()) {
            Err(Error::InUse { .. }) if began.elapsed().as_secs() < 10 => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

async fn written(path: &Path, entries: u64) {
    let audit = open(path);
    for number in 0..entries {
        audit.record(
            Entry::new(number, Act::Lease).key("k1").project("p").detail(&format!("number {number}")),
        );
    }
    audit.flush().await;
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn every_entry_is_a_line_that_follows_from_the_one_before_it() {
    let place = place();
    let audit = open(&place.path);
    let (sandbox, exec) = ("s1".parse().unwrap(), "e1".parse().unwrap());
    audit.record(Entry::new(5, Act::AuthenticateFailed));
    audit.record(
        Entry::new(6, Act::Exec).key("k1").project("p").sandbox(&sandbox).exec(&exec).argv(&["rm", "-rf"]),
    );
    audit.flush().await;
    let lines = lines(&place.path);
    assert_eq!(lines[0]["act"], "authenticate_failed");
    assert_eq!(lines[0]["prev"], "0".repeat(64));
    assert_eq!((&lines[1]["seq"], &lines[1]["at_ms"]), (&1.into(), &6.into()));
    assert_eq!((&lines[1]["key"], &lines[1]["project"]), (&"k1".into(), &"p".into()));
    assert_eq!((&lines[1]["sandbox"], &lines[1]["exec"]), (&"s1".into(), &"e1".into()));
    assert_eq!(fs::metadata(&place.path).unwrap().permissions().mode() & 0o777, 0o600);
    let verified = verify(&place.path).unwrap();
    assert_eq!((verified.entries, verified.torn), (2, false));
}

#[tokio::test]
async fn the_words_of_a_command_are_not_written() {
    let place = place();
    let audit = open(&place.path);
    audit.record(Entry::new(1, Act::Exec).argv(&["echo", "hunter2"]));
    audit.record(Entry::new(1, Act::Exec).argv(&["echo hunter2"]));
    audit.record(Entry::new(1, Act::Exec).argv(&["echo", "hunter2"]));
    audit.flush().await;
    assert!(!fs::read_to_string(&place.path).unwrap().contains("hunter2"));
    let lines = lines(&place.path);
    assert!(lines[0]["detail"].as_str().unwrap().starts_with("argv sha256:"));
    assert_eq!(lines[0]["detail"], lines[2]["detail"]);
    assert_ne!(lines[0]["detail"], lines[1]["detail"], "where one word ends counts");
}

#[tokio::test]
async fn of_code_its_length_and_hash_are_written_and_never_its_text() {
    let place = place();
    let audit = open(&place.path);
    let code = Code { source: "password = 'hunter2'".into(), ..Code::default() };
    let spec = ExecSpec { code: Some(code), ..ExecSpec::default() };
    audit.record(Entry::new(1, Act::Exec).command(&spec));
    audit.flush().await;
    assert!(!fs::read_to_string(&place.path).unwrap().contains("hunter2"));
    let detail = lines(&place.path)[0]["detail"].clone();
    assert!(detail.as_str().unwrap().starts_with("python <code, 20 bytes> sha256:"), "{detail}");
}

#[tokio::test]
async fn text_of_a_stranger_is_cut_and_escaped() {
    let place = place();
    let audit = open(&place.path);
    let hostile = "\u{1b}[2J\n{\"seq\":0}\u{202e}\0\"\\";
    audit.record(Entry::new(u64::MAX, Act::AuthenticateFailed).key(hostile).project(hostile).detail(hostile));
    let long = "\"".repeat(100_000);
    audit.record(Entry::new(u64::MAX, Act::AuthenticateFailed).key(&long).project(&long).detail(&long));
    audit.flush().await;
    let text = fs::read_to_string(&place.path).unwrap();
    assert!(text.chars().all(|c| c.is_ascii_graphic() || c == ' ' || c == '\n'), "{text:?}");
    assert_eq!(text.lines().count(), 2);
    assert!(text.lines().all(|line| line.len() < LINE_BYTES_MAX / 2));
    assert_eq!(lines(&place.path)[1]["detail"].as_str().unwrap().len(), DETAIL_BYTES_MAX);
    verify(&place.path).unwrap();
}

#[tokio::test]
async fn the_chain_goes_on_when_the_log_is_opened_again() {
    let place = place();
    written(&place.path, 3).await;
    written(&place.path, 2).await;
    let first = verify(&place.path).unwrap();
    assert_eq!(first.entries, 5);
    written(&place.path, 1).await;
    assert_ne!(verify(&place.path).unwrap().head, first.head);
}

#[tokio::test]
async fn a_log_has_one_writer() {
    let place = place();
    let _first = open(&place.path);
    assert!(matches!(Audit::open(&place.path, 1, Bounds::default()), Err(Error::InUse { .. })));
}

#[tokio::test]
async fn whatever_is_changed_taken_out_or_put_in_shows() {
    let place = place();
    written(&place.path, 5).await;
    let whole = fs::read_to_string(&place.path).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let forged = [
        (whole.replace("number 2", "number 9"), 4),
        ([lines[0], lines[1], lines[3], lines[4]].join("\n") + "\n", 3),
        ([lines[0], lines[2], lines[1], lines[3], lines[4]].join("\n") + "\n", 2),
        ([lines[0], lines[0], lines[1], lines[2]].join("\n") + "\n", 2),
        (lines[1..].join("\n") + "\n", 0),
        (lines[..3].join("\n") + "\n", 0),
        (whole.replacen("\n", "\n\n", 1), 2),
        (whole.clone() + "{}\n", 6),
        (whole.clone() + &"x".repeat(LINE_BYTES_MAX + 1), 6),
    ];
    for (text, line) in forged {
        fs::write(&place.path, &text).unwrap();
        assert_eq!(verify(&place.path).unwrap_err().line, line, "{text}");
    }
    assert!(verify(&place.path.with_extension("none")).is_err());
}

#[tokio::test]
async fn a_line_torn_by_a_kill_is_cut_off_and_the_log_says_so() {
    // Attack L-01: a kill leaves an incomplete line, which the next writer removes and records.
    let place = place();
    written(&place.path, 3).await;
    let whole = fs::read(&place.path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for length in (0..20).chain(last..=whole.len()) {
        fs::write(&place.path, &whole[..length]).unwrap();
        // Remove the head file, which would reveal the missing lines.
        let _ = fs::remove_file(beside(&place.path, ".head"));
        let before = verify(&place.path).unwrap();
        assert_eq!(before.torn, length > 0 && whole[length - 1] != b'\n');
        written(&place.path, 1).await;
        let after = verify(&place.path).unwrap();
        assert_eq!(
            (after.entries, after.torn),
            (before.entries + 1 + u64::from(before.torn), false),
            "{length}"
        );
        if before.torn {
            let entry = &lines(&place.path)[usize::try_from(before.entries).unwrap()];
            assert_eq!((&entry["act"], &entry["at_ms"]), (&"torn".into(), &1000.into()));
        }
    }
}

/// Runs this test again in a child process that only writes to the log, and kills the child.
#[test]
fn a_log_goes_on_after_its_writer_was_killed_at_any_time() {
    // Attack L-01: the process that writes the log is killed at an arbitrary time.
    const LOG: &str = "BELLGLASS_TEST_AUDIT_LOG";
    if let Some(path) = std::env::var_os(LOG) {
        let (audit, began) = (open(Path::new(&path)), Instant::now());
        // The time limit ends the child if the parent was killed first.
        while began.elapsed().as_secs() < 60 {
            audit.record(Entry::new(1, Act::Exec).detail("as fast as it can"));
        }
        return;
    }
    let place = place();
    let mut before = 0;
    for _ in 0..10 {
        let mut writer = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "audit::tests::a_log_goes_on_after_its_writer_was_killed_at_any_time"])
            .env(LOG, &place.path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let length = || fs::metadata(&place.path).map_or(0, |file| file.len());
        let began = length();
        while length() < began + 100_000 {
            std::thread::yield_now();
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        let after = verify(&place.path).unwrap().entries;
        assert!(after > before);
        before = after;
    }
    drop(open(&place.path));
    assert!(!verify(&place.path).unwrap().torn);
}

/// Writes a log with these limits.
fn rotated(path: &Path, entries: u64, bounds: Bounds) {
    let mut writer = Writer::open(path, 1, Arc::default(), bounds).unwrap();
    for number in 0..entries {
        writer.write(vec![Entry::new(number, Act::Lease).detail(&format!("number {number}"))]);
    }
    writer.sync(true);
}

#[test]
fn the_chain_goes_on_from_file_to_file_and_over_restarts() {
    // Verifies that the chain, which detects attack L-14, continues across files and restarts.
    let place = place();
    let large = Bounds { bytes_max: 16 * SMALL.file_bytes() };
    rotated(&place.path, 60, large);
    rotated(&place.path, 40, large);
    let files = full(&place.path).unwrap();
    assert!(files.len() >= 3, "{files:?}");
    let verified = verify(&place.path).unwrap();
    assert_eq!((verified.entries, verified.begins), (100, 0));
    rotated(&place.path, 1, large);
    super::verify(&place.path, false, Some(&verified.head)).unwrap();
    super::verify(&place.path, false, Some(&"0".repeat(64))).unwrap_err();
    // Simulate a server that was killed after it renamed a full file and before it created the next file.
    let next = super::files::numbered(&place.path, files.len() as u64 + 1);
    fs::rename(&place.path, next).unwrap();
    assert_eq!(verify(&place.path).unwrap().entries, 101);
    rotated(&place.path, 1, large);
    assert_eq!(verify(&place.path).unwrap().entries, 102);
}

#[test]
fn what_is_missing_or_changed_in_any_file_shows() {
    // Attack L-14: lines or files of the log are changed or removed.
    let place = place();
    rotated(&place.path, 100, Bounds { bytes_max: 16 * SMALL.file_bytes() });
    let files = full(&place.path).unwrap();
    let second = files[1].1.clone();
    let whole = fs::read_to_string(&second).unwrap();
    let shows = |what: &str| {
        let found = verify(&place.path).unwrap_err();
        println!("{what}: {found}");
        found
    };
    fs::write(&second, whole.replacen("number", "nomber", 1)).unwrap();
    assert_eq!(shows("changed").line, 2);
    fs::write(&second, whole.split_inclusive('\n').skip(1).collect::<String>()).unwrap();
    assert!(shows("its first line").what.contains("1 entries are missing"));
    let last = whole.trim_end().rfind('\n').unwrap() + 1;
    fs::write(&second, &whole[..last]).unwrap();
    assert!(shows("its last line").what.contains("1 entries are missing"));
    fs::remove_file(&second).unwrap();
    assert!(shows("a file between").what.contains("entries are missing before this line"));
    fs::write(&second, &whole).unwrap();
    verify(&place.path).unwrap();
    let first = fs::read(&files[0].1).unwrap();
    fs::remove_file(&files[0].1).unwrap();
    assert!(shows("the first file").what.contains("entries of the log are missing"));
    assert!(super::verify(&place.path, true, None).unwrap().begins > 0, "whoever moved it away says so");
    fs::write(&files[0].1, first).unwrap();
    let newest = fs::read_to_string(&place.path).unwrap();
    fs::write(&place.path, "").unwrap();
    assert!(shows("the newest lines").what.contains("missing at the end"));
    fs::write(&place.path, newest).unwrap();
    verify(&place.path).unwrap();
}

#[test]
fn the_oldest_files_are_removed_and_the_rest_is_still_whole() {
    // Verifies that the size limit, which removes the oldest files, does not look like attack L-14.
    let place = place();
    rotated(&place.path, 300, SMALL);
    let files = full(&place.path).unwrap();
    assert_eq!(files.len(), SMALL.files_max());
    let bytes: u64 = files.iter().map(|(_, path)| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes <= SMALL.bytes_max + SMALL.file_bytes(), "{bytes}");
    let verified = verify(&place.path).unwrap();
    assert!(verified.begins > 100 && verified.begins + verified.entries > 300, "{verified:?}");
    fs::remove_file(&files[0].1).unwrap();
    verify(&place.path).unwrap_err();
}

#[test]
fn a_log_that_was_cut_says_so_when_it_is_opened_again() {
    // Attack L-14: the end of the log is removed before the log is opened again.
    let place = place();
    rotated(&place.path, 10, Bounds::default());
    let whole = fs::read_to_string(&place.path).unwrap();
    fs::write(&place.path, whole.split_inclusive('\n').take(7).collect::<String>()).unwrap();
    rotated(&place.path, 1, Bounds::default());
    let verified = verify(&place.path).unwrap();
    assert_eq!((verified.entries, verified.cuts), (9, vec![7]));
    let said = lines(&place.path)[7].clone();
    assert_eq!(
        (&said["act"], &said["detail"]),
        (&"audit_cut".into(), &"3 entries are missing before this one".into())
    );
}

#[tokio::test]
async fn an_end_that_is_not_ours_is_damage() {
    let place = place();
    for text in ["hello\n".to_owned(), "x".repeat(100_000), "{}\n".into(), "\0".repeat(5000), "\n".into()] {
        fs::write(&place.path, &text).unwrap();
        assert!(
            matches!(Audit::open(&place.path, 1, Bounds::default()), Err(Error::Damaged(_))),
            "{:.20}",
            text
        );
        assert_eq!(fs::read_to_string(&place.path).unwrap(), text, "nothing is cut off");
    }
}

#[tokio::test]
async fn a_full_queue_never_blocks_and_what_is_missed_is_counted() {
    let place = place();
    let missed = Arc::<AtomicU64>::default();
    let writer = Writer::open(&place.path, 1, Arc::clone(&missed), Bounds::default()).unwrap();
    let (queue, words) = mpsc::sync_channel(QUEUE);
    let audit = Audit { queue, missed: Arc::clone(&missed) };
    // The writer thread is not running yet.
    for number in 0..QUEUE as u64 + 17 {
        audit.record(Entry::new(number, Act::Exec));
    }
    assert_eq!(missed.load(Ordering::Relaxed), 17);
    let thread = std::thread::spawn(move || writer.run(&words));
    audit.flush().await;
    drop(audit);
    thread.join().unwrap();
    let lines = lines(&place.path);
    assert_eq!(lines.len(), QUEUE + 1);
    let told: Vec<_> =
        lines.iter().filter(|line| line["act"] == "missed").map(|line| &line["detail"]).collect();
    assert_eq!(told, ["17 entries"]);
    verify(&place.path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn entries_of_many_at_once_are_all_written_or_counted() {
    let place = place();
    let audit = open(&place.path);
    let mut recording = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let audit = audit.clone();
        recording.spawn(async move {
            for number in 0..5000 {
                audit.record(Entry::new(number, Act::Exec).key("k"));
            }
        });
    }
    recording.join_all().await;
    audit.flush().await;
    // Together with the next entry, the writer also records the number of missed entries.
    audit.record(Entry::new(1, Act::ServerStop));
    audit.flush().await;
    let (mut written, mut missed) = (0, 0);
    for line in lines(&place.path) {
        match line["act"].as_str().unwrap() {
            "exec" => written += 1,
            "missed" => {
                missed +=
                    line["detail"].as_str().unwrap().trim_end_matches(" entries").parse::<u64>().unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(written + missed, 40_000);
    verify(&place.path).unwrap();
}

#[tokio::test]
async fn everything_recorded_is_written_when_the_log_is_dropped() {
    let place = place();
    let audit = open(&place.path);
    for number in 0..2000 {
        audit.record(Entry::new(number, Act::Exec));
    }
    drop(audit);
    drop(open(&place.path));
    assert_eq!(verify(&place.path).unwrap().entries, 2000);
}

#[tokio::test]
async fn a_disk_that_is_full_loses_entries_and_says_so_once_it_has_room() {
    // Attack L-05: the server runs out of a resource. In this test, the resource is disk space.
    let place = place();
    let missed = Arc::<AtomicU64>::default();
    let mut writer = Writer::open(&place.path, 1, Arc::clone(&missed), Bounds::default()).unwrap();
    writer.write(vec![Entry::new(1, Act::Exec)]);
    let good = fs::metadata(&place.path).unwrap().len();
    let file = writer.swap_file(fs::OpenOptions::new().append(true).open("/dev/full").unwrap());
    writer.write(vec![Entry::new(2, Act::Exec), Entry::new(3, Act::Exec)]);
    writer.write(vec![Entry::new(4, Act::Exec)]);
    assert_eq!(missed.load(Ordering::Relaxed), 3);
    // Simulate a partial write: the disk had space for only half of a line.
    (&file).write_all(b"{\"seq\":1,").unwrap();
    writer.swap_file(file);
    writer.write(vec![Entry::new(5, Act::Exec)]);
    let lines = lines(&place.path);
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[1]["at_ms"], &lines[2]["detail"]), (&5.into(), &"3 entries".into()));
    assert_eq!(verify(&place.path).unwrap().entries, 3);
    assert!(fs::metadata(&place.path).unwrap().len() > good);
}

#[test]
fn a_word_in_the_queue_is_small() {
    assert!(size_of::<Word>() <= 16, "the queue has room for {QUEUE} of them from the start");
}

//! Tests of change events and their overflow.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use api::files::{Change, FileEvent};

use super::*;

fn watching(place: &Path, deep: bool) -> Served {
    let mut served = Served::new(&FileAsk::Watch { path: path(place), deep });
    served.part(PartKind::End, b"{}");
    assert_eq!(served.head(), Ok(FileAnswer::Streams));
    served
}

fn event(served: &mut Served) -> FileEvent {
    match served.next().unwrap() {
        Got::Data(bytes) => serde_json::from_slice(&bytes).unwrap(),
        Got::Head(_) | Got::End(_) => panic!("no event"),
    }
}

/// Reads until all of these events have been reported.
fn until(served: &mut Served, root: &Path, wanted: &[(Change, &str)]) {
    let mut missing: HashSet<(Change, String)> =
        wanted.iter().map(|(change, name)| (*change, root.join(name).to_str().unwrap().to_owned())).collect();
    let begun = Instant::now();
    while !missing.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "not told: {missing:?}");
        let told = event(served);
        missing.remove(&(told.event, told.path.unwrap_or_default()));
    }
}

#[test]
fn what_happens_below_a_directory_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir(root.join("old")).unwrap();
    let mut served = watching(root, true);
    fs::write(root.join("file"), "1").unwrap();
    fs::write(root.join("old/inner"), "1").unwrap();
    until(
        &mut served,
        root,
        &[(Change::Created, "file"), (Change::Modified, "file"), (Change::Created, "old/inner")],
    );
    fs::create_dir(root.join("new")).unwrap();
    fs::write(root.join("new/inner"), "1").unwrap();
    until(&mut served, root, &[(Change::Created, "new"), (Change::Created, "new/inner")]);
    fs::rename(root.join("file"), root.join("moved")).unwrap();
    fs::remove_file(root.join("old/inner")).unwrap();
    until(
        &mut served,
        root,
        &[(Change::Removed, "file"), (Change::Created, "moved"), (Change::Removed, "old/inner")],
    );
}

#[test]
fn a_storm_that_nobody_reads_is_told_as_an_overflow_and_costs_little() {
    // Attack P-16: event storms.
    let directory = tempfile::tempdir().unwrap();
    let mut served = watching(directory.path(), false);
    for number in 0..50_000 {
        let place = directory.path().join(format!("{number:0>60}"));
        fs::write(&place, "x").unwrap();
        fs::remove_file(&place).unwrap();
    }
    let status = fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    let kilobytes: u64 = peak.trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 32_000, "{kilobytes} KiB for a storm");
    fs::write(directory.path().join("after"), "x").unwrap();
    let (mut events, mut overflows) = (0, 0);
    loop {
        let told = event(&mut served);
        events += 1;
        overflows += u64::from(told.event == Change::Overflow);
        assert!(events < 50_000, "what was kept is bounded");
        if overflows > 0 && told.event == Change::Overflow {
            break;
        }
    }
}

#[test]
fn a_watch_ends_when_nobody_listens() {
    let directory = tempfile::tempdir().unwrap();
    let mut served = watching(directory.path(), false);
    let child = &mut served.child;
    // Close our end of the process's standard output by replacing it.
    served.stdout = Command::new("true").stdout(Stdio::piped()).spawn().unwrap().stdout.take().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(5), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

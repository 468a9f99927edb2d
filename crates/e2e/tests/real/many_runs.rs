//! Many runs of a script that uses everything that a fork can break: pandas, which is imported before the
//! fork; polars with its threads, which is imported after the fork; and threads of its own. `BELLGLASS_RUNS`
//! sets the number of runs. `just soak` uses 10,000.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use e2e::room::{Room, in_a_room_with, python};
use e2e::service::Service;

const SCRIPT: &str = r#"
import threading
import pandas as pd
import polars as pl
totals = []
def work(n):
    totals.append(int(pd.DataFrame({"a": range(n)})["a"].sum()))
threads = [threading.Thread(target=work, args=(n,)) for n in (10, 20, 30)]
for thread in threads: thread.start()
for thread in threads: thread.join()
frame = pl.DataFrame({"g": [1, 2] * 500, "v": range(1000)})
print(sum(totals), frame.group_by("g").agg(pl.col("v").sum()).sort("g")["v"].to_list())
"#;
const SAID: &str = "670 [249500, 250000]\n";
/// Number of concurrent runs.
const ABREAST: usize = 4;
/// Deadline of one run, on a machine that executes four runs concurrently under additional load.
const RUN_MS: u64 = 60_000;

/// Repeated runs that use pandas, polars and threads do not crash, hang or leak descriptors.
#[test]
#[ignore = "starts real sandboxes"]
fn many_runs_with_threads_neither_crash_nor_hang() {
    let runs = std::env::var("BELLGLASS_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let limits = Limits {
        memory_bytes: 2 << 30,
        cpu_millis: 2000,
        pids: 512,
        ttl_ms: 24 * 3_600_000,
        ..Limits::default()
    };
    in_a_room_with(limits, &[], async |service, room| {
        // Under gVisor each run takes a second, so use only a tenth of the runs there.
        let runs = if room.is_container() { runs } else { runs / 10 };
        let spec = ExecSpec { deadline_ms: Some(RUN_MS), ..python(SCRIPT) };
        room.exec(&spec).await.well();
        let before = descriptors(service, room);
        let times = all(room, &spec, runs).await;
        let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!(
            "{} runs on {:?}, {ABREAST} abreast: p50 {p50:?}, p99 {p99:?}, none failed",
            times.len(),
            room.tier
        );
        assert_eq!(descriptors(service, room), before, "of process 1");
        assert_eq!(room.run("print(1)").await.well().stdout, "1\n");
        room.until_gone("real_runs", Duration::from_secs(1)).await;
    });
}

/// Executes the given number of runs and returns their durations in ascending order.
async fn all(room: &Room, spec: &ExecSpec, runs: usize) -> Vec<Duration> {
    let left = Arc::new(AtomicUsize::new(runs));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..ABREAST {
        let (room, spec, left) = (room.clone(), spec.clone(), Arc::clone(&left));
        workers.spawn(async move {
            let mut times = Vec::new();
            let next = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            while let Ok(number) = next() {
                let begun = Instant::now();
                let ran = room.exec(&spec).await;
                assert_eq!(ran.end.outcome, Outcome::Exited { code: 0 }, "{number} to go: {ran:?}");
                assert_eq!(ran.stdout, SAID, "{number} to go: {ran:?}");
                times.push(begun.elapsed());
            }
            times
        });
    }
    let mut times = workers.join_all().await.concat();
    times.sort();
    assert_eq!(times.len(), runs);
    times
}

/// Returns the number of open descriptors of the sandbox's process 1, counted on the host.
fn descriptors(service: &Service, room: &Room) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", service.process_of(&room.id))).unwrap().count()
}

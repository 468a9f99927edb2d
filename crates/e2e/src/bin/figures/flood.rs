//! Throughput of one exec's output, without a reader and with a reader that receives every byte.

use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome, OutputMode, Stream};
use e2e::Lab;
use e2e::lab::{exec, start};
use node::{Event, Sandbox};

/// Polling interval while an exec without a reader runs. The guest measures the duration, so the interval
/// does not add to it.
const LOOK: Duration = Duration::from_millis(20);

/// Durations of an exec that produces a flood of output.
pub(crate) struct Flood {
    /// The name of the runtime.
    pub name: String,
    /// Size of the output.
    pub bytes: u64,
    /// Duration of the command in mode `keep`, without a reader.
    pub kept: Duration,
    /// Time in mode `block`, with one reader, until the reader has received the last byte and the end.
    pub read: Duration,
}

/// Measures both durations in one sandbox of this lab.
pub(crate) async fn run(lab: &Lab, bytes: u64) -> Flood {
    let sandbox = lab.sandbox().await;
    let kept = unread(&sandbox, bytes).await;
    let read = read(&sandbox, bytes).await;
    sandbox.stop(Duration::ZERO).await.unwrap();
    Flood { name: lab.runtime.name().into(), bytes, kept, read }
}

async fn unread(sandbox: &Sandbox, bytes: u64) -> Duration {
    let mut exec = start(sandbox, &spec(bytes, OutputMode::Keep)).await.unwrap();
    let runs = async || {
        let listed = sandbox.execs().await.unwrap();
        listed.iter().any(|info| info.id == *exec.id() && info.outcome.is_none())
    };
    while runs().await {
        tokio::time::sleep(LOOK).await;
    }
    // Skip the output, because only the exec's end is needed.
    exec.seek(bytes, 0, 0);
    let end = exec.collect().await.unwrap().end;
    assert_eq!((end.outcome, end.stdout_bytes), (Outcome::Exited { code: 0 }, bytes));
    Duration::from_micros(end.duration_us)
}

async fn read(sandbox: &Sandbox, bytes: u64) -> Duration {
    let began = Instant::now();
    let mut exec = start(sandbox, &spec(bytes, OutputMode::Block)).await.unwrap();
    let mut seen = 0;
    loop {
        match exec.next().await.unwrap() {
            Some(Event::Data { stream: Stream::Stdout, bytes, .. }) => seen += bytes.len() as u64,
            Some(Event::End(end)) => {
                assert_eq!((end.outcome, seen), (Outcome::Exited { code: 0 }, bytes));
                return began.elapsed();
            }
            other => panic!("{other:?}"),
        }
    }
}

fn spec(bytes: u64, output: OutputMode) -> ExecSpec {
    let count = bytes.to_string();
    ExecSpec { output, deadline_ms: Some(600_000), ..exec(&["head", "-c", &count, "/dev/zero"]) }
}

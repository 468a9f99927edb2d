//! Interrupts of cells, and the report that a context has lost its state.

use std::time::{Duration, Instant};

use api::code::{Language, Loss};
use api::exec::{ExecSpec, Outcome};
use e2e::room::{Room, cell, in_a_room};

/// Maximum time from an interrupt to the end of the cell, regardless of its code.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Cells that react to an interrupt (`HEED`), and cells that cannot or do not react to it (`DO_NOT`).
const HEED: [(&str, &str); 5] = [
    ("a loop", "while True: pass"),
    ("a nap", "import time; time.sleep(100)"),
    ("many short calls", "import numpy as np\na = np.random.rand(200_000)\nwhile True: np.sort(a)"),
    ("a child", "!sleep 100"),
    ("a child that does not", "!trap '' INT; while :; do sleep 0.1; done"),
];
const DO_NOT: [(&str, &str); 3] = [
    ("one long call", "sum(range(10**11))"),
    ("who catches it", "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass"),
    (
        "who ignores it",
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    ),
];

/// Every cell ends within seconds of an interrupt. If the interpreter had to be killed, the loss of its state
/// is reported.
#[test]
#[ignore = "starts real sandboxes"]
fn whatever_a_cell_does_it_is_ended_in_seconds() {
    in_a_room(async |_, room| {
        let context = room.context(Language::Python).await;
        for (name, source) in HEED {
            room.cell(&context, "state = 'kept'").await.well();
            let (outcome, lost) = interrupted(room, &context, name, source).await;
            assert_eq!((outcome, lost), (Outcome::Cancelled, false), "{name}");
            assert_eq!(room.cell(&context, "state").await.well().value(), "'kept'", "{name}");
        }
        room.until_gone("sleep 0.1; done", Duration::from_secs(1)).await;
        for (name, source) in DO_NOT {
            room.cell(&context, "state = 'kept'").await.well();
            let (outcome, lost) = interrupted(room, &context, name, source).await;
            assert_eq!((outcome, lost), (Outcome::Cancelled, true), "{name}");
            let next = room.cell(&context, "'state' in globals()").await;
            assert_eq!((next.value(), next.restarted()), ("False", Some(Loss::Killed)), "{name}: {next:?}");
        }
        // A deadline also interrupts the cell, and is reported as a timeout.
        room.cell(&context, "state = 'kept'").await.well();
        let spec = ExecSpec { deadline_ms: Some(1000), ..cell(&context, "print('begun')\nwhile True: pass") };
        let late = room.exec(&spec).await;
        assert_eq!((late.end.outcome.clone(), late.end.state_lost), (Outcome::Timeout, false), "{late:?}");
        assert_eq!(late.stdout, "begun\n");
        assert_eq!(room.cell(&context, "state").await.well().value(), "'kept'");
    });
}

/// Interrupts a cell shortly after its start. Returns the outcome, and whether the context lost its state.
async fn interrupted(room: &Room, context: &api::ContextId, name: &str, source: &str) -> (Outcome, bool) {
    let exec = room.client.exec(&room.id, &cell(context, source)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let since = Instant::now();
    room.client.interrupt_context(&room.id, context).await.unwrap();
    let done = exec.collect().await.unwrap();
    eprintln!("interrupted {name}: {:?}, lost {}", since.elapsed(), done.end.state_lost);
    assert!(since.elapsed() < ENDS_WITHIN, "{name}: {:?}", since.elapsed());
    (done.end.outcome, done.end.state_lost)
}

/// An exit, a crash, an out-of-memory kill and a restart are reported as lost state, and the next cell works
/// normally.
#[test]
#[ignore = "starts real sandboxes"]
fn lost_state_is_told_and_the_next_cell_works() {
    in_a_room(async |_, room| {
        let context = room.context(Language::Python).await;
        for (source, outcome) in [
            ("import os; os._exit(7)", Outcome::Exited { code: 7 }),
            ("import os; os.kill(os.getpid(), 11)", Outcome::Signaled { signal: 11 }),
            ("import os; os.execv('/bin/true', ['true'])", Outcome::Exited { code: 0 }),
        ] {
            let ended = room.cell(&context, source).await;
            assert_eq!(
                (ended.end.outcome.clone(), ended.end.state_lost),
                (outcome, true),
                "{source}: {ended:?}"
            );
            let next = room.cell(&context, "1 + 1").await.well();
            assert_eq!((next.value(), next.restarted()), ("2", Some(Loss::Ended)), "{source}");
            assert_eq!(room.cell(&context, "1").await.restarted(), None, "said once");
        }
        room.cell(&context, "x = 1").await.well();
        let info = room.client.restart_context(&room.id, &context).await.unwrap();
        assert_eq!(info.lost, Some(Loss::Restarted));
        let next = room.cell(&context, "'x' in globals()").await;
        assert_eq!((next.value(), next.restarted()), ("False", Some(Loss::Restarted)));
        // Under gVisor, exceeding the memory limit would end the sandbox.
        if room.is_container() {
            let other = room.context(Language::Python).await;
            let full = room.cell(&context, "b = bytearray(3 << 30)").await;
            assert_eq!((full.end.outcome.clone(), full.end.state_lost), (Outcome::Oom, true), "{full:?}");
            let memory = full.end.memory.unwrap();
            assert!(memory.limit_bytes == 1 << 30 && memory.peak_bytes > 900 << 20, "{memory:?}");
            for context in [&context, &other] {
                let next = room.cell(context, "1").await.well();
                assert_eq!(next.restarted(), Some(Loss::Oom), "{next:?}");
            }
        }
    });
}

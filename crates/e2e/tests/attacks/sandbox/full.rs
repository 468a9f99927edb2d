//! Attack O-20: user code has filled the disk, and the space reserved for output is used up too.

use std::time::Duration;

use api::exec::{ExecSpec, Outcome, OutputMode};
use api::limits;
use e2e::lab::{collect, start, text};
use node::Sandbox;

use super::field::{Field, OCI, OCI_BOTH, small, withstand};

/// Size of a large output, excluding its last line.
const BYTES: u64 = 9_000_000;
const LAST: &str = "last line\n";
const ALL: u64 = BYTES + LAST.len() as u64;
/// Size of the last part of an output, which is always retained.
const END_BYTES: usize = 32 * 1024;
/// Maximum number of execs that hold the reserved space at the same time.
const HOLDERS: usize = 12;
/// Number of execs that end with retained output. The disk has no space for the output of all of them.
const ENDED: usize = 8;

/// Verifies that attack O-20 (finding IM4) fails: if the output of ended execs uses up the reserved space,
/// new output still arrives. gVisor is excluded, because it reserves no space; the next test covers gVisor.
#[test]
#[ignore = "starts real sandboxes"]
fn output_is_waited_for_and_not_lost_when_the_disk_is_full() {
    withstand("O-20", OCI, async |field| {
        let sandbox = filled(field).await;
        let mut first = None;
        for _ in 0..ENDED {
            let exec = start(&sandbox, &writes(field, OutputMode::Keep, BYTES)).await.unwrap();
            first.get_or_insert_with(|| exec.id().clone());
            exec.collect().await.unwrap();
        }
        // Control: there is not enough space for all output, so at least a part of the first exec's output
        // has been discarded.
        let kept =
            sandbox.exec_reader(first.unwrap()).collect().await.map_or(0, |later| later.stdout.len() as u64);
        assert!(kept < ALL, "control: {kept} bytes of the first are kept");
        e2e::attack::count_control();
        for bytes in [BYTES, 200_000] {
            assert_whole(field, &sandbox, bytes).await;
        }
        let done = collect(&sandbox, &writes(field, OutputMode::Kill, BYTES / 2)).await;
        let lost = done.end.stdout_dropped;
        let is_honest = match done.end.outcome {
            Outcome::OutputLimit => true,
            Outcome::Exited { code } => code == 0 && lost == 0,
            Outcome::Signaled { .. }
            | Outcome::Timeout
            | Outcome::Oom
            | Outcome::Cancelled
            | Outcome::SandboxLost { .. }
            | Outcome::Unknown => false,
        };
        assert!(is_honest, "{:?}", done.end);
        assert_end_is_kept(field, &sandbox).await;
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack O-20 fails: if running execs hold the reserved space, the output of another exec
/// still arrives, using little memory.
#[test]
#[ignore = "starts real sandboxes"]
fn output_goes_on_while_running_execs_hold_the_reserve() {
    withstand("O-20", OCI_BOTH, async |field| {
        let undefended = {
            let _undefended = super::field::turn_off("O-20");
            filled(field).await
        };
        hold_all(field, &undefended).await;
        let sandbox = filled(field).await;
        let (holders, lost) = hold_all(field, &sandbox).await;
        // Control: the disk accepts no more data, and a mode that does not wait for space loses output.
        assert!(lost > 0, "control: nothing was lost");
        let done = collect(&undefended, &writes(field, OutputMode::Block, BYTES)).await;
        assert!(done.end.stdout_dropped > 0, "control: `block` loses nothing: {:?}", done.end);
        undefended.stop(Duration::ZERO).await.unwrap();
        println!("O-20 {}: {} hold the reserve", field.lab.runtime.name(), holders.len());
        assert_whole(field, &sandbox, BYTES).await;
        for holder in holders {
            holder.cancel().await.unwrap();
        }
        field.recovers(&sandbox).await;
    });
}

/// Starts a sandbox and lets user code fill its disk.
async fn filled(field: &Field<'_>) -> Sandbox {
    let sandbox = field.lab.sandbox_with(small()).await;
    let full = collect(&sandbox, &field.payload(&["fill"])).await;
    assert!(text(&full).contains("full ENOSPC"), "{full:?}");
    sandbox
}

/// Asserts that in mode `block` all output arrives.
async fn assert_whole(field: &Field<'_>, sandbox: &Sandbox, bytes: u64) {
    let done = collect(sandbox, &writes(field, OutputMode::Block, bytes)).await;
    let wanted = bytes + LAST.len() as u64;
    assert_eq!((done.stdout.len() as u64, done.end.stdout_dropped), (wanted, 0), "{:?}", done.end);
    assert!(text(&done).ends_with(LAST));
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
}

/// Asserts that in mode `keep` a later reader gets all output except for the bytes reported as dropped. The
/// last part of the output is included.
async fn assert_end_is_kept(field: &Field<'_>, sandbox: &Sandbox) {
    let exec = start(sandbox, &writes(field, OutputMode::Keep, BYTES)).await.unwrap();
    let id = exec.id().clone();
    let live = exec.collect().await.unwrap();
    assert_eq!(live.end.stdout_bytes, ALL);
    let later = sandbox.exec_reader(id).collect().await.unwrap();
    assert_eq!(later.stdout.len() as u64 + later.end.stdout_dropped, ALL, "{:?}", later.end);
    assert!(later.stdout.len() >= END_BYTES && text(&later).ends_with(LAST), "{}", later.stdout.len());
}

fn writes(field: &Field<'_>, output: OutputMode, bytes: u64) -> ExecSpec {
    let deadline_ms = Some(60_000);
    ExecSpec { output, deadline_ms, ..field.payload(&["write", &bytes.to_string()]) }
}

/// Starts execs that hold their output, until the disk accepts no more data. Returns these execs, and the
/// number of bytes that a further exec then lost.
async fn hold_all(field: &Field<'_>, sandbox: &Sandbox) -> (Vec<node::Exec>, u64) {
    let mut holders = Vec::new();
    for _ in 0..HOLDERS {
        let spec = ExecSpec { deadline_ms: Some(110_000), ..field.payload(&["hold", &BYTES.to_string()]) };
        let exec = start(sandbox, &spec).await.unwrap();
        let id = exec.id().clone();
        let written = async {
            loop {
                let all = sandbox.execs().await.unwrap();
                if all.iter().any(|one| one.id == id && one.stdout_bytes == ALL) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), written).await.unwrap();
        holders.push(exec);
        let exec = start(sandbox, &writes(field, OutputMode::Keep, BYTES)).await.unwrap();
        let id = exec.id().clone();
        exec.collect().await.unwrap();
        // A later reader gets only the retained output.
        let later = sandbox.exec_reader(id).collect().await.unwrap();
        let lost = ALL.saturating_sub(later.stdout.len() as u64);
        println!(
            "O-20 {}: {} hold, {lost} bytes of {ALL} are not kept",
            field.lab.runtime.name(),
            holders.len()
        );
        if lost > ALL.saturating_sub(limits::OUTPUT_BYTES) {
            return (holders, lost);
        }
    }
    (holders, 0)
}

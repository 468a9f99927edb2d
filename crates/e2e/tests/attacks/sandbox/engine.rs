//! Attacks on parts that exist only in sandboxes of an engine.

use super::field::{THROUGH, withstand};

const ENGINES: &[&str] = &["docker", "podman"];
/// Number of attempts that the payload makes.
const ACTS: usize = 8;

/// Verifies that attack A-19 fails: code in the sandbox cannot impersonate the node or process 1, or attack
/// the process that the engine starts in the sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn nobody_inside_speaks_for_the_node_or_for_process_1() {
    withstand("A-19", ENGINES, async |field| {
        let sandbox = field.sandbox().await;
        let control = field.attack(&sandbox, &["control"]).await;
        assert_eq!(control.code, Some(THROUGH), "{}", control.raw);
        assert_eq!(control.raw.matches(": through").count(), ACTS, "{}", control.raw);
        e2e::attack::count_control();
        let attack = field.attack(&sandbox, &["attack"]).await;
        assert_eq!((attack.code, attack.raw.matches(": through").count()), (Some(0), 0), "{}", attack.raw);
        assert_eq!(attack.raw.lines().count(), ACTS + 1, "all of it was tried: {}", attack.raw);
        field.recovers(&sandbox).await;
    });
}

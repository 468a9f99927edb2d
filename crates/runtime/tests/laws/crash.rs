//! A process that is killed in the middle of a start.
//!
//! The victim is this test's own executable, run again with one test named: that one starts a sandbox with a step after
//! which it kills itself.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use api::SandboxId;
use runtime::Runtime;
use runtime::oci::{Dirs, Flavor, Oci};

use crate::ground::Ground;

/// Has a process die after a step, and the next one clean up.
pub async fn kill_at(ground: &Ground, flavor: &Flavor, step: &str) {
    let id: SandboxId = format!("{}{}{step}", ground.prefix, flavor.name).parse().unwrap();
    let survivor = ground.oci(flavor.clone());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "crash::the_victim"])
        .env("VICTIM_DATA", &ground.dirs().data)
        .env("VICTIM_LAYER", ground.path("layer"))
        .env("VICTIM_ID", id.as_str())
        .env("VICTIM_RUNTIME", flavor.name)
        .env("VICTIM_STEP", step)
        .output()
        .unwrap();
    assert_eq!(status.status.signal(), Some(9), "{}: {status:?}", flavor.name);
    let listed = survivor.list().await.unwrap();
    let seen = listed.iter().find(|listed| listed.id == id);
    assert!(seen.is_some_and(|seen| !seen.owned), "after {step} the list says {seen:?}");
    survivor.stop(&id, Duration::ZERO).await.unwrap_or_else(|error| panic!("stop after {step}: {error}"));
    assert!(survivor.list().await.unwrap().iter().all(|listed| listed.id != id));
}

#[tokio::test]
#[ignore = "kills itself: run by the test of killed starts"]
async fn the_victim() {
    let word = |name: &str| std::env::var(name).unwrap();
    let flavor = if word("VICTIM_RUNTIME") == "runsc" { Flavor::runsc() } else { Flavor::runc() };
    let dirs = Dirs { data: word("VICTIM_DATA").into() };
    let oci = Oci::new(flavor.find().unwrap(), dirs).unwrap().crash_at(&word("VICTIM_STEP"));
    let mut spec = Ground::find("victim").unwrap().spec();
    spec.layers = vec![word("VICTIM_LAYER").into()];
    let started = oci.start(&word("VICTIM_ID").parse().unwrap(), &spec).await;
    panic!("survived: {started:?}");
}

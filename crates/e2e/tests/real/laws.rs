//! Tests of the laws (the behaviour that every backend must have) on every backend of this machine, on stock
//! runc, and on mutants that each break one law.
//!
//! These tests need root and the OCI runtimes; a missing prerequisite is a failure. On a machine that lacks some runtimes, `BELLGLASS_RUNTIMES` names the
//! runtimes to test. `youki` is tested only if it is installed.

mod ground;
mod mutants;
mod plain;

use std::time::Duration;

use runtime::engine::EngineKind;
use runtime::laws::{self, LawVerdict};
use runtime::oci::Flavor;
use runtime::{Inspect as _, Profile, Runtime};

use e2e::lab::wanted;
use ground::Ground;
use mutants::Group;

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn runc_keeps_all_laws() {
    if !wanted("runc") {
        return;
    }
    let ground = Ground::new("runc");
    let broken = broken(laws::all(&ground.fixture(Flavor::runc())).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn docker_keeps_all_laws() {
    if !wanted("docker") {
        return;
    }
    let ground = Ground::new("docker");
    let broken = broken(laws::all(&ground.engine_fixture(EngineKind::Docker)).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn podman_keeps_all_laws() {
    if !wanted("podman") {
        return;
    }
    let ground = Ground::new("podman");
    let broken = broken(laws::all(&ground.engine_fixture(EngineKind::Podman)).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn daytona_keeps_all_laws() {
    if !wanted("daytona") {
        return;
    }
    let ground = Ground::new("daytona");
    let broken = broken(laws::all(&ground.daytona_fixture()).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

/// `youki` keeps all laws. It is optional, because Debian does not package it.
#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn youki_keeps_all_laws_where_it_is_installed() {
    if Flavor::youki().find().is_err() {
        eprintln!("skipped: youki is not installed");
        return;
    }
    let ground = Ground::new("youki");
    let broken = broken(laws::all(&ground.fixture(Flavor::youki())).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn runsc_keeps_all_laws() {
    if !wanted("runsc") {
        return;
    }
    let ground = Ground::new("runsc");
    let broken = broken(laws::all(&ground.fixture(Flavor::runsc())).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn stock_runc_keeps_the_laws_of_lifecycle_and_channel() {
    if !wanted("runc") {
        return;
    }
    let ground = Ground::new("plain");
    let fixture = plain::fixture(&ground);
    let mut verdicts = laws::lifecycle(&fixture).await;
    verdicts.extend(laws::channel(&fixture).await);
    let broken = broken(verdicts);
    assert!(broken.is_empty(), "{broken:#?}");
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn every_mutant_breaks_the_law_it_was_made_to_break() {
    if !wanted("runc") {
        return;
    }
    let ground = Ground::new("mutant");
    for (mutation, law) in mutants::ALL {
        let fixture = mutants::fixture(&ground, mutation);
        let verdicts = match mutation.group() {
            Group::Lifecycle => laws::lifecycle(&fixture).await,
            Group::Channel => laws::channel(&fixture).await,
            Group::Walls => laws::walls(&fixture).await,
        };
        let broken = broken(verdicts);
        assert!(broken.iter().any(|(name, _)| *name == law), "{mutation:?} got through {law}: {broken:#?}");
        ground.stop_all().await;
    }
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn several_layers_are_laid_over_each_other() {
    if !wanted("runc") {
        return;
    }
    let ground = Ground::new("layers");
    let upper = ground.path("upper");
    std::fs::create_dir(&upper).unwrap();
    let mut fixture = ground.fixture(Flavor::runc());
    fixture.spec.layers.push(upper);
    let broken = broken(laws::lifecycle(&fixture).await);
    assert!(broken.is_empty(), "{broken:#?}");
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn an_unpacking_guest_keeps_the_laws_too() {
    let ground = Ground::new("unpack");
    for name in ["target", "done"] {
        std::fs::create_dir(ground.path(name)).unwrap();
    }
    for flavor in [Flavor::runc(), Flavor::runsc()].into_iter().filter(|flavor| wanted(flavor.name)) {
        let mut fixture = ground.fixture(flavor);
        fixture.spec.profile =
            Profile::Unpack { done: vec![ground.path("done")], target: ground.path("target") };
        let mut verdicts = laws::channel(&fixture).await;
        verdicts.extend(laws::walls(&fixture).await);
        let broken = broken(verdicts);
        assert!(broken.is_empty(), "{broken:#?}");
    }
    ground.assert_clean();
}

#[tokio::test]
#[ignore = "starts real sandboxes"]
async fn sandboxes_start_and_stop_side_by_side() {
    if !wanted("runc") {
        return;
    }
    let ground = Ground::new("many");
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..24 {
        let (oci, spec) = (ground.oci(Flavor::runc()), ground.spec());
        let id: api::SandboxId = format!("{}{number}", ground.prefix).parse().unwrap();
        tasks.spawn(async move {
            oci.start(&id, &spec).await.unwrap();
            let _channel = oci.connect(&id, ground::PATIENCE).await.unwrap();
            let (_, differences) = oci.posture(&id).await.unwrap();
            assert!(differences.is_empty(), "{differences:#?}");
            oci.stop(&id, Duration::ZERO).await.unwrap();
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    ground.assert_clean();
}

fn broken(verdicts: Vec<LawVerdict>) -> Vec<(&'static str, String)> {
    assert!(verdicts.len() > 2, "the suite is empty");
    verdicts.into_iter().filter_map(|(name, verdict)| verdict.err().map(|seen| (name, seen))).collect()
}

//! Tests of the sandboxes of one machine, on the simulated runtime: admission, leases, crashes and recovery.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use api::code::{Code, ContextSpec};
use api::exec::{ExecSpec, LostCause, Outcome};
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, EndReason, SandboxEvent, SandboxState, Tier};
use api::{ErrorCode, ExecId, SandboxId};
use node::admission::Bounds;
use node::template::{Store, Template};
use node::{Machine, Node, Order};
use runtime::sim::Sim;
use runtime::{Exit, Runtime};
use tempfile::TempDir;

/// Timeout that is longer than any wait in these tests, in real or simulated time.
const WITHIN: Duration = Duration::from_secs(30);

struct Place {
    sim: Sim,
    machine: Machine,
    _data: TempDir,
}

impl Place {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        std::fs::set_permissions(data.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let machine = Machine::open(data.path()).unwrap();
        let template = Template { layers: vec!["a".repeat(64)], ..Template::of("base") };
        std::fs::create_dir_all(template.layer_directories(data.path())[0].as_path()).unwrap();
        Store::new(data.path()).save(&template).unwrap();
        Self { sim: Sim::new(), machine, _data: data }
    }

    async fn node(&self) -> Node {
        self.node_with(Bounds { disk_reserve_bytes: 0, pool_ready: 0, ..Bounds::default() }).await
    }

    async fn node_with(&self, bounds: Bounds) -> Node {
        let runtime: Arc<dyn Runtime> = Arc::new(self.sim.clone());
        Node::open(&self.machine, vec![runtime], bounds, gate(self.machine.data())).await.unwrap()
    }

    /// Simulates a kill of the server: its work stops halfway, its connections break, and its lock is
    /// released. Its tasks still exist, because the simulated guests run on the same executor, but their
    /// requests are no longer answered.
    fn kill(&mut self, node: Node) {
        self.sim = self.sim.restart();
        drop(node);
        std::fs::remove_file(self.machine.data().join("node/lock")).unwrap();
    }
}

/// Returns a package gate that fetches nothing.
fn gate(data: &std::path::Path) -> node::egress::Gate {
    node::egress::Gate::new(&node::egress::packages(data), node::egress::Upstreams::default(), 0)
}

fn order() -> Order {
    Order {
        project: "p".into(),
        request: request(),
        may_open: false,
        may_root: false,
        auto_resume: node::AutoResume::default(),
    }
}

fn request() -> CreateSandbox {
    let limits = Limits { disk_bytes: Limits::MIN.disk_bytes, ..Limits::default() };
    CreateSandbox { limits: limits.into(), ..CreateSandbox::default() }
}

fn id(text: &str) -> SandboxId {
    text.parse().unwrap()
}

fn exec(argv: &[&str]) -> ExecSpec {
    ExecSpec { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..ExecSpec::default() }
}

fn exec_id() -> ExecId {
    "e1".parse().unwrap()
}

async fn ended(node: &Node, id: &SandboxId) -> (SandboxState, Option<EndReason>) {
    tokio::time::timeout(WITHIN, async {
        loop {
            let shown = node.find(id).unwrap();
            if shown.state.is_terminal() {
                return (shown.state, shown.reason);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_sandbox_is_made_used_stopped_and_forgotten() {
    let place = Place::new();
    let node = place.node().await;
    let shown = node.create(&id("a"), &order(), None).await.unwrap();
    assert_eq!((shown.state, shown.project.as_str()), (SandboxState::Running, "p"));
    let call = node.call(&id("a")).await.unwrap();
    call.start_exec(&exec_id(), exec(&["echo", "hello"])).await.unwrap();
    let done = call.exec_reader(exec_id()).collect().await.unwrap();
    assert_eq!((done.stdout, done.end.outcome), (b"hello\n".to_vec(), Outcome::Exited { code: 0 }));
    drop(call);
    let shown = node.stop(&id("a"), EndReason::Stopped).await.unwrap();
    assert_eq!((shown.state, shown.reason), (SandboxState::Ended, Some(EndReason::Stopped)));
    assert_eq!(place.sim.list().await.unwrap(), []);
    // A second stop keeps the first reason, and stopping an unknown ID returns `None`.
    assert_eq!(node.stop(&id("a"), EndReason::Idle).await.unwrap().reason, Some(EndReason::Stopped));
    assert!(node.stop(&id("b"), EndReason::Stopped).await.is_none());
    let refused = node.call(&id("a")).await.err().unwrap().to_api();
    assert_eq!(refused.code, ErrorCode::SandboxLost);
    assert!(refused.message.contains("stopped"), "{}", refused.message);
    node.forget(&id("a")).unwrap();
    assert!(node.find(&id("a")).is_none());
    // The same ID can be created again immediately.
    node.create(&id("a"), &order(), None).await.unwrap();
}

#[tokio::test]
async fn code_that_cannot_be_run_is_refused_with_its_reason() {
    let place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    let call = node.call(&id("a")).await.unwrap();
    let code = |code| ExecSpec { code: Some(code), ..ExecSpec::default() };
    let plain = Code { source: "1".into(), ..Code::default() };
    let refused = call.start_exec(&exec_id(), code(plain.clone())).await.unwrap_err().to_api();
    assert_eq!((refused.code, refused.ran), (ErrorCode::Unsupported, api::Ran::No));
    // Packages that the policy does not allow are refused before the guest is contacted.
    let wants = Code { requirements: vec!["numpy".into()], ..plain };
    let refused = call.start_exec(&exec_id(), code(wants)).await.unwrap_err().to_api();
    assert_eq!((refused.code, refused.layer), (ErrorCode::Forbidden, api::Layer::Policy));
    assert_eq!(call.contexts().await.unwrap_err().to_api().code, ErrorCode::Unsupported);
    let context = call.context(&"c1".parse().unwrap(), ContextSpec::default()).await;
    assert_eq!(context.unwrap_err().to_api().code, ErrorCode::Unsupported);
}

#[tokio::test]
async fn whoever_finds_no_room_leaves_nothing() {
    // 200 concurrent create requests with room for 50 sandboxes: the others are refused with `capacity` and
    // allocate nothing.
    let place = Place::new();
    let node = place
        .node_with(Bounds { sandboxes_max: 50, disk_reserve_bytes: 0, pool_ready: 0, ..Bounds::default() })
        .await;
    let creates = (0..200).map(|number| {
        let node = node.clone();
        tokio::spawn(async move { node.create(&id(&format!("s{number}")), &order(), None).await })
    });
    let mut made = 0;
    for create in creates.collect::<Vec<_>>() {
        match create.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error.to_api().code, ErrorCode::Capacity),
        }
    }
    assert_eq!((made, node.list().len(), place.sim.list().await.unwrap().len()), (50, 50, 50));
}

#[tokio::test]
async fn a_start_that_fails_leaves_its_reason_and_nothing_else() {
    // One start fails in the runtime, the next one in the posture check.
    let place = Place::new();
    let node = place.node().await;
    place.sim.faults(|faults| faults.start_error_at = Some(1));
    let error = node.create(&id("a"), &order(), None).await.unwrap_err().to_api();
    assert_eq!(error.ran, api::Ran::No);
    let shown = node.find(&id("a")).unwrap();
    assert_eq!((shown.state, shown.reason), (SandboxState::Ended, Some(EndReason::StartFailed)));
    assert_eq!(shown.error, Some(error));
    assert_eq!(place.sim.list().await.unwrap(), []);
    place.sim.faults(|faults| faults.posture_differences = vec!["seccomp: 0".into()]);
    let error = node.create(&id("b"), &order(), None).await.unwrap_err().to_api();
    assert_eq!(error.code, ErrorCode::PostureMismatch);
    assert_eq!(place.sim.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_stop_during_the_start_ends_it_and_both_are_answered() {
    let place = Place::new();
    let node = place.node().await;
    place.sim.faults(|faults| faults.start_delay = Duration::from_millis(200));
    let creating = tokio::spawn({
        let node = node.clone();
        async move { node.create(&id("a"), &order(), None).await }
    });
    while node.find(&id("a")).is_none() {
        tokio::task::yield_now().await;
    }
    let shown = node.stop(&id("a"), EndReason::Stopped).await.unwrap();
    assert_eq!(shown.reason, Some(EndReason::Stopped));
    assert!(creating.await.unwrap().is_err());
    assert_eq!(place.sim.list().await.unwrap(), []);
}

#[tokio::test]
async fn what_cannot_be_removed_is_tried_until_it_can() {
    let place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    place.sim.faults(|faults| faults.stop_errors = 2);
    assert_eq!(node.stop(&id("a"), EndReason::Stopped).await.unwrap().state, SandboxState::Ended);
    assert_eq!(place.sim.list().await.unwrap(), []);
}

#[tokio::test]
async fn one_killed_from_outside_is_lost_and_the_next_is_not_affected() {
    let place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    place.sim.kill(&id("a"), Exit::Signaled(9)).unwrap();
    assert_eq!(ended(&node, &id("a")).await, (SandboxState::Lost, Some(EndReason::Died)));
    node.create(&id("b"), &order(), None).await.unwrap();
}

#[tokio::test]
async fn a_machine_that_is_being_emptied_takes_nothing_new() {
    let place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    node.drain(true);
    assert_eq!(node.create(&id("b"), &order(), None).await.unwrap_err().to_api().code, ErrorCode::Capacity);
    assert!(node.call(&id("a")).await.is_ok());
    node.drain(false);
    node.create(&id("b"), &order(), None).await.unwrap();
}

#[tokio::test]
async fn a_tier_that_is_not_here_is_refused_and_never_weakened() {
    // Covers attack D-05.
    let place = Place::new();
    let node = place.node().await;
    let order = Order { request: CreateSandbox { tier: Tier::UserKernel, ..request() }, ..order() };
    let error = node.create(&id("a"), &order, None).await.unwrap_err().to_api();
    assert_eq!(error.code, ErrorCode::TierUnavailable);
    assert_eq!(node.list().len(), 0);
}

#[tokio::test]
async fn idle_is_no_call_and_no_running_exec() {
    // Idle time starts when the last call or exec ends, and reading state does not extend it.
    let place = Place::new();
    let node = place.node().await;
    let idle_ms = 1000;
    let order = Order { request: CreateSandbox { idle_ms, ..request() }, ..order() };
    for name in ["idle", "held", "busy"] {
        node.create(&id(name), &order, None).await.unwrap();
    }
    let mut events = node.events();
    let held = node.call(&id("held")).await.unwrap();
    node.call(&id("busy")).await.unwrap().start_exec(&exec_id(), exec(&["sleep", "2.5"])).await.unwrap();
    let began = std::time::Instant::now();
    // Queries do not count as use.
    let watching = tokio::spawn({
        let node = node.clone();
        async move {
            loop {
                let _ = node.usage(&id("idle")).await;
                let _ = (node.list(), node.find(&id("idle")));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    assert_eq!(ended(&node, &id("idle")).await, (SandboxState::Ended, Some(EndReason::Idle)));
    let took = began.elapsed();
    assert!((900..1900).contains(&took.as_millis()), "{took:?}");
    watching.abort();
    let warned = std::iter::from_fn(|| events.try_recv().ok())
        .any(|event| matches!(event, SandboxEvent::Expiring { sandbox, .. } if sandbox == id("idle")));
    assert!(warned, "nobody was warned");
    assert_eq!(ended(&node, &id("busy")).await.1, Some(EndReason::Idle));
    let took = began.elapsed();
    assert!((3300..4500).contains(&took.as_millis()), "idle time counts from the end of the exec: {took:?}");
    assert_eq!(node.find(&id("held")).unwrap().state, SandboxState::Running);
    node.renew(&id("held"), Duration::from_secs(60)).await.unwrap();
    drop(held);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(node.find(&id("held")).unwrap().state, SandboxState::Running, "it was renewed");
}

#[tokio::test]
async fn a_life_ends_on_time_whatever_runs() {
    let place = Place::new();
    let node = place.node().await;
    let limits = Limits { ttl_ms: 1000, ..request().limits.over(Limits::default()) };
    let order = Order { request: CreateSandbox { limits: limits.into(), ..request() }, ..order() };
    node.create(&id("a"), &order, None).await.unwrap();
    let call = node.call(&id("a")).await.unwrap();
    call.start_exec(&exec_id(), exec(&["sleep", "60"])).await.unwrap();
    assert_eq!(ended(&node, &id("a")).await, (SandboxState::Ended, Some(EndReason::Expired)));
}

#[tokio::test]
async fn a_server_that_was_killed_is_succeeded_by_one_that_has_everything() {
    // After a restart, the server adopts a sandbox with its exec, ends a sandbox whose start was interrupted,
    // completes an interrupted stop, and removes an orphan.
    let mut place = Place::new();
    let node = place.node().await;
    for name in ["kept", "dies", "halfway"] {
        node.create(&id(name), &order(), None).await.unwrap();
    }
    node.call(&id("kept")).await.unwrap().start_exec(&exec_id(), exec(&["sleep", "1"])).await.unwrap();
    // One sandbox is starting and one is stopping when the server is killed.
    place.sim.faults(|faults| {
        faults.start_delay = Duration::from_secs(60);
        faults.stop_delay = Duration::from_secs(60);
    });
    let (starts, stops) = (node.clone(), node.clone());
    tokio::spawn(async move { starts.create(&id("young"), &order(), None).await });
    tokio::spawn(async move { stops.stop(&id("halfway"), EndReason::Stopped).await });
    while place.sim.list().await.unwrap().len() < 4
        || node.find(&id("halfway")).unwrap().state == SandboxState::Running
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    place.kill(node);
    place.sim.kill(&id("dies"), Exit::Unknown).unwrap();
    place.sim.faults(|faults| *faults = runtime::sim::Faults::default());
    // Starts an orphan: a sandbox that no journal contains.
    let spec = runtime::Spec {
        layers: vec!["/".into()],
        image: String::new(),
        limits: Limits::default(),
        profile: runtime::Profile::Run,
        guest: place.machine.guest().to_owned(),
    };
    place.sim.start(&id("orphan"), &spec).await.unwrap();
    place.sim = place.sim.restart();
    let node = place.node().await;
    assert_eq!(node.find(&id("kept")).unwrap().state, SandboxState::Running);
    let done = node.call(&id("kept")).await.unwrap().exec_reader(exec_id()).collect();
    let done = tokio::time::timeout(WITHIN, done).await.unwrap().unwrap();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
    assert_eq!(ended(&node, &id("dies")).await, (SandboxState::Lost, Some(EndReason::Died)));
    assert_eq!(ended(&node, &id("young")).await, (SandboxState::Lost, Some(EndReason::Interrupted)));
    assert_eq!(ended(&node, &id("halfway")).await, (SandboxState::Ended, Some(EndReason::Stopped)));
    tokio::time::timeout(WITHIN, async {
        while place.sim.list().await.unwrap().len() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(place.sim.list().await.unwrap()[0].id, id("kept"));
}

/// Verifies that each state is journalled before the response: a server may be killed right after it
/// responds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_written_down_before() {
    let place = Place::new();
    let node = place.node().await;
    let written = |id: &SandboxId| {
        let text = std::fs::read(place.machine.data().join(format!("node/{id}.json"))).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["sandbox"]["state"].clone()
    };
    for number in 0..100 {
        let id = id(&format!("s{number}"));
        node.create(&id, &order(), None).await.unwrap();
        assert_eq!(written(&id), "running");
        node.stop(&id, EndReason::Stopped).await.unwrap();
        assert_eq!(written(&id), "ended");
        node.forget(&id).unwrap();
    }
}

#[tokio::test]
async fn a_change_that_cannot_be_journalled_changes_nothing() {
    let place = Place::new();
    let node = place.node().await;
    let before = node.create(&id("a"), &order(), None).await.unwrap();
    let ports = node.ports(&id("a")).unwrap().1;
    let mut events = node.events();
    let policy = Policy { hosts: vec!["example.org".parse().unwrap()], ..Policy::default() };
    let change = async || {
        let renewed = node.renew(&id("a"), Duration::from_secs(5)).await.map(drop);
        let extended = node.live_for(&id("a"), Duration::from_secs(500)).await.map(drop);
        let published = node.publish(&id("a"), 8000, true).await.map(drop);
        let all = node.publish_all(&id("a"), true).await;
        let restricted = node.set_policy(&id("a"), policy.clone()).await.map(drop);
        [renewed, extended, published, all, restricted].map(|result| result.is_ok())
    };
    // Without its directory, the journal cannot write.
    let (directory, away) = (place.machine.data().join("node"), place.machine.data().join("away"));
    std::fs::rename(&directory, &away).unwrap();
    assert_eq!(change().await, [false; 5]);
    assert_eq!(node.find(&id("a")).unwrap(), before);
    assert_eq!(node.ports(&id("a")).unwrap().1, ports);
    assert!(events.try_recv().is_err(), "nothing was published");
    std::fs::rename(&away, &directory).unwrap();
    assert_eq!(change().await, [true; 5]);
    let after = node.find(&id("a")).unwrap();
    assert_eq!((after.idle_ms, after.limits.ttl_ms), (5000, 500_000));
    assert_eq!(after.policy, policy);
    let ports = node.ports(&id("a")).unwrap().1;
    assert!(ports.all_public && ports.public.contains(&8000));
    // Each change that clients can see causes one event, in the order of the changes. Changes to ports cause
    // no event.
    let published: Vec<_> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    let [
        SandboxEvent::Changed { sandbox: renewed },
        SandboxEvent::Changed { sandbox: extended },
        SandboxEvent::Changed { sandbox: restricted },
    ] = published.as_slice()
    else {
        panic!("{published:?}")
    };
    assert_eq!((renewed.idle_ms, renewed.limits.ttl_ms), (5000, before.limits.ttl_ms));
    assert_eq!((extended.limits.ttl_ms, &extended.policy), (500_000, &before.policy));
    assert_eq!(**restricted, after);
}

#[tokio::test]
async fn an_end_that_nobody_took_note_of_is_told_again_after_a_restart() {
    let mut place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    node.stop(&id("a"), EndReason::Stopped).await.unwrap();
    place.kill(node);
    let node = place.node().await;
    let shown = node.find(&id("a")).unwrap();
    assert_eq!((shown.state, shown.reason), (SandboxState::Ended, Some(EndReason::Stopped)));
    node.forget(&id("a")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_is_slow_to_dial_again_keeps_its_sandbox_and_holds_up_no_stop() {
    let mut place = Place::new();
    let node = place.node().await;
    for name in ["slow", "stopped"] {
        node.create(&id(name), &order(), None).await.unwrap();
    }
    place.sim.faults(|faults| faults.silent_guest = true);
    place.kill(node);
    let node = place.node().await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(node.find(&id("slow")).unwrap().state, SandboxState::Running);
    let asked = tokio::time::Instant::now();
    assert_eq!(node.stop(&id("stopped"), EndReason::Stopped).await.unwrap().reason, Some(EndReason::Stopped));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    place.sim.faults(|faults| faults.silent_guest = false);
    node.call(&id("slow")).await.unwrap().start_exec(&exec_id(), exec(&["true"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_tell_whether_a_sandbox_lives_has_not_told_that_it_died() {
    let mut place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    place.kill(node);
    place.sim.faults(|faults| faults.wait_errors = 5);
    let node = place.node().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(place.sim.faults(|faults| faults.wait_errors), 0, "it was asked");
    assert_eq!(node.find(&id("a")).unwrap().state, SandboxState::Running);
    // The actual end of the sandbox is still noticed afterwards.
    place.sim.kill(&id("a"), Exit::Exited(1)).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.find(&id("a")).unwrap().reason, Some(EndReason::Died));
}

#[tokio::test]
async fn a_deadline_that_the_guest_kept_costs_no_sandbox() {
    let place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    let call = node.call(&id("a")).await.unwrap();
    let spec = ExecSpec { deadline_ms: Some(100), grace_ms: Some(0), ..exec(&["sleep", "60"]) };
    call.start_exec(&exec_id(), spec).await.unwrap();
    // The guest enforces the deadline itself, so the sandbox is only checked and keeps running.
    let done = call.exec_reader(exec_id()).collect().await.unwrap();
    assert_eq!(done.end.outcome, Outcome::Timeout);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(node.find(&id("a")).unwrap().state, SandboxState::Running);
}

/// Verifies that the reader of the overdue exec receives a timeout, while readers of other execs receive the
/// loss of the sandbox.
#[tokio::test]
async fn a_deadline_that_the_guest_could_not_keep_is_a_timeout_and_ends_the_sandbox() {
    let place = Place::new();
    let node = place.node().await;
    node.create(&id("a"), &order(), None).await.unwrap();
    let call = node.call(&id("a")).await.unwrap();
    let spec = ExecSpec { deadline_ms: Some(100), grace_ms: Some(0), ..exec(&["stuck"]) };
    let other: ExecId = "other".parse().unwrap();
    call.start_exec(&other, exec(&["sleep", "60"])).await.unwrap();
    call.start_exec(&exec_id(), spec).await.unwrap();
    let (late, beside) =
        tokio::join!(call.exec_reader(exec_id()).collect(), call.exec_reader(other).collect());
    assert_eq!(late.unwrap().end.outcome, Outcome::Timeout);
    assert_eq!(beside.unwrap().end.outcome, Outcome::SandboxLost { cause: LostCause::Stopped });
    assert_eq!(node.find(&id("a")).unwrap().reason, Some(EndReason::Overdue));
}

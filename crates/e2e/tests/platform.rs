//! Tests of the whole platform on a simulated machine, in one process. They check the promises of the public
//! API through its client, and need no root.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use api::account::{CreateKey, PutProject, Quota, Role};
use api::exec::{ExecSpec, Outcome};
use api::limits::{Limits, WantedLimits};
use api::sandbox::{CreateSandbox, EndReason, Lease, Sandbox, SandboxEvent, SandboxState, Tier};
use api::{ErrorCode, ExecId, SandboxId};
use client::{Client, Patience};
use control::audit::{self, Audit};
use control::store::{Request, Requested, Store};
use control::trace::{Recorder, Steps, Traces};
use control::{Platform, account, follow};
use node::admission::Bounds;
use node::{Machine, Node, Order};
use runtime::sim::Sim;
use runtime::{Exit, Runtime};
use server::ports::name::Domain;
use server::{App, listen, routes};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tracing_subscriber::prelude::*;

/// Timeout for each wait in these tests.
const WITHIN: Duration = Duration::from_secs(20);

struct Place {
    sim: Sim,
    platform: Arc<Platform>,
    url: String,
    admin: Client,
    _data: TempDir,
}

impl Place {
    async fn new() -> Self {
        Self::traced_by(Traces::default()).await
    }

    async fn traced_by(traces: Traces) -> Self {
        let data = tempfile::tempdir().unwrap();
        std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let machine = Machine::open(data.path()).unwrap();
        let template =
            node::template::Template { layers: vec!["a".repeat(64)], ..node::template::Template::of("base") };
        std::fs::create_dir_all(&template.layer_directories(data.path())[0]).unwrap();
        node::template::Store::new(data.path()).save(&template).unwrap();
        let sim = Sim::new();
        let runtimes: Vec<Arc<dyn Runtime>> = vec![Arc::new(sim.clone())];
        let bounds = Bounds { disk_reserve_bytes: 0, pool_ready: 0, ..Bounds::default() };
        let node = Node::open(
            &machine,
            runtimes,
            bounds,
            node::egress::Gate::new(
                &node::egress::packages(machine.data()),
                node::egress::Upstreams::default(),
                0,
            ),
        )
        .await
        .unwrap();
        let store = Store::open(&data.path().join("bellglass.db")).await.unwrap();
        store.put_project("default", &plenty(), 1).await.unwrap();
        let ask =
            CreateKey { project: "default".into(), role: Role::Admin, label: String::new(), valid_ms: None };
        let (new, hash) = account::mint(&ask, 1).unwrap();
        store.create_key(&new.key, &hash).await.unwrap();
        let audit = Audit::open(&data.path().join("audit.log"), 1, audit::Bounds::default()).unwrap();
        let platform = Arc::new(Platform::new(node, store, audit).traced_by(traces));
        follow::begin(&platform).await.unwrap();
        tokio::spawn(follow::follow(Arc::clone(&platform)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = App::new(Arc::clone(&platform), Domain::default());
        tokio::spawn(listen::serve(listener, None, routes::router(&app, &e2b::api(&app))));
        let admin = Client::new(&url, &new.secret).unwrap();
        Self { sim, platform, url, admin, _data: data }
    }

    async fn key(&self, project: &str, role: Role, quota: Quota) -> String {
        self.admin.put_project(project, &PutProject { quota }).await.unwrap();
        let ask = CreateKey { project: project.into(), role, label: "test".into(), valid_ms: None };
        self.admin.create_key(&ask).await.unwrap().secret
    }

    async fn client(&self, project: &str, role: Role, quota: Quota) -> Client {
        Client::new(&self.url, &self.key(project, role, quota).await).unwrap()
    }
}

fn plenty() -> Quota {
    Quota { sandboxes: 1000, creates_per_second: 10_000, execs_per_second: 10_000, ..Quota::default() }
}

fn small() -> CreateSandbox {
    let limits = Limits { disk_bytes: Limits::MIN.disk_bytes, ..Limits::default() };
    CreateSandbox { limits: limits.into(), ..CreateSandbox::default() }
}

fn exec(argv: &[&str]) -> ExecSpec {
    ExecSpec { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..ExecSpec::default() }
}

fn code<T>(result: Result<T, client::Error>) -> ErrorCode {
    result.err().expect("a refusal").to_api().code
}

#[tokio::test]
async fn a_sandbox_is_created_used_and_stopped_and_its_end_is_remembered() {
    let place = Place::new().await;
    let client = place.client("p", Role::Write, plenty()).await;
    let made = client.create(&CreateSandbox { name: Some("web".parse().unwrap()), ..small() }).await.unwrap();
    assert_eq!((made.state, made.project.as_str()), (SandboxState::Running, "p"));
    let name: SandboxId = "web".parse().unwrap();
    let done = client.exec(&name, &exec(&["echo", "hello"])).await.unwrap().collect().await.unwrap();
    assert_eq!((done.stdout, done.end.outcome), (b"hello\n".to_vec(), Outcome::Exited { code: 0 }));
    assert_eq!(client.execs(&name).await.unwrap().len(), 1, "the platform's own exec is not shown");
    let ended = client.stop(&name).await.unwrap();
    assert_eq!((ended.state, ended.reason), (SandboxState::Ended, Some(EndReason::Stopped)));
    assert_eq!(client.stop(&made.id).await.unwrap().reason, Some(EndReason::Stopped), "again");
    assert_eq!(client.sandboxes(false).await.unwrap().len(), 0);
    assert_eq!(client.sandboxes(true).await.unwrap().len(), 1);
    assert_eq!(code(client.exec(&made.id, &exec(&["true"])).await), ErrorCode::SandboxLost);
    // The name of the lost sandbox can be reused immediately.
    client.create(&CreateSandbox { name: Some(name), ..small() }).await.unwrap();
}

#[tokio::test]
async fn a_stop_before_the_node_has_the_sandbox_ends_it() {
    // A create request first writes a row to the store. This test stops the sandbox at that point, and only
    // then lets the node create it.
    let place = Place::new().await;
    let client = place.client("p", Role::Write, plenty()).await;
    let order = Order {
        project: "p".into(),
        request: small(),
        may_open: false,
        may_root: false,
        auto_resume: node::AutoResume::default(),
    };
    let id = node::machine::fresh_id().unwrap();
    let row = Sandbox::asked(id.clone(), "p", &order.request, &WantedLimits::default(), 1);
    let ask = Request { sandbox: &row, quota: &plenty(), idempotency: None };
    assert!(matches!(place.platform.store.request(&ask).await, Ok(Requested::New(_))));
    let (stopped, created) = tokio::join!(client.stop(&id), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        place.platform.node.create(&id, &order, None).await
    });
    let stopped = stopped.unwrap();
    assert_eq!((stopped.state, stopped.reason), (SandboxState::Ended, Some(EndReason::Stopped)));
    assert!(created.is_err() || created.is_ok_and(|shown| shown.id == id), "it was created and stopped");
    assert_eq!(client.sandbox(&id).await.unwrap().state, SandboxState::Ended);
    // If the create request is withdrawn while a stop waits for it, the stop returns `not_found`.
    let row = Sandbox { id: node::machine::fresh_id().unwrap(), ..row.clone() };
    let ask = Request { sandbox: &row, ..ask };
    assert!(matches!(place.platform.store.request(&ask).await, Ok(Requested::New(_))));
    let (stopped, withdrawn) = tokio::join!(client.stop(&row.id), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        place.platform.store.withdraw(&row.id).await
    });
    withdrawn.unwrap();
    assert_eq!(code(stopped), ErrorCode::NotFound);
}

#[tokio::test]
async fn where_the_time_of_a_request_went_can_be_read_also_after_the_end() {
    let recorder = Recorder::default();
    // Install the subscriber for the whole process: tracing caches for all threads whether a span is of
    // interest, and other tests run concurrently.
    tracing_subscriber::registry().with(recorder.clone().with_filter(Steps)).init();
    let place = Place::traced_by(Traces { recorder, join: None }).await;
    let client = place.client("p", Role::Write, plenty()).await;
    let made = client.create(&small()).await.unwrap();
    let mut reader = client.exec(&made.id, &exec(&["echo", "hello"])).await.unwrap();
    let exec_id = reader.id().clone();
    while reader.next().await.unwrap().is_some() {}
    client.start(&made.id, &exec(&["true"])).await.unwrap();
    client.stop(&made.id).await.unwrap();
    let traces = client.trace(&made.id, None).await.unwrap();
    let firsts: Vec<_> = traces.iter().map(|trace| trace.steps[0].name.as_str()).collect();
    assert_eq!(firsts, ["create", "exec", "exec", "stop"]);
    for trace in &traces {
        let below = |step: &api::trace::Step| step.name == "key" && step.parent == Some(0);
        assert!(trace.steps.iter().any(below), "{trace:?}");
    }
    let traces = client.trace(&made.id, Some(&exec_id)).await.unwrap();
    let [trace] = traces.as_slice() else { panic!("{traces:?}") };
    let names: Vec<_> = trace.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["exec", "key", "launch", "first byte", "end"]);
    assert!(trace.steps.iter().all(|step| step.took_us.is_some()), "{trace:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_refused_at_once_and_crowds_nobody_out() {
    // One project floods the server with create requests. The excess is refused quickly, and another project
    // is served.
    let place = Place::new().await;
    place.sim.faults(|faults| faults.start_delay = Duration::from_millis(150));
    let patience = Patience { connection: Duration::ZERO, busy: Duration::ZERO };
    let impatient = client::Options { patience, ..client::Options::default() };
    let flood =
        Client::with(&place.url, &place.key("flood", Role::Write, plenty()).await, impatient).unwrap();
    let mut asked = tokio::task::JoinSet::new();
    let until = tokio::time::Instant::now() + Duration::from_secs(4);
    while tokio::time::Instant::now() < until {
        let flood = flood.clone();
        asked.spawn(async move {
            let begun = tokio::time::Instant::now();
            (flood.create(&small()).await.map(drop).map_err(|error| error.to_api().code), begun.elapsed())
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        if asked.len() == 300 {
            // During the flood, a project that sends few requests waits only while one or two sandboxes
            // start.
            let modest = place.client("modest", Role::Write, plenty()).await;
            let begun = tokio::time::Instant::now();
            modest.create(&small()).await.unwrap();
            assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
        }
    }
    let (mut refused, mut made) = (Vec::new(), 0);
    while let Some(answered) = asked.join_next().await {
        match answered.unwrap() {
            (Ok(()), _) => made += 1,
            (Err(code), took) => {
                assert_eq!(code, ErrorCode::Capacity);
                refused.push(took);
            }
        }
    }
    refused.sort();
    assert!(made > 20 && refused.len() > 100, "{made} made, {} refused", refused.len());
    assert!(refused[refused.len() * 95 / 100] < Duration::from_millis(50), "{:?}", refused.last());
    let begun = tokio::time::Instant::now();
    flood.create(&small()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "all is as before");
}

#[tokio::test]
async fn what_belongs_to_another_project_is_not_there() {
    // Attack X-01 fails: another project's sandboxes appear not to exist.
    let place = Place::new().await;
    let (one, two) =
        (place.client("one", Role::Write, plenty()).await, place.client("two", Role::Write, plenty()).await);
    let made = one.create(&CreateSandbox { name: Some("web".parse().unwrap()), ..small() }).await.unwrap();
    let name: SandboxId = "web".parse().unwrap();
    for id in [&made.id, &name] {
        let exec_id: ExecId = "e1".parse().unwrap();
        let codes = [
            code(two.sandbox(id).await),
            code(two.stop(id).await),
            code(two.renew(id, Lease { idle_ms: 5000 }).await),
            code(two.usage(id).await),
            code(two.start(id, &exec(&["true"])).await),
            code(two.execs(id).await),
            code(two.exec_info(id, &exec_id).await),
            code(two.cancel(id, &exec_id).await),
            code(two.signal(id, &exec_id, 9).await),
            code(two.trace(id, None).await),
        ];
        assert_eq!(codes, [ErrorCode::NotFound; 10]);
    }
    assert_eq!(two.sandboxes(true).await.unwrap(), []);
    assert_eq!(one.sandbox(&made.id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn a_key_does_what_its_role_allows_until_it_is_revoked() {
    // A read key cannot change anything, an unknown key is rejected, and a revoked key stops working
    // immediately.
    let place = Place::new().await;
    let (reader, writer) =
        (place.client("p", Role::Read, plenty()).await, place.client("p", Role::Write, plenty()).await);
    let made = writer.create(&small()).await.unwrap();
    assert_eq!(reader.sandbox(&made.id).await.unwrap().id, made.id);
    assert_eq!(code(reader.create(&small()).await), ErrorCode::Forbidden);
    assert_eq!(code(reader.stop(&made.id).await), ErrorCode::Forbidden);
    assert_eq!(code(writer.keys().await), ErrorCode::Forbidden);
    for secret in ["", "x", &"0".repeat(64)] {
        let stranger = Client::new(&place.url, secret);
        assert!(
            stranger.is_err() || code(stranger.unwrap().sandboxes(false).await) == ErrorCode::Unauthorized
        );
    }
    for key in place.admin.keys().await.unwrap().iter().filter(|key| key.role == Role::Write) {
        place.admin.revoke_key(&key.id).await.unwrap();
    }
    assert_eq!(code(writer.sandbox(&made.id).await), ErrorCode::Unauthorized, "at once");
}

#[tokio::test]
async fn the_same_key_with_the_prefix_of_e2b_is_the_same() {
    let place = Place::new().await;
    let secret = place.key("p", Role::Write, plenty()).await;
    let client = Client::new(&place.url, &format!("e2b_{secret}")).unwrap();
    assert_eq!(client.create(&small()).await.unwrap().project, "p");
    let digits = secret.strip_prefix("bgk_").unwrap();
    assert!(digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
    // E2B's SDKs require keys in this format.
    let client = Client::new(&place.url, &format!("e2b_{digits}")).unwrap();
    assert_eq!(client.sandboxes(false).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_quota_is_never_exceeded_and_free_again_after_a_stop() {
    // Attack X-08 fails: concurrent requests cannot exceed a quota.
    let place = Place::new().await;
    let client = place.client("p", Role::Write, Quota { sandboxes: 3, ..plenty() }).await;
    let creates = (0..40).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.create(&small()).await })
    });
    let mut made = Vec::new();
    for create in creates.collect::<Vec<_>>() {
        match create.await.unwrap() {
            Ok(sandbox) => made.push(sandbox.id),
            Err(error) => assert_eq!(error.to_api().code, ErrorCode::QuotaExceeded),
        }
    }
    assert_eq!((made.len(), place.sim.list().await.unwrap().len()), (3, 3));
    client.stop(&made[0]).await.unwrap();
    client.create(&small()).await.unwrap();
}

#[tokio::test]
async fn refusals_leave_no_trace() {
    // Attack D-05 fails: a refused create request leaves no row in the store, and a failed start leaves only
    // a row with its reason.
    let place = Place::new().await;
    let client = place.client("p", Role::Write, plenty()).await;
    let wrong = [
        (CreateSandbox { template: "none".into(), ..small() }, ErrorCode::NotFound),
        (CreateSandbox { tier: Tier::UserKernel, ..small() }, ErrorCode::TierUnavailable),
        (CreateSandbox { idle_ms: 0, ..small() }, ErrorCode::InvalidRequest),
    ];
    for (request, expected) in wrong {
        assert_eq!(code(client.create(&request).await), expected);
    }
    assert_eq!(client.sandboxes(true).await.unwrap(), [], "what was refused was never there");
    place.sim.faults(|faults| faults.start_error_at = Some(1));
    assert_eq!(code(client.create(&small()).await), ErrorCode::Platform);
    let failed = client.sandboxes(true).await.unwrap();
    assert_eq!(failed[0].reason, Some(EndReason::StartFailed), "what was begun and failed is remembered");
    assert_eq!(place.sim.list().await.unwrap(), []);
}

#[tokio::test]
async fn one_killed_from_outside_is_lost_and_everybody_is_told() {
    // Both the exec's stream and the event stream report the loss.
    let place = Place::new().await;
    let client = place.client("p", Role::Write, plenty()).await;
    let (tell, mut told) = tokio::sync::mpsc::channel(100);
    let mut events = client.events();
    tokio::spawn(async move { while tell.send(events.next().await.unwrap()).await.is_ok() {} });
    // Events are not delivered until the listener is connected.
    while told.is_empty() {
        let early = client.create(&small()).await.unwrap();
        client.stop(&early.id).await.unwrap();
    }
    let made = client.create(&small()).await.unwrap();
    let running = client.exec(&made.id, &exec(&["sleep", "60"])).await.unwrap();
    place.sim.kill(&made.id, Exit::Signaled(9)).unwrap();
    let done = tokio::time::timeout(WITHIN, running.collect()).await.unwrap().unwrap();
    assert!(matches!(done.end.outcome, Outcome::SandboxLost { .. }), "{:?}", done.end.outcome);
    let lost = tokio::time::timeout(WITHIN, async {
        loop {
            if let SandboxEvent::Changed { sandbox } = told.recv().await.unwrap()
                && sandbox.id == made.id
                && sandbox.state.is_terminal()
            {
                return sandbox;
            }
        }
    });
    let lost = lost.await.unwrap();
    assert_eq!((lost.id, lost.reason), (made.id.clone(), Some(EndReason::Died)));
    let shown = client.sandbox(&made.id).await.unwrap();
    assert_eq!((shown.state, shown.reason), (SandboxState::Lost, Some(EndReason::Died)));
}

#[tokio::test]
async fn a_store_that_was_lost_never_ends_a_sandbox() {
    // Attack L-04 fails: the server fills an empty store from the state of the machine.
    let place = Place::new().await;
    let client = place.client("p", Role::Write, plenty()).await;
    let made = client.create(&small()).await.unwrap();
    let empty = tempfile::tempdir().unwrap();
    let store = Store::open(&empty.path().join("bellglass.db")).await.unwrap();
    let audit = Audit::open(&empty.path().join("audit.log"), 1, audit::Bounds::default()).unwrap();
    let again = Platform::new(place.platform.node.clone(), store, audit);
    follow::begin(&again).await.unwrap();
    assert_eq!(again.store.live().await.unwrap()[0].id, made.id);
    assert_eq!(client.sandbox(&made.id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn a_machine_that_is_being_emptied_says_so() {
    let place = Place::new().await;
    let made = place.admin.create(&small()).await.unwrap();
    assert!(place.admin.drain(true).await.unwrap().draining);
    let patience = client::Patience { busy: Duration::ZERO, ..client::Patience::default() };
    let secret = place.key("p", Role::Write, plenty()).await;
    let options = client::Options { patience, ..client::Options::default() };
    let client = Client::with(&place.url, &secret, options).unwrap();
    assert_eq!(code(client.create(&small()).await), ErrorCode::Capacity);
    place.admin.exec(&made.id, &exec(&["true"])).await.unwrap().collect().await.unwrap();
    place.admin.drain(false).await.unwrap();
    client.create(&small()).await.unwrap();
}

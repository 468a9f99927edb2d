//! Tests of the pool on the simulated runtime: each pre-warmed sandbox is claimed once, by one project, even
//! if the server is killed.

#![cfg(test)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, Sandbox, SandboxState, Start};
use api::server::PoolStatus;
use node::admission::Bounds;
use node::template::{Store, Template};
use node::{Machine, Node, Order};
use runtime::sim::Sim;
use runtime::{Exit, Runtime};
use tempfile::TempDir;

/// Timeout that is longer than any wait in these tests.
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
        let place = Self { sim: Sim::new(), machine, _data: data };
        place.template('a');
        place
    }

    /// Saves the template `base` with one layer, whose key repeats this letter.
    fn template(&self, letter: char) {
        let template = Template { layers: vec![letter.to_string().repeat(64)], ..Template::of("base") };
        let data = self.machine.data();
        std::fs::create_dir_all(template.layer_directories(data)[0].as_path()).unwrap();
        Store::new(data).save(&template).unwrap();
    }

    async fn node(&self) -> Node {
        self.node_with(Bounds { disk_reserve_bytes: 0, ..Bounds::default() }).await
    }

    async fn node_with(&self, bounds: Bounds) -> Node {
        let runtime: Arc<dyn Runtime> = Arc::new(self.sim.clone());
        let data = self.machine.data();
        let gate =
            node::egress::Gate::new(&node::egress::packages(data), node::egress::Upstreams::default(), 0);
        Node::open(&self.machine, vec![runtime], bounds, gate).await.unwrap()
    }

    fn kill(&mut self, node: Node) {
        self.sim = self.sim.restart();
        drop(node);
        std::fs::remove_file(self.machine.data().join("node/lock")).unwrap();
    }

    async fn there(&self) -> HashSet<SandboxId> {
        self.sim.list().await.unwrap().into_iter().map(|one| one.id).collect()
    }
}

fn order(project: &str) -> Order {
    let limits = Limits { disk_bytes: Limits::MIN.disk_bytes, ..Limits::default() };
    let request = CreateSandbox { limits: limits.into(), ..CreateSandbox::default() };
    Order {
        project: project.into(),
        request,
        may_open: false,
        may_root: false,
        auto_resume: node::AutoResume::default(),
    }
}

/// Creates a sandbox as the control plane does: with the ID of a claimed sandbox, or with a new ID.
async fn create(node: &Node, project: &str) -> Result<Sandbox, node::Error> {
    let order = order(project);
    let claim = node.claim(&order, node.plan(&order).unwrap());
    let id = claim.as_ref().map_or_else(|| node::machine::fresh_id().unwrap(), |claim| claim.id().clone());
    node.create(&id, &order, claim).await
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WITHIN, waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn pool(node: &Node) -> PoolStatus {
    node.status().pool.into_iter().next().unwrap_or_default()
}

async fn ready(node: &Node, count: u32) {
    until(&format!("{count} ready"), async || {
        let pool = pool(node);
        pool.ready >= count && pool.ready == pool.wanted && pool.making == 0
    })
    .await;
}

async fn says_hello(node: &Node, id: &SandboxId) {
    let call = node.call(id).await.unwrap();
    let exec = "e1".parse().unwrap();
    let argv = vec!["echo".into(), "hello".into()];
    call.start_exec(&exec, ExecSpec { argv, ..ExecSpec::default() }).await.unwrap();
    let done = call.exec_reader(exec).collect().await.unwrap();
    assert_eq!((done.stdout, done.end.outcome), (b"hello\n".to_vec(), Outcome::Exited { code: 0 }));
}

#[tokio::test]
async fn whoever_asks_for_what_was_asked_for_before_finds_one_ready() {
    // Requirements A10.01, A10.04.
    let place = Place::new();
    let node = place.node().await;
    let first = create(&node, "p").await.unwrap();
    assert_eq!(first.start, Start::Cold, "nobody had asked for one");
    ready(&node, 1).await;
    assert_eq!(node.list().len(), 1, "one that is nobody's is seen by nobody");
    assert_eq!(node.status().sandboxes, 1);
    let second = create(&node, "q").await.unwrap();
    assert_eq!((second.start, second.project.as_str()), (Start::Warm, "q"));
    assert_eq!((second.state, second.limits.ttl_ms), (SandboxState::Running, Limits::default().ttl_ms));
    says_hello(&node, &second.id).await;
    // Its record is like that of any other sandbox, and it can be stopped like any other sandbox.
    assert_eq!(node.find(&second.id).unwrap(), second);
    ready(&node, 1).await;
    let ended = node.stop(&second.id, EndReason::Stopped).await.unwrap();
    assert_eq!(ended.state, SandboxState::Ended);
    let third = create(&node, "p").await.unwrap();
    assert_eq!(third.start, Start::Warm);
    assert_ne!(third.id, second.id, "it never comes back");
    let PoolStatus { warm, cold, .. } = pool(&node);
    assert_eq!((warm, cold), (2, 1));
}

#[tokio::test]
async fn its_time_to_live_begins_when_it_is_claimed() {
    let place = Place::new();
    let node = place.node().await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    let mut order = order("p");
    order.request.limits.ttl_ms = Some(Limits::MIN.ttl_ms);
    let claim =
        node.claim(&order, node.plan(&order).unwrap()).expect("the time to live is no part of its kind");
    let id = claim.id().clone();
    let shown = node.create(&id, &order, Some(claim)).await.unwrap();
    assert_eq!((shown.start, shown.limits.ttl_ms), (Start::Warm, Limits::MIN.ttl_ms));
    until("its end", async || node.find(&id).unwrap().state.is_terminal()).await;
    assert_eq!(node.find(&id).unwrap().reason, Some(EndReason::Expired));
}

#[tokio::test]
async fn as_many_are_ready_as_were_asked_for_at_once_and_each_is_given_once() {
    let place = Place::new();
    let node = place.node().await;
    let burst = async || {
        let creates: Vec<_> = (0..20)
            .map(|number| {
                let node = node.clone();
                tokio::spawn(async move { create(&node, &format!("p{number}")).await.unwrap() })
            })
            .collect();
        let mut made = Vec::new();
        for create in creates {
            made.push(create.await.unwrap());
        }
        made
    };
    let cold = burst().await;
    assert!(cold.iter().filter(|one| one.start == Start::Warm).count() <= 2);
    ready(&node, 20).await;
    let warm = burst().await;
    assert!(warm.iter().all(|one| one.start == Start::Warm));
    let all: HashSet<_> = cold.iter().chain(&warm).map(|one| one.id.clone()).collect();
    assert_eq!(all.len(), 40);
    for one in &warm {
        says_hello(&node, &one.id).await;
        assert_eq!(node.find(&one.id).unwrap().project, one.project);
    }
}

#[tokio::test]
async fn one_that_died_unseen_is_replaced_and_nobody_fails() {
    // Requirement A10.05.
    let place = Place::new();
    let node = place.node().await;
    let known = create(&node, "p").await.unwrap().id;
    ready(&node, 1).await;
    let order = order("p");
    let claim = node.claim(&order, node.plan(&order).unwrap()).unwrap();
    let id = claim.id().clone();
    assert_ne!(id, known);
    place.sim.kill(&id, Exit::Signaled(9)).unwrap();
    let shown = node.create(&id, &order, Some(claim)).await.unwrap();
    assert_eq!((shown.id, shown.start, shown.state), (id.clone(), Start::Cold, SandboxState::Running));
    says_hello(&node, &id).await;
    ready(&node, 1).await;
}

#[tokio::test]
async fn a_claim_that_is_not_used_goes_back() {
    let place = Place::new();
    let node = place.node().await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    let order = order("p");
    let plan = || node.plan(&order).unwrap();
    let claim = node.claim(&order, plan()).unwrap();
    let id = claim.id().clone();
    assert!(node.find(&id).is_none());
    drop(claim);
    assert_eq!(node.claim(&order, plan()).unwrap().id(), &id);
}

#[tokio::test]
async fn whoever_is_refused_is_not_counted_and_gives_back_the_time_to_live() {
    // Covers attack X-25.
    let place = Place::new();
    let node = place.node().await;
    let mut order = order("p");
    for number in 0..100 {
        order.request.limits.memory_bytes = Some((256 << 20) + number * 4096);
        assert!(node.claim(&order, node.plan(&order).unwrap()).is_none());
    }
    assert!(node.status().pool.is_empty(), "{:?}", node.status().pool);
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    order.request.limits.memory_bytes = None;
    order.request.limits.ttl_ms = Some(Limits::MIN.ttl_ms);
    let mut claim = node.claim(&order, node.plan(&order).unwrap()).unwrap();
    let id = claim.id().clone();
    claim.begin();
    drop(claim);
    tokio::time::sleep(Duration::from_millis(2 * Limits::MIN.ttl_ms)).await;
    assert_eq!(node.claim(&order, node.plan(&order).unwrap()).unwrap().id(), &id, "it lives on");
}

#[tokio::test]
async fn a_project_that_asks_for_many_kinds_leaves_others_theirs() {
    // Covers attack X-25.
    let place = Place::new();
    let node = place.node().await;
    create(&node, "other").await.unwrap();
    let mut order = order("many");
    for number in 0..20 {
        order.request.limits.memory_bytes = Some((256 << 20) + number * 4096);
        let id = node::machine::fresh_id().unwrap();
        node.create(&id, &order, None).await.unwrap();
        node.stop(&id, EndReason::Stopped).await;
    }
    let kinds = node.status().pool;
    assert_eq!(kinds.len(), 9, "{kinds:?}");
    ready(&node, 1).await;
}

#[tokio::test]
async fn a_template_that_was_made_anew_is_not_given_as_it_was() {
    let place = Place::new();
    let node = place.node().await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    let before = place.there().await;
    place.template('c');
    let made = create(&node, "p").await.unwrap();
    assert_eq!(made.start, Start::Cold);
    assert!(!before.contains(&made.id));
    // Sandboxes of the old template are removed, and the new ones use the new template.
    until("the old one gone", async || place.there().await.intersection(&before).count() == 1).await;
    ready(&node, 1).await;
    assert_eq!(create(&node, "p").await.unwrap().start, Start::Warm);
}

#[tokio::test]
async fn ready_ones_take_nobodys_place() {
    let place = Place::new();
    let bounds = Bounds { sandboxes_max: 2, disk_reserve_bytes: 0, ..Bounds::default() };
    let node = place.node_with(bounds).await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    // The limit is two live sandboxes, regardless of pre-warmed ones.
    let refused = create(&node, "p").await.unwrap_err().to_api();
    assert_eq!(refused.code, api::ErrorCode::Capacity);
    node.drain(true);
    assert_eq!(create(&node, "p").await.unwrap_err().to_api().code, api::ErrorCode::Capacity);
}

#[tokio::test]
async fn one_that_cannot_be_made_is_nobodys_trouble() {
    let place = Place::new();
    let node = place.node().await;
    place.sim.faults(|faults| faults.start_error_at = Some(2));
    create(&node, "p").await.unwrap();
    let failed = async || place.sim.faults(|faults| faults.start_error_at.is_none());
    until("the failure", async || failed().await && place.there().await.len() == 1).await;
    // The next request creates its own sandbox, and the pool tries again.
    assert_eq!(create(&node, "p").await.unwrap().start, Start::Cold);
    ready(&node, 1).await;
    assert_eq!(node.list().len(), 2, "of the one that failed nobody was told");
}

#[tokio::test]
async fn what_is_ready_ends_with_the_server_or_with_the_next() {
    let mut place = Place::new();
    let node = place.node().await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    let mine = create(&node, "p").await.unwrap().id;
    ready(&node, 1).await;
    place.kill(node);
    assert!(place.there().await.len() > 2);
    let node = place.node().await;
    until("what was ready gone", async || place.there().await.len() == 2).await;
    assert_eq!(node.list().len(), 2);
    says_hello(&node, &mine).await;
    // The server shuts down in an orderly way.
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    node.close_pool().await;
    assert_eq!(place.there().await.len(), 3);
    assert_eq!(create(&node, "p").await.unwrap().start, Start::Cold);
}

#[tokio::test]
async fn what_is_being_made_ends_with_the_server_too() {
    let place = Place::new();
    let node = place.node().await;
    create(&node, "p").await.unwrap();
    ready(&node, 1).await;
    place.sim.faults(|faults| faults.start_delay = Duration::from_millis(300));
    create(&node, "p").await.unwrap();
    let making = async || pool(&node).making > 0;
    until("one more being made", making).await;
    node.close_pool().await;
    assert_eq!(place.there().await.len(), 2, "only what was asked for is there");
}

#[tokio::test]
async fn a_claim_that_is_on_its_way_when_the_server_ends_is_given_or_gone() {
    for given in [true, false] {
        let place = Place::new();
        let node = place.node().await;
        create(&node, "p").await.unwrap();
        ready(&node, 1).await;
        let order = order("p");
        let claim = node.claim(&order, node.plan(&order).unwrap()).unwrap();
        let closing = tokio::spawn({
            let node = node.clone();
            async move { node.close_pool().await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!closing.is_finished(), "it is waited for");
        if given {
            let id = claim.id().clone();
            assert_eq!(node.create(&id, &order, Some(claim)).await.unwrap().start, Start::Warm);
        } else {
            drop(claim);
        }
        tokio::time::timeout(WITHIN, closing).await.unwrap().unwrap();
        assert_eq!(place.there().await.len(), 1 + usize::from(given));
    }
}

#[tokio::test]
async fn a_server_killed_at_any_moment_gives_each_to_one_and_loses_none() {
    let mut place = Place::new();
    place.sim.faults(|faults| faults.start_delay = Duration::from_millis(3));
    let mut owned = HashSet::new();
    for round in 0..40_u64 {
        let node = place.node().await;
        let answered = Arc::new(std::sync::Mutex::new(vec![create(&node, "p").await.unwrap().id]));
        ready(&node, 1).await;
        let creating = {
            let (node, answered) = (node.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                loop {
                    if let Ok(made) = create(&node, "p").await {
                        answered.lock().unwrap().push(made.id);
                    }
                }
            })
        };
        tokio::time::sleep(Duration::from_micros(round * 700 % 11_000)).await;
        creating.abort();
        place.kill(node);
        owned.extend(answered.lock().unwrap().drain(..));
        let node = place.node().await;
        let settled = async || {
            let listed: HashSet<_> =
                node.list().iter().filter(|one| !one.state.is_terminal()).map(|one| one.id.clone()).collect();
            place.there().await == listed
        };
        until("what is there is what is listed", settled).await;
        let live: HashSet<_> = node.list().iter().map(|one| one.id.clone()).collect();
        assert!(owned.is_subset(&live), "round {round}: what was answered is there");
        assert!(node.list().iter().all(|one| one.project == "p"), "and nobody's is nobody's");
        for one in node.list().iter().filter(|one| one.state.is_terminal()) {
            node.forget(&one.id).unwrap();
        }
        place.kill(node);
    }
    assert!(owned.len() > 60, "{} were claimed or made", owned.len());
}

//! Pre-warmed sandboxes on real runtimes. They are identical to cold sandboxes, each is claimed only once,
//! and a killed server leaves none behind.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use api::code::Code;
use api::exec::{ExecSpec, Outcome};
use api::sandbox::{CreateSandbox, Sandbox, Start, Tier};
use api::server::PoolStatus;
use client::Client;
use e2e::lab::script;
use e2e::service::{Service, served, small, tiers, until};
use tokio::task::JoinSet;

/// Timeout for the server to pre-warm a few sandboxes, with their imports, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Starts a server with a pool. The servers of other tests have no pool.
fn pooled(more: &str) -> (Service, tempfile::NamedTempFile) {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), format!("pool_ready = 1\n{more}")).unwrap();
    (Service::with(&[], &["--config", config.path().to_str().unwrap()]), config)
}

async fn status(client: &Client) -> PoolStatus {
    client.node().await.unwrap().pool.into_iter().next().unwrap_or_default()
}

async fn ready(client: &Client) -> u32 {
    until(READY_WITHIN, "as many ready as are wanted", async || {
        let pool = status(client).await;
        pool.ready > 0 && pool.ready == pool.wanted && pool.making == 0
    })
    .await;
    status(client).await.ready
}

async fn said(client: &Client, sandbox: &Sandbox, line: &str) -> String {
    let done = client.exec(&sandbox.id, &script(line)).await.unwrap().collect().await.unwrap();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_ready_sandbox_is_like_one_that_was_made_for_whoever_asked() {
    served(async || {
        for tier in tiers() {
            alike(tier).await;
        }
    });
}

async fn alike(tier: Tier) {
    let (service, _config) = pooled("");
    let client = service.client();
    let ask = CreateSandbox { tier, ..small() };
    let cold = client.create(&ask).await.unwrap();
    ready(&client).await;
    let warm = client.create(&ask).await.unwrap();
    assert_eq!((cold.start, warm.start), (Start::Cold, Start::Warm));
    assert_eq!((&cold.limits, &cold.policy, cold.tier), (&warm.limits, &warm.policy, warm.tier));
    // The pre-warmed sandbox has the same files, environment and processes as the cold one, and nothing from
    // a different user.
    let look = "ls -laR /workspace /tmp /home 2>&1 | sed 's/[A-Z][a-z][a-z]  *[0-9]* [0-9:]*//'; env | sort; id; \
                ps -e -o user,args 2>/dev/null || ls /proc | grep -c '^[0-9]'; cat /proc/sys/kernel/hostname";
    let (seen, other) = (said(&client, &warm, look).await, said(&client, &cold, look).await);
    let same = |text: &str, one: &Sandbox| text.replace(one.id.as_str(), "SANDBOX");
    assert_eq!(same(&seen, &warm), same(&other, &cold));
    assert_eq!(said(&client, &warm, "echo mine > /workspace/f; cat /workspace/f").await, "mine\n");
    for one in [cold, warm] {
        client.stop(&one.id).await.unwrap();
    }
}

#[test]
#[ignore = "starts real sandboxes"]
fn many_who_ask_at_once_get_one_each_and_a_killed_server_leaves_none() {
    served(async || {
        if tiers().any(|tier| tier == Tier::Container) {
            many().await;
        }
    });
}

async fn many() {
    let (mut service, _config) = pooled("");
    let client = service.client();
    let burst = async |client: &Client| {
        let mut asked = JoinSet::new();
        for _ in 0..20 {
            let client = client.clone();
            asked.spawn(async move { client.create(&small()).await.unwrap() });
        }
        asked.join_all().await
    };
    let mut all: HashSet<_> = burst(&client).await.into_iter().map(|one| one.id).collect();
    assert!(ready(&client).await >= 20);
    let began = Instant::now();
    let made = burst(&client).await;
    let warm = made.iter().filter(|one| one.start == Start::Warm).count();
    eprintln!("20 at once: {warm} were ready, {:?}", began.elapsed());
    assert_eq!(warm, 20);
    all.extend(made.into_iter().map(|one| one.id));
    assert_eq!(all.len(), 40, "each was given once");
    // When the server is killed, sandboxes that are in the pool or being created are removed, and claimed
    // sandboxes continue.
    for _ in 0..3 {
        let asking = client.clone();
        let creating = tokio::spawn(async move {
            let mut made = Vec::new();
            while let Ok(one) = asking.create(&small()).await {
                made.push(one.id);
            }
            made
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        service.kill();
        service.begin();
        tokio::time::sleep(Duration::from_millis(200)).await;
        creating.abort();
    }
    let list = client.sandboxes(false).await.unwrap();
    let listed: HashSet<_> = list.into_iter().map(|one| one.id).collect();
    assert!(all.is_subset(&listed), "what was answered is there");
    service.kill();
    service.begin();
    let client = service.client();
    let mut ends = JoinSet::new();
    for id in listed {
        let client = client.clone();
        ends.spawn(async move { client.stop(&id).await.unwrap() });
    }
    ends.join_all().await;
    // Since its restart, this server has received no create request, so it has not pre-warmed any sandboxes.
    service.assert_nothing_left().await;
}

#[test]
#[ignore = "starts real sandboxes"]
fn code_in_a_ready_sandbox_finds_its_imports_done() {
    // Requirements A10.02 and A10.03: in a warm sandbox the imports are already loaded, so code starts ten
    // times faster than in a cold sandbox.
    served(async || {
        if tiers().any(|tier| tier == Tier::Container) {
            imported().await;
        }
    });
}

async fn imported() {
    let (mut service, config) = pooled("");
    e2e::layer::lend(service.data(), "interpreter");
    // Building a template made this process adopt orphans. Undo this, so that it does not adopt the orphans
    // of a killed server.
    let _ = rustix::process::set_child_subreaper(None);
    std::fs::write(config.path(), "pool_ready = 1\npool_templates = [\"interpreter\"]\n").unwrap();
    service.kill();
    service.begin();
    let client = service.client();
    ready(&client).await;
    let ask = CreateSandbox { template: "interpreter".into(), ..CreateSandbox::default() };
    let source =
        "import sys; print(all(name in sys.modules for name in ['numpy', 'pandas', 'matplotlib.pyplot']))";
    let spec =
        ExecSpec { code: Some(Code { source: source.into(), ..Code::default() }), ..ExecSpec::default() };
    let mut took = Vec::new();
    for start in [Start::Warm, Start::Cold] {
        if start == Start::Cold {
            service.kill();
            std::fs::write(config.path(), "pool_ready = 0\n").unwrap();
            service.begin();
        }
        let client = service.client();
        let began = Instant::now();
        let made = client.create(&ask).await.unwrap();
        let done = client.exec(&made.id, &spec).await.unwrap().collect().await.unwrap();
        took.push(began.elapsed());
        assert_eq!((made.start, done.stdout.as_slice()), (start, b"True\n".as_slice()));
        client.stop(&made.id).await.unwrap();
    }
    eprintln!("create and run code: warm {:?}, cold {:?}", took[0], took[1]);
    assert!(took[0] * 10 < took[1], "{took:?}");
}

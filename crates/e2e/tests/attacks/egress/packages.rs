//! Attacks N-31 and N-39: through the gate (the package proxy), a sandbox fetches packages that its policy
//! does not allow from a careless mirror.

use api::SandboxId;
use api::account::Role;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use client::Client;
use e2e::attack;
use e2e::service::{PLENTY, Service, small};
use e2e::world::{EVIL, Inside, World, in_a_world};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::ground::{through, words};

const PORT: &str = "8081";
/// Content of the Python package on the mirror.
const PYTHON: &str = "what demo has for python";

/// A server whose package indexes are on a careless mirror.
struct Place {
    service: Service,
    _mirror: Inside,
    _home: TempDir,
}

impl Place {
    fn new(world: &World) -> Self {
        let program = e2e::attack::shared("mirror.py");
        let mut mirror = world.inside(&["python3", program.to_str().unwrap(), EVIL, PORT]);
        assert_eq!(mirror.says(), "ready\n");
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("serve.toml");
        let base = format!("http://{EVIL}:{PORT}");
        let text = format!(
            "pool_ready = 0\npackages_python = \"{base}/simple\"\npackages_node = \"{base}/npm\"\npackages_debian = \"{base}/debian\"\npackages_debian_security = \"{base}/debian\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let service = world.service_with(&["--config", config.to_str().unwrap()]);
        Self { service, _mirror: mirror, _home: home }
    }
}

async fn sandbox(client: &Client, tier: Tier, words: &[&str]) -> SandboxId {
    let policy = Some(Policy::of_words(words).unwrap());
    client.create(&CreateSandbox { tier, policy, ..small() }).await.unwrap().id
}

/// Fetches a path from the gate and returns the HTTP status.
async fn fetch(client: &Client, sandbox: &SandboxId, path: &str) -> String {
    let script =
        format!("curl -s -o /dev/null -w '%{{http_code}}' -x 127.0.0.1:3128 http://packages.bellglass{path}");
    let done = client.exec(sandbox, &e2e::lab::script(&script)).await.unwrap().collect().await.unwrap();
    String::from_utf8(done.stdout).unwrap()
}

async fn run(client: &Client, id: &str, sandbox: &SandboxId, arguments: &[&str]) -> (usize, String) {
    let spec = e2e::lab::exec(&words(id, arguments).iter().map(String::as_str).collect::<Vec<_>>());
    let done = client.exec(sandbox, &spec).await.unwrap().collect().await.unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(!said.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    (through(&said), said)
}

/// Verifies that attack N-31 fails: a cached file is not served to a sandbox whose policy does not allow the
/// file.
#[test]
#[ignore = "starts real sandboxes"]
fn what_is_kept_for_one_policy_is_not_given_to_another() {
    in_a_world(async |world| {
        for tier in e2e::service::tiers() {
            let mut place = Place::new(world);
            let digits: String = Sha256::digest(PYTHON).iter().map(|byte| format!("{byte:02x}")).collect();
            let attack = async |service: &Service| {
                let pa = service.client_of("pa", Role::Write, PLENTY).await;
                let owner = sandbox(&pa, tier, &["python-packages=demo"]).await;
                assert_eq!(fetch(&pa, &owner, "/python/files/demo/demo-1.0.tar.gz").await, "200");
                let pb = service.client_of("pb", Role::Write, PLENTY).await;
                let other = sandbox(&pb, tier, &["debian-packages=curl"]).await;
                // Control: the sandbox gets packages that its policy allows.
                assert_eq!(fetch(&pb, &other, "/debian/pool/main/c/curl/curl_1_all.deb").await, "200");
                assert_eq!(fetch(&pb, &other, "/debian/dists/bookworm/InRelease").await, "200");
                run(&pb, "N-31", &other, &[&digits]).await
            };
            let (count, said) = attack(&place.service).await;
            assert_eq!(count, 0, "went through: {said}");
            world.undefend(&mut place.service, "N-31");
            let (control, said) = attack(&place.service).await;
            assert!(said.contains(&format!("/debian/x/by-hash/SHA256/{digits} ok")), "control: {said}");
            assert!(said.contains("/debian/Pool/main/n/nmap/nmap_1.deb ok"), "control: {said}");
            let figures = format!("the control reached {control} of {}", said.lines().count());
            attack::held("N-31", &format!("{tier:?}"), &figures);
        }
    });
}

/// Verifies that attack N-39 fails: if a policy lists npm packages, no other package is served.
#[test]
#[ignore = "starts real sandboxes"]
fn a_list_of_npm_packages_is_the_list_of_what_comes_in() {
    in_a_world(async |world| {
        for tier in e2e::service::tiers() {
            let place = Place::new(world);
            let service = &place.service;
            let pa = service.client_of("pa", Role::Write, PLENTY).await;
            let owner = sandbox(&pa, tier, &["node-packages=secret"]).await;
            let script = "curl -s -x 127.0.0.1:3128 http://packages.bellglass/npm/secret/-/secret-1.0.0.tgz | sha256sum";
            let done = pa.exec(&owner, &e2e::lab::script(script)).await.unwrap().collect().await.unwrap();
            let digits = String::from_utf8(done.stdout).unwrap()[..64].to_owned();
            let pb = service.client_of("pb", Role::Write, PLENTY).await;
            let mut policy =
                Policy::of_words(&["node-packages=demo,@scope/demo,liar,wanderer,weak,private"]).unwrap();
            policy.packages.minimum_age_ms = 86_400_000;
            let request = CreateSandbox { tier, policy: Some(policy), ..small() };
            let listed = pb.create(&request).await.unwrap().id;
            for path in [
                "/npm/demo",
                "/npm/demo/-/demo-1.0.0.tgz",
                "/npm/@scope%2fdemo",
                "/npm/@scope/demo/-/demo-1.0.0.tgz",
            ] {
                assert_eq!(fetch(&pb, &listed, path).await, "200", "{path}");
            }
            let (count, said) = run(&pb, "N-39", &listed, &[&digits]).await;
            assert_eq!(count, 0, "went through: {said}");
            // Control: with a policy that does not list packages, the same requests succeed.
            let all = sandbox(&pb, tier, &["node-packages", "93.184.216.35:8081"]).await;
            let (control, reached) = run(&pb, "N-39", &all, &[&digits]).await;
            for thing in [
                "document",
                "tarball",
                "scope 2F",
                "case",
                "young",
                "query",
                "the mirror itself",
                "tags of the document",
            ] {
                assert!(
                    reached.contains(&format!("\n{thing} ok")) || reached.starts_with(&format!("{thing} ok")),
                    "control: {thing}: {reached}"
                );
            }
            // Files with a wrong hash, a weak hash or a redirect are refused under every policy.
            for thing in
                ["liar", "weak", "redirect", "private", "by hash", "put", "steps 2f", "tarball below"]
            {
                assert!(!reached.contains(&format!("\n{thing} ok")), "{thing}: {reached}");
            }
            attack::count_control();
            let figures = format!("{} tries; the control reached {control}", said.lines().count());
            attack::held("N-39", &format!("{tier:?}"), &figures);
        }
    });
}

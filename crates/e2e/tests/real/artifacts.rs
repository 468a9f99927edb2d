//! Artifacts and datasets of real sandboxes. Artifacts outlive their sandbox and survive every kill of the
//! server. Every file that is left out is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::account::{Quota, Role};
use api::artifact::{Artifacts, Keep, Why};
use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, Tier};
use api::{ErrorCode, ExecId, SandboxId};
use bytes::Bytes;
use client::Client;
use e2e::lab::script;
use e2e::service::{PLENTY, Service, served, small, tiers, until};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

/// Timeout for the collection of a run's artifacts, on a machine under load.
const WAIT: Duration = Duration::from_secs(60);

fn roomy(tier: Tier) -> CreateSandbox {
    let limits = Limits { disk_bytes: 256 << 20, disk_inodes: 16_384, ..e2e::service::small_limits() };
    CreateSandbox { tier, limits: limits.into(), ..small() }
}

fn on_each(test: impl AsyncFn(&mut Service, Tier)) {
    served(async || {
        let mut service = Service::start();
        for tier in tiers() {
            test(&mut service, tier).await;
        }
    });
}

fn out() -> Keep {
    Keep::folders(vec!["/workspace/out".into()])
}

fn keeping(text: &str, keep: Keep) -> ExecSpec {
    ExecSpec { artifacts: Some(keep), ..script(text) }
}

/// Runs a script to completion and returns the artifacts that were kept.
async fn run(client: &Client, id: &SandboxId, text: &str, keep: Keep) -> (ExecId, Artifacts) {
    let exec = client.exec(id, &keeping(text, keep)).await.unwrap();
    let of = exec.id().clone();
    let done = exec.collect().await.unwrap();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{}", String::from_utf8_lossy(&done.stderr));
    let kept = client.artifacts(id, &of, WAIT).await.unwrap();
    whole(&kept);
    (of, kept)
}

/// Panics unless every file that was found is either kept, or reported as left out, by name or in the count.
fn whole(kept: &Artifacts) {
    assert!(!kept.pending, "{kept:?}");
    let told = kept.items.len() as u64 + kept.left_out.len() as u64 + kept.more_left_out;
    assert_eq!(kept.found, told, "{kept:?}");
}

fn names(kept: &Artifacts) -> Vec<&str> {
    kept.items.iter().map(|item| item.name.as_str()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn said(client: &Client, id: &SandboxId, text: &str) -> String {
    let done = client.exec(id, &script(text)).await.unwrap().collect().await.unwrap();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
}

#[test]
#[ignore = "starts real sandboxes"]
fn files_of_a_run_are_kept_and_read_after_the_sandbox_is_gone() {
    on_each(async |service, tier| {
        let client = service.client();
        let id = client.create(&roomy(tier)).await.unwrap().id;
        said(&client, &id, "mkdir -p out/old; echo as it was > out/old/a.txt; echo first > out/b.csv").await;
        let text = "echo second > out/b.csv; printf 'a\\0b' > out/plot.PNG; mkdir out/deep; : > out/deep/empty; \
                    echo elsewhere > c.txt; touch -d @0 out/deep/old.json";
        let (of, kept) = run(&client, &id, text, out()).await;
        assert!(kept.complete && kept.error.is_none() && !kept.unseen, "{kept:?}");
        assert_eq!(names(&kept), ["b.csv", "deep/empty", "deep/old.json", "plot.PNG"], "no clock is asked");
        let types: Vec<_> = kept.items.iter().map(|item| item.mime.as_str()).collect();
        assert_eq!(types, ["text/csv", "application/octet-stream", "application/json", "image/png"]);
        assert_eq!(kept.items[3].path, "/workspace/out/plot.PNG");
        assert_eq!((kept.items[3].size_bytes, kept.items[3].sha256.clone()), (3, sha256(b"a\0b")));
        // The second run keeps only the files that were created after the first run.
        let (second, again) = run(&client, &id, "echo third > out/d", out()).await;
        assert_eq!(names(&again), ["d"]);
        client.stop(&id).await.unwrap();
        service.kill();
        service.begin();
        assert_eq!(client.artifacts(&id, &of, Duration::ZERO).await.unwrap(), kept);
        assert_eq!(client.artifact(&id, &of, &kept.items[0]).await.unwrap(), b"second\n");
        assert_eq!(client.artifact(&id, &of, &kept.items[1]).await.unwrap(), b"");
        assert_eq!(client.artifact(&id, &of, &kept.items[3]).await.unwrap(), b"a\0b");
        let mut all = client.all_artifacts(&id).await.unwrap();
        all.sort_by_key(|one| one.exec != of);
        assert_eq!(all.iter().map(|one| &one.exec).collect::<Vec<_>>(), [&of, &second]);
        let missing = client.artifacts(&id, &"e1".parse().unwrap(), Duration::ZERO).await.unwrap_err();
        assert_eq!(missing.code(), Some(ErrorCode::NotFound));
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn what_is_not_kept_is_told_with_the_reason() {
    on_each(async |service, tier| {
        let client = service.client();
        let id = client.create(&roomy(tier)).await.unwrap().id;
        let keep = Keep { count_max: 3, file_bytes_max: 1000, bytes_max: 1500, ..out() };
        let text = "mkdir out; cd out; for n in 1 2 3; do head -c 600 /dev/zero > a$n; done; truncate -s 100G huge; \
                    echo b > b; echo c > c; echo z > z; chmod 000 z; ln -s /etc/passwd link; mkfifo fifo; \
                    ln -s . loop; mkdir d";
        let (of, kept) = run(&client, &id, text, keep).await;
        assert!(kept.complete, "{kept:?}");
        assert_eq!(names(&kept), ["a1", "a2", "b"]);
        let left: Vec<_> = kept.left_out.iter().map(|left| (left.path.as_str(), left.why)).collect();
        assert_eq!(
            left,
            [
                ("/workspace/out/a3", Why::TooMuch),
                ("/workspace/out/c", Why::TooMany),
                ("/workspace/out/huge", Why::TooLarge),
                ("/workspace/out/z", Why::TooMany),
            ]
        );
        assert_eq!(client.artifact(&id, &of, &kept.items[0]).await.unwrap(), vec![0; 600]);
        let (_, many) = run(&client, &id, "cd out; for n in $(seq 300); do : > n$n; done", out()).await;
        assert_eq!(
            (many.items.len(), many.left_out.len(), many.more_left_out, many.found),
            (20, 100, 180, 300)
        );
        let (_, shut) = run(&client, &id, "echo s > out/shut; chmod 000 out/shut", out()).await;
        assert_eq!(shut.left_out.iter().map(|left| left.why).collect::<Vec<_>>(), [Why::Unreadable]);
        client.stop(&id).await.unwrap();
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn hostile_names_and_files_that_never_rest_do_no_harm() {
    on_each(async |service, tier| {
        let client = service.client();
        let id = client.create(&roomy(tier)).await.unwrap().id;
        let text = r#"mkdir out; cd out; for n in $'new\nline' $'\xff\xfe' ' a ' '-rf' $'\e]0;pwn\a.png' '%2e%2e%2fx' '#1' manifest.json \
                     $'q\x22;\r'; do echo content > "./$n"; done; cat /dev/null > './...'
                     (while :; do head -c 2000000 /dev/urandom > restless; done) & disown; sleep 0.2"#;
        let (of, kept) = run(&client, &id, text, out()).await;
        assert!(kept.found >= 10, "{kept:?}");
        for item in &kept.items {
            let bytes = client.artifact(&id, &of, item).await.unwrap();
            assert_eq!(item.sha256, sha256(&bytes), "{}", item.name);
        }
        let odd = kept.items.iter().find(|item| item.path_encoded.is_some()).expect("a name that is no text");
        assert_eq!(odd.path_encoded.as_deref(), Some("/workspace/out/%FF%FE"));
        assert!(names(&kept).contains(&"manifest.json") && names(&kept).contains(&"new\nline"));
        client.stop(&id).await.unwrap();
        // The first folder does not exist; the second path is a file, not a folder.
        let id = client.create(&roomy(tier)).await.unwrap().id;
        let (_, none) = run(&client, &id, "true", Keep::folders(vec!["/nowhere".into()])).await;
        assert!(none.complete && none.found == 0, "{none:?}");
        let (_, file) = run(&client, &id, "echo > file", Keep::folders(vec!["file".into()])).await;
        assert!(!file.complete && file.error.is_some(), "{file:?}");
        client.stop(&id).await.unwrap();
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_server_that_is_killed_before_or_during_a_collection_loses_nothing() {
    on_each(async |service, tier| {
        let client = service.client();
        let id = client.create(&roomy(tier)).await.unwrap().id;
        // The server is killed while the exec runs, and the exec ends while no server is running.
        let text = "mkdir -p out; echo before > out/early; sleep 1; echo after > out/late";
        let early = client.start(&id, &keeping(text, out())).await.unwrap().id;
        service.kill();
        tokio::time::sleep(Duration::from_secs(3)).await;
        service.begin();
        let kept = client.artifacts(&id, &early, WAIT).await.unwrap();
        whole(&kept);
        assert!(kept.complete, "{kept:?}");
        assert_eq!(names(&kept), ["early", "late"]);
        // The server is killed while it reads the exec's files.
        let text = "mkdir -p big; for n in $(seq 10 24); do head -c 4000000 /dev/urandom > big/$n; done; sha256sum big/*";
        let keep = Keep::folders(vec!["big".into()]);
        let exec = client.exec(&id, &keeping(text, keep)).await.unwrap();
        let of = exec.id().clone();
        let sums = String::from_utf8(exec.collect().await.unwrap().stdout).unwrap();
        let first = kept_directory(service, &id, &of).join("0");
        until(WAIT, "the first file", async || first.exists()).await;
        service.kill();
        service.begin();
        let kept = client.artifacts(&id, &of, WAIT).await.unwrap();
        whole(&kept);
        assert!(kept.complete && kept.items.len() == 15, "{kept:?}");
        for item in &kept.items {
            assert!(sums.contains(&item.sha256), "{}", item.name);
        }
        assert_eq!(sha256(&client.artifact(&id, &of, &kept.items[14]).await.unwrap()), kept.items[14].sha256);
        client.stop(&id).await.unwrap();
        assert_eq!(client.artifacts(&id, &of, Duration::ZERO).await.unwrap(), kept);
    });
}

/// Returns the persisted requests for artifacts, ignoring the partial files that a killed server may have
/// left.
fn wanted_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = entries.flat_map(|path| if path.is_dir() { wanted_files(&path) } else { vec![path] });
    all.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
}

fn kept_directory(service: &Service, id: &SandboxId, of: &ExecId) -> PathBuf {
    service.data().join("artifacts/kept/default").join(id.as_str()).join(of.as_str())
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_that_ends_first_is_told_and_what_could_be_had_is_there() {
    on_each(async |service, tier| {
        let client = service.client();
        // A stop right after the end of an exec waits until the exec's files are collected.
        let id = client.create(&roomy(tier)).await.unwrap().id;
        let exec = client.exec(&id, &keeping("mkdir out; echo x > out/x", out())).await.unwrap();
        let of = exec.id().clone();
        exec.collect().await.unwrap();
        client.stop(&id).await.unwrap();
        let kept = client.artifacts(&id, &of, Duration::ZERO).await.unwrap();
        assert!(kept.complete && names(&kept) == ["x"], "{kept:?}");
        // The sandbox is stopped while the exec runs.
        let id = client.create(&roomy(tier)).await.unwrap().id;
        let of = client.start(&id, &keeping("mkdir out; echo y > out/y; sleep 99", out())).await.unwrap().id;
        until(WAIT, "the file", async || said(&client, &id, "ls out 2>&- || true").await == "y").await;
        client.stop(&id).await.unwrap();
        let kept = client.artifacts(&id, &of, WAIT).await.unwrap();
        whole(&kept);
        assert!(!kept.complete && names(&kept) == ["y"], "{kept:?}");
        assert_eq!(kept.error.unwrap().code, ErrorCode::SandboxLost);
        // Process 1 is killed from the host, once while the server runs and once while no server runs.
        for between in [false, true] {
            let id = client.create(&roomy(tier)).await.unwrap().id;
            let of =
                client.start(&id, &keeping("mkdir out; echo z > out/z; sleep 99", out())).await.unwrap().id;
            let process = Pid::from_raw(service.process_of(&id)).unwrap();
            if between {
                service.kill();
            }
            kill_process(process, Signal::KILL).unwrap();
            if between {
                service.begin();
            }
            let kept = client.artifacts(&id, &of, WAIT).await.unwrap();
            whole(&kept);
            assert!(!kept.complete, "{kept:?}");
            assert_eq!(kept.error.unwrap().code, ErrorCode::SandboxLost);
        }
        assert_eq!(wanted_files(&service.data().join("artifacts/wanted")), Vec::<PathBuf>::new());
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn artifacts_and_datasets_of_another_project_are_not_there() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&roomy(Tier::Container)).await.unwrap().id;
        let (of, kept) = run(&client, &id, "mkdir out; echo x > out/x", out()).await;
        client.put_dataset("mine", Bytes::from_static(b"secret")).await.unwrap();
        let other = service.client_of("other", Role::Admin, PLENTY).await;
        let gone = |error: client::Error| assert_eq!(error.code(), Some(ErrorCode::NotFound));
        gone(other.artifacts(&id, &of, Duration::ZERO).await.unwrap_err());
        gone(other.artifact(&id, &of, &kept.items[0]).await.unwrap_err());
        gone(other.all_artifacts(&id).await.unwrap_err());
        assert_eq!(other.datasets().await.unwrap(), []);
        other.remove_dataset("mine").await.unwrap();
        assert_eq!(client.datasets().await.unwrap().len(), 1);
        gone(other.create(&with_datasets(Tier::Container, &[("a", "mine")])).await.unwrap_err());
        let reader = service.client_of("default", Role::Read, PLENTY).await;
        assert_eq!(reader.artifact(&id, &of, &kept.items[0]).await.unwrap(), b"x\n");
        let refused = reader.put_dataset("mine", Bytes::new()).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Forbidden));
        // Positive control: a key of the owning project can read the artifact.
        assert_eq!(client.artifact(&id, &of, &kept.items[0]).await.unwrap(), b"x\n");
    });
}

/// Starts a server with a configuration file that the test can rewrite later.
fn configured(text: &str) -> (tempfile::TempDir, PathBuf, Service) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("bellglass.toml");
    std::fs::write(&path, format!("{text}pool_ready = 0\n")).unwrap();
    let service = Service::with(&[], &["--config", path.to_str().unwrap()]);
    (place, path, service)
}

#[test]
#[ignore = "starts real sandboxes"]
fn artifacts_go_when_their_time_is_over_and_a_server_that_keeps_none_says_so() {
    served(async || {
        let (_place, path, mut service) = configured("artifact_retention_ms = 3000\n");
        let client = service.client();
        let id = client.create(&roomy(Tier::Container)).await.unwrap().id;
        let (of, kept) = run(&client, &id, "mkdir out; echo x > out/x", out()).await;
        assert!(kept.expires_at_ms.is_some() && kept_directory(&service, &id, &of).join("0").exists());
        until(WAIT, "the end of their time", async || {
            client
                .artifacts(&id, &of, Duration::ZERO)
                .await
                .is_err_and(|error| error.code() == Some(ErrorCode::NotFound))
        })
        .await;
        let gone = client.artifact(&id, &of, &kept.items[0]).await.unwrap_err();
        assert_eq!(gone.code(), Some(ErrorCode::NotFound));
        service.kill();
        std::fs::write(&path, "artifact_retention_ms = 0\n").unwrap();
        service.begin();
        until(WAIT, "the files to go", async || !kept_directory(&service, &id, &of).exists()).await;
        let refused = client.start(&id, &keeping("true", out())).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Unsupported));
        assert!(refused.to_string().contains("artifact_retention_ms"), "{refused}");
        assert_eq!(said(&client, &id, "echo still").await, "still");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_machine_without_room_keeps_nothing_and_says_so() {
    served(async || {
        let (_place, path, mut service) = configured("");
        let client = service.client();
        let id = client.create(&roomy(Tier::Container)).await.unwrap().id;
        service.kill();
        std::fs::write(&path, format!("disk_reserve_bytes = {}\n", 1_u64 << 60)).unwrap();
        service.begin();
        let (_, kept) = run(&client, &id, "mkdir out; echo x > out/x; : > out/y", out()).await;
        assert!(kept.items.is_empty() && kept.found == 2, "{kept:?}");
        assert!(kept.left_out.iter().all(|left| left.why == Why::NoRoom), "{kept:?}");
        let refused = client::Client::with(&service.url(), &service.key, impatient()).unwrap();
        let refused = refused.put_dataset("a", Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Capacity));
    });
}

fn impatient() -> client::Options {
    let patience = client::Patience { busy: Duration::ZERO, ..client::Patience::default() };
    client::Options { patience, ..client::Options::default() }
}

fn with_datasets(tier: Tier, places: &[(&str, &str)]) -> CreateSandbox {
    let datasets: BTreeMap<_, _> =
        places.iter().map(|(path, name)| ((*path).to_owned(), (*name).to_owned())).collect();
    CreateSandbox { datasets, ..roomy(tier) }
}

/// Datasets are in place before the first exec, and they belong to the user that runs code.
#[test]
#[ignore = "starts real sandboxes"]
fn datasets_are_there_before_the_first_exec() {
    on_each(async |service, tier| {
        let client = service.client();
        let table = Bytes::from(vec![b'7'; 3_000_000]);
        let put = client.put_dataset("table.csv", table.clone()).await.unwrap();
        assert_eq!((put.size_bytes, put.sha256), (3_000_000, sha256(&table)));
        client.put_dataset_from("empty", &mut &b""[..]).await.unwrap();
        let request = with_datasets(tier, &[("data/in/table.csv", "table.csv"), ("/tmp/empty", "empty")]);
        let id = client.create(&request).await.unwrap().id;
        let text = "stat -c '%n %u %a %s' data/in/table.csv /tmp/empty; sha256sum < data/in/table.csv; echo more >> data/in/table.csv";
        let said = said(&client, &id, text).await;
        let sum = sha256(&table);
        assert_eq!(said, format!("data/in/table.csv 1000 644 3000000\n/tmp/empty 1000 644 0\n{sum}  -"));
        // A new version of a dataset affects only sandboxes that are created later.
        client.put_dataset("table.csv", Bytes::from_static(b"new")).await.unwrap();
        let next = client.create(&with_datasets(tier, &[("t", "table.csv")])).await.unwrap().id;
        assert_eq!(self::said(&client, &next, "cat t").await, "new");
        for id in [id, next] {
            client.stop(&id).await.unwrap();
        }
        let listed = client.datasets().await.unwrap();
        assert_eq!(listed.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["empty", "table.csv"]);
        client.remove_dataset("empty").await.unwrap();
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_that_cannot_have_its_datasets_is_refused_and_nothing_is_left() {
    on_each(async |service, tier| {
        let client = service.client();
        let missing = client.create(&with_datasets(tier, &[("a", "nothing")])).await.unwrap_err();
        assert_eq!(missing.code(), Some(ErrorCode::NotFound));
        assert!(missing.to_string().contains("nothing"), "{missing}");
        // This dataset is larger than the sandbox's disk, so its copy fails halfway.
        client.put_dataset("large", Bytes::from(vec![1; 80 << 20])).await.unwrap();
        let request = CreateSandbox {
            limits: e2e::service::small_limits().into(),
            ..with_datasets(tier, &[("a", "large")])
        };
        let failed = client.create(&request).await.unwrap_err();
        assert!(failed.to_string().contains("large"), "{failed}");
        let all = client.sandboxes(true).await.unwrap();
        assert!(
            all.iter().any(|one| one.reason == Some(EndReason::StartFailed) && one.error.is_some()),
            "{all:?}"
        );
        service.assert_nothing_left().await;
        // Datasets count towards the disk quota. A dataset's name must not be a path.
        let poor = Quota { disk_bytes: 1000, ..PLENTY };
        let poor = service.client_of("poor", Role::Write, poor).await;
        let over = poor.put_dataset("x", Bytes::from(vec![0; 2000])).await.unwrap_err();
        assert_eq!(over.code(), Some(ErrorCode::QuotaExceeded));
        assert_eq!(poor.datasets().await.unwrap(), []);
        let wrong = poor.put_dataset("../x", Bytes::new()).await.unwrap_err();
        assert_eq!(wrong.code(), Some(ErrorCode::InvalidRequest));
    });
}

//! Failures of a single sandbox, exec or client: each has a typed outcome, ends in time, and affects nothing
//! else.
//!
//! | module | holds |
//! |---|---|
//! | [`clients`] | clients that are silent, disconnect, come back, are killed or use another version of the API |

mod clients;

use std::time::{Duration, Instant};

use api::account::Role;
use api::exec::{ExecSpec, LostCause, Outcome};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, Sandbox, SandboxState};
use api::{ErrorCode, SandboxId};
use client::Client;
use e2e::lab::{Disk, promised, script};
use e2e::service::{PLENTY, Service, served, small, until};
use e2e::wire::sandbox;
use serde_json::{Value, json};

/// Runs a script in a sandbox and returns its standard output. The script must succeed.
async fn said(client: &Client, id: &SandboxId, text: &str) -> String {
    let done = client.exec(id, &script(text)).await.unwrap().collect().await.unwrap();
    let problem = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{text}: {problem}");
    String::from_utf8(done.stdout).unwrap()
}

/// Waits for a sandbox to end. It polls the state, which does not count as activity.
async fn ended(client: &Client, id: &SandboxId, within: Duration) -> Sandbox {
    until(within, "the end of a sandbox", async || client.sandbox(id).await.unwrap().state.is_terminal())
        .await;
    client.sandbox(id).await.unwrap()
}

/// If process 1 of a sandbox is killed from the host, the sandbox is reported as lost, with the cause, and
/// its streams end.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_killed_from_the_host_is_lost_within_seconds_and_the_next_is_unaffected() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        let exec = client.exec(&id, &script("exec sleep 60")).await.unwrap();
        let pid = rustix::process::Pid::from_raw(service.process_of(&id)).unwrap();
        let begun = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let sandbox = ended(&client, &id, promised(5)).await;
        assert_eq!((sandbox.state, sandbox.reason), (SandboxState::Lost, Some(EndReason::Died)));
        let outcome = exec.collect().await.map(|done| done.end.outcome);
        let lost = Outcome::SandboxLost { cause: LostCause::Died };
        assert!(
            outcome.as_ref() == Ok(&lost)
                || outcome.as_ref().is_err_and(|error| error.code() == Some(ErrorCode::SandboxLost)),
            "{outcome:?}"
        );
        eprintln!("known as lost, and its stream ended, after {:?}", begun.elapsed());
        assert!(begun.elapsed() < promised(5));
        let next = client.create(&small()).await.unwrap().id;
        assert_eq!(said(&client, &next, "echo on").await, "on\n");
        client.stop(&next).await.unwrap();
        service.assert_nothing_left().await;
    });
}

/// A call or a running exec keeps a sandbox alive. Reading the sandbox's state neither extends nor shortens
/// its life.
#[test]
#[ignore = "starts real sandboxes"]
fn an_exec_keeps_its_sandbox_and_looking_at_one_changes_nothing() {
    served(async || {
        let service = Service::start();
        let (client, wire) = (service.client(), service.wire());
        let quiet = CreateSandbox { idle_ms: 2000, ..small() };
        let busy = client.create(&quiet).await.unwrap().id;
        client.start(&busy, &script("exec sleep 5")).await.unwrap();
        let looked_at = client.create(&quiet).await.unwrap().id;
        let short = Limits { ttl_ms: 4000, ..e2e::service::small_limits() };
        let used = client.create(&CreateSandbox { limits: short.into(), ..small() }).await.unwrap().id;
        let disk = Disk::beside(service.data());
        let begun = Instant::now();
        let ids = [&busy, &looked_at, &used];
        let mut ended = [None; 3];
        while ended.iter().any(Option::is_none) {
            let all = client.sandboxes(true).await.unwrap();
            for (id, ended) in ids.into_iter().zip(&mut ended) {
                let one = all.iter().find(|one| one.id == *id).unwrap();
                // Use the server's record of the lifetime, because a busy machine delays this loop but not
                // the sandbox's end.
                let lived = one.ended_at_ms.map(|at_ms| Duration::from_millis(at_ms - one.created_at_ms));
                *ended = ended.or(one.reason.zip(lived));
            }
            wire.ask("GET", "/healthz", None).await;
            // Ignore errors, because both requests fail once their sandbox has ended.
            let _ = client.usage(&looked_at).await;
            let _ = client.exec(&used, &script("true")).await;
            assert!(begun.elapsed() < promised(30), "{ended:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let [busy, looked_at, used] = ended.map(Option::unwrap);
        // Before a sandbox ends, the server writes two records about the sandbox, and the disk can delay each
        // of these writes.
        let stalled = 2 * disk.longest();
        eprintln!(
            "busy {busy:?}, looked at {looked_at:?}, used {used:?}; the disk may have held it up for {stalled:?}"
        );
        assert!(busy.0 == EndReason::Idle && busy.1 > Duration::from_millis(6800), "{busy:?}");
        assert!(looked_at.0 == EndReason::Idle && looked_at.1 < promised(4) + stalled, "{looked_at:?}");
        assert!(looked_at.1 > Duration::from_millis(1800), "{looked_at:?}");
        assert!(used.0 == EndReason::Expired && used.1 < promised(6) + stalled, "{used:?}");
    });
}

/// A program that prompts for input fails within seconds instead of hanging. Each of these programs reaches its
/// prompt, as its message shows.
#[test]
#[ignore = "starts real sandboxes"]
fn a_program_that_asks_a_person_fails_at_once_where_there_is_none() {
    // Server inside the sandbox that requires a login, as a private repository does.
    const PRIVATE: &str = "
import http.server
class Private(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.send_header('www-authenticate', 'Basic realm=private')
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', 8000), Private).serve_forever()";
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        let env = [("PRIVATE".to_owned(), PRIVATE.to_owned())].into();
        let serving = ExecSpec { env, ..script("exec python3 -c \"$PRIVATE\"") };
        client.start(&id, &serving).await.unwrap();
        said(&client, &id, "until (: < /dev/tcp/127.0.0.1/8000) 2> /dev/null; do sleep 0.1; done").await;
        let repository = "git init -q r && cd r && git config user.name a && git config user.email a@b && echo 1 > f && git add f";
        said(&client, &id, repository).await;
        for (text, prompt) in [
            ("cd r && git commit", "EDITOR unset"),
            (
                "no_proxy=127.0.0.1 GIT_TERMINAL_PROMPT=1 git clone http://127.0.0.1:8000/private",
                "could not read Username",
            ),
            ("python3 -c 'input()'", "EOFError"),
            ("read -rp 'answer? ' answer", ""),
            // `apt-get` asks before it removes a package. Without the lock, it asks users other than root too.
            ("apt-get -o Debug::NoLocking=1 remove git", "Do you want to continue? [Y/n] Abort."),
        ] {
            let begun = Instant::now();
            let done = client.exec(&id, &script(text)).await.unwrap().collect().await.unwrap();
            let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            let Outcome::Exited { code } = done.end.outcome else { panic!("{text}: {:?}", done.end) };
            assert!(code != 0 && begun.elapsed() < promised(5), "{text}: {code} after {:?}", begun.elapsed());
            assert!(output.contains(prompt), "{text} did not reach its prompt: {output}");
        }
    });
}

/// A create request that fails returns the reason and leaves nothing behind.
#[test]
#[ignore = "starts real sandboxes"]
fn a_create_that_cannot_be_made_says_why_and_leaves_nothing() {
    // Hide `runsc`, so that the server runs as on a machine without gVisor.
    let hide = "for one in $(which -a runsc); do mount --bind /dev/null $one; done; exec \"$@\"";
    served(async || {
        let service = Service::with(&["unshare", "-m", "sh", "-c", hide, "sh"], &[]);
        let wire = service.wire();
        service.add_template("hollow", 'd');
        std::fs::remove_dir_all(service.data().join("layers").join("d".repeat(64))).unwrap();
        let with = |change: Value| {
            let mut body = sandbox(&small());
            for (name, value) in change.as_object().unwrap() {
                body[name] = value.clone();
            }
            body
        };
        for (change, status, code) in [
            (json!({ "template": "nothing" }), 404, "not_found"),
            (json!({ "template": "../base" }), 400, "invalid_request"),
            (json!({ "template": "hollow" }), 500, "platform"),
            (json!({ "tier": "user_kernel" }), 422, "tier_unavailable"),
            (json!({ "limits": { "memory_bytes": 1 } }), 400, "limit_exceeded"),
            (json!({ "limits": { "pids": 1_000_000 } }), 400, "limit_exceeded"),
            (json!({ "limits": { "swap_bytes": 1 } }), 400, "invalid_request"),
            (json!({ "idle_ms": 0 }), 400, "invalid_request"),
            (json!({ "labels": { "bellglass.owner": "me" } }), 400, "invalid_request"),
        ] {
            let answer = wire.ask("POST", "/v1/sandboxes", Some(&with(change.clone()))).await;
            assert_eq!((answer.status, answer.code().as_str()), (status, code), "{change}: {}", answer.body);
            assert_eq!(answer.json()["ran"], "no", "{change}");
        }
        service.assert_nothing_left().await;
        let rows = service.client().sandboxes(true).await.unwrap();
        assert!(rows.iter().all(|row| row.template == "hollow"), "only what was begun has a row: {rows:?}");
    });
}

/// A layer is never removed while sandboxes are created from it, even if templates and unused layers are
/// removed at the same time.
#[test]
#[ignore = "starts real sandboxes"]
fn a_layer_is_never_removed_while_a_sandbox_needs_it() {
    served(async || {
        let mut service = Service::start();
        let client = service.client();
        service.add_template("kept", 'c');
        let request = |template: &str| CreateSandbox { template: template.into(), ..small() };
        let kept = client.create(&request("kept")).await.unwrap().id;
        let makers: Vec<_> = (0..2)
            .map(|number| {
                let (client, request) = (client.clone(), request("passing"));
                tokio::spawn(async move {
                    let (mut made, mut missing) = (0, 0);
                    while made < 15 {
                        tokio::time::sleep(Duration::from_millis((7 + number) * made % 60)).await;
                        match client.create(&request).await {
                            Ok(sandbox) => {
                                assert_eq!(
                                    said(&client, &sandbox.id, "ls /usr/bin/env").await,
                                    "/usr/bin/env\n"
                                );
                                client.stop(&sandbox.id).await.unwrap();
                                made += 1;
                            }
                            Err(error) => {
                                assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}");
                                missing += 1;
                            }
                        }
                    }
                    missing
                })
            })
            .collect();
        let (mut removals, layer) = (0, service.data().join("layers").join("e".repeat(64)));
        let templates = node::template::Store::new(service.data());
        templates.remove("kept").unwrap();
        let tidy = async |times: u32| {
            for _ in 0..times {
                node::remove_unused_layers(service.data()).unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        while !makers.iter().all(tokio::task::JoinHandle::is_finished) {
            {
                // As during an import, no layers are removed between adding the template's layers and saving
                // the template.
                let _making = node::template::using(service.data()).await.unwrap();
                service.add_template("passing", 'e');
            }
            tidy(20).await;
            templates.remove("passing").unwrap();
            tidy(20).await;
            removals += u32::from(!layer.exists());
        }
        let mut missing = 0;
        for maker in makers {
            missing += maker.await.unwrap();
        }
        eprintln!(
            "30 sandboxes while the layer was removed {removals} times; {missing} came when it was gone"
        );
        // A sandbox whose template was removed continues, even across a restart. Its layer is removed after
        // the sandbox has ended.
        let own = service.data().join("layers").join("c".repeat(64));
        assert!(own.exists());
        service.kill();
        service.begin();
        assert_eq!(said(&client, &kept, "echo lives").await, "lives\n");
        client.stop(&kept).await.unwrap();
        service.assert_nothing_left().await;
        node::remove_unused_layers(service.data()).unwrap();
        assert!(!own.exists() && service.data().join("layers").join("b".repeat(64)).exists());
    });
}

/// A sandbox's files, processes, variables and IPC objects are not visible in the next sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_fresh_sandbox_holds_nothing_of_the_one_before() {
    // The pattern `secre[t]-of-a` does not match the command line that contains it.
    const LEAVE: &str = "for d in /workspace /tmp /dev/shm ~; do echo secret-of-a > $d/secret-of-a; done; ipcmk -M 4096 >/dev/null; \
        ipcmk -Q >/dev/null; (exec -a secret-of-a sleep 600) & sleep 0.1; true";
    const LOOK: &str = "find / -xdev -name '*secre[t]-of-a*' 2>/dev/null; ls -A /workspace /tmp /dev/shm ~; \
        cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep 'secre[t]-of-a'; ipcs -m -q | grep 0x; true";
    served(async || {
        let service = Service::start();
        let (a, b) = tokio::join!(
            service.client_of("a", Role::Write, PLENTY),
            service.client_of("b", Role::Write, PLENTY)
        );
        for (one, other) in [(&a, &b), (&b, &a), (&a, &b)] {
            let before = one.create(&small()).await.unwrap().id;
            let env = [("TOKEN".to_owned(), "secret-of-a".to_owned())].into();
            let done =
                one.exec(&before, &ExecSpec { env, ..script(LEAVE) }).await.unwrap().collect().await.unwrap();
            assert_eq!(
                done.end.outcome,
                Outcome::Exited { code: 0 },
                "{}",
                String::from_utf8_lossy(&done.stderr)
            );
            assert!(said(one, &before, LOOK).await.contains("secret-of-a"), "the look finds what is there");
            one.stop(&before).await.unwrap();
            let after = other.create(&small()).await.unwrap().id;
            let seen = said(other, &after, LOOK).await;
            assert!(!seen.contains("secret-of-a") && !seen.contains("0x"), "{seen}");
            let clean = said(other, &after, "ls -A /workspace /tmp /dev/shm").await;
            assert_eq!(clean.split_whitespace().collect::<String>(), "/dev/shm:/tmp:/workspace:");
            other.stop(&after).await.unwrap();
        }
    });
}

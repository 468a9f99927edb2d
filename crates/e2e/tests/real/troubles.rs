//! Failures of a single sandbox, exec or client: each has a typed outcome, ends in time, and affects nothing
//! else.

use std::process::Stdio;
use std::time::{Duration, Instant};

use api::account::Role;
use api::exec::{ExecSpec, LostCause, Outcome, Stream};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, Sandbox, SandboxState};
use api::{ErrorCode, SandboxId};
use client::{Client, Event};
use e2e::lab::{Disk, promised, script};
use e2e::service::{PLENTY, Service, served, small, until};
use e2e::wire::{command, sandbox};
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

/// Heartbeats keep a proxy from closing the stream of a silent exec, because data arrives every few seconds.
#[test]
fn a_stream_of_a_silent_exec_says_something_every_few_seconds() {
    served(async || {
        let service = Service::start();
        let id = service.client().create(&small()).await.unwrap().id;
        let path = format!("/v1/sandboxes/{id}/execs");
        let spec = command(&script("sleep 11; echo late"));
        let mut coming =
            service.wire().open("POST", &path, Some(&spec), &[("accept", "application/x-ndjson")]).await;
        let (mut beats, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
        let mut kinds = Vec::new();
        while let Some(line) = coming.line().await {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            match line["type"].as_str().unwrap() {
                "heartbeat" => beats += 1,
                kind => kinds.push(kind.to_owned()),
            }
        }
        eprintln!("{beats} heartbeats, the longest silence was {longest:?}");
        assert_eq!(kinds, ["started", "data", "end"]);
        assert!(beats >= 2 && longest < Duration::from_secs(10), "{beats} {longest:?}");
    });
}

/// Reads the standard output up to an offset or to its end.
async fn read(exec: &mut client::Exec, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while exec.position().stdout < most {
        match exec.next().await.unwrap() {
            Some(Event::Data { stream: Stream::Stdout, bytes: more, .. }) => bytes.extend_from_slice(&more),
            Some(Event::Data { .. }) => {}
            Some(Event::Gap { .. } | Event::Result { .. }) => panic!("a gap or a result"),
            Some(Event::End(end)) => {
                assert_eq!(end.outcome, Outcome::Exited { code: 0 });
                break;
            }
            None => break,
        }
    }
    bytes
}

/// A reader that has disconnected can resume at its offset without a gap or a duplicate, even after the end
/// of the exec.
#[test]
fn a_reader_that_left_comes_back_at_its_offset_also_after_the_end() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        let spec =
            script("for i in $(seq 2000); do echo line $i; [ $((i % 100)) = 0 ] && sleep 0.1; done; true");
        let mut first = client.exec(&id, &spec).await.unwrap();
        let mut bytes = read(&mut first, 3000).await;
        let (name, reached) = (first.id().clone(), first.position().stdout);
        assert_eq!(bytes.len() as u64, reached);
        drop(first);
        let mut second = client.reader(&id, &name);
        second.seek(reached, 0, 0);
        bytes.extend(read(&mut second, u64::MAX).await);
        let whole: String = (1..=2000).map(|number| format!("line {number}\n")).collect();
        assert!(bytes == whole.as_bytes(), "{} bytes of {}", bytes.len(), whole.len());
        for offset in [0, 1, reached, whole.len() as u64] {
            let mut late = client.reader(&id, &name);
            late.seek(offset, 0, 0);
            let rest = read(&mut late, u64::MAX).await;
            assert!(rest == whole.as_bytes()[usize::try_from(offset).unwrap()..], "from {offset}");
        }
    });
}

/// With `cancel_on_disconnect`, an exec is cancelled when its reader disconnects. Without the option, the
/// exec continues.
#[test]
fn an_exec_that_was_to_end_with_its_reader_does_and_another_does_not() {
    served(async || {
        let service = Service::start();
        let (client, wire) = (service.client(), service.wire());
        let id = client.create(&small()).await.unwrap().id;
        let spec = command(&script("sleep 61 & sleep 61"));
        let mut names = Vec::new();
        for query in ["?cancel_on_disconnect=true", ""] {
            let path = format!("/v1/sandboxes/{id}/execs{query}");
            let mut coming =
                wire.open("POST", &path, Some(&spec), &[("accept", "application/x-ndjson")]).await;
            let started: Value = coming.line().await.unwrap();
            names.push(started["exec"]["id"].as_str().unwrap().parse().unwrap());
        }
        until(promised(5), "the exec to end with its reader", async || {
            let info = client.exec_info(&id, &names[0]).await.unwrap();
            info.outcome == Some(Outcome::Cancelled) && info.processes == 0
        })
        .await;
        // The other exec may have started only a moment ago.
        until(promised(5), "both processes of the other", async || {
            let other = client.exec_info(&id, &names[1]).await.unwrap();
            assert!(other.outcome.is_none(), "{other:?}");
            other.processes >= 2
        })
        .await;
    });
}

/// An exec's deadline is measured from the start of its process, so it does not include the time that retries
/// take.
#[test]
fn the_time_until_a_server_is_back_is_not_charged_to_the_execs_deadline() {
    served(async || {
        let mut service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        service.kill();
        let spec = ExecSpec { deadline_ms: Some(2500), ..script("sleep 1; echo in time") };
        let asking = tokio::spawn({
            let client = client.clone();
            async move { client.exec(&id, &spec).await.unwrap().collect().await.unwrap() }
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        service.begin();
        let done = asking.await.unwrap();
        assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
        assert_eq!(done.stdout, b"in time\n");
    });
}

/// A program that prompts for input fails within seconds instead of hanging.
#[test]
fn a_program_that_asks_a_person_fails_at_once_where_there_is_none() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        let repository = "git init -q r && cd r && git config user.name a && git config user.email a@b && echo 1 > f && git add f";
        said(&client, &id, repository).await;
        for text in [
            "cd r && git commit",
            "GIT_TERMINAL_PROMPT=1 git clone https://user@127.0.0.1:1/private",
            "python3 -c 'input()'",
            "read -r answer",
            "apt-get install slapd",
        ] {
            let begun = Instant::now();
            let done = client.exec(&id, &script(text)).await.unwrap().collect().await.unwrap();
            let Outcome::Exited { code } = done.end.outcome else { panic!("{text}: {:?}", done.end) };
            assert!(code != 0 && begun.elapsed() < promised(5), "{text}: {code} after {:?}", begun.elapsed());
        }
    });
}

/// A create request that fails returns the reason and leaves nothing behind.
#[test]
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

/// If the command line cannot write its output, for example because the disk is full, it fails and never
/// reports success.
#[test]
fn output_that_cannot_be_written_makes_the_command_fail() {
    served(async || {
        let service = Service::start();
        let id = service.client().create(&small()).await.unwrap().id;
        let exec = |stdout: Stdio| {
            let mut command = service.command(&["exec", id.as_str(), "--", "echo", "hi"]);
            command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
        };
        // Control: the same command succeeds if its output can be written.
        let control = exec(Stdio::piped());
        assert!(control.status.success() && control.stdout == b"hi\n", "{control:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let failed = exec(full.into());
        let said = String::from_utf8_lossy(&failed.stderr);
        assert!(!failed.status.success() && said.contains("cannot write to standard output"), "{said}");
        assert!(said.contains("ran: yes"), "the command has run: {said}");
    });
}

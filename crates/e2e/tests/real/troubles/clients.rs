//! Clients that are silent, disconnect, come back, are killed or use another version of the API.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome, Stream};
use api::server::{API_VERSION, VERSION_HEADER};
use api::{ExecId, SandboxId};
use bytes::Bytes;
use client::Event;
use e2e::lab::{promised, script};
use e2e::service::{Service, served, small, until};
use e2e::wire::{command, sandbox};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;

/// Time for which the server keeps the sandbox of a killed `bellglass run`, so that its client can reconnect, and
/// some time for its end.
const RUN_KEEPS: Duration = Duration::from_secs(90);

/// Heartbeats keep a proxy from closing the stream of a silent exec, because data arrives every few seconds.
#[test]
#[ignore = "starts real sandboxes"]
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
#[ignore = "starts real sandboxes"]
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

/// Starts an exec with `curl` over the given version of HTTP, and disconnects after the exec has started.
fn start_and_disconnect(service: &Service, id: &SandboxId, version: &str, query: &str) -> ExecId {
    let spec = command(&script("sleep 61 & sleep 61")).to_string();
    let mut curl = Command::new("curl")
        .args(["-sSN", version, "-H", "content-type: application/json", "-H", "accept: application/x-ndjson"])
        .args(["-H", &format!("authorization: Bearer {}", service.key), "-d", &spec])
        .arg(format!("{}/v1/sandboxes/{id}/execs{query}", service.url()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(curl.stdout.take().unwrap()).read_line(&mut line).unwrap();
    curl.kill().unwrap();
    curl.wait().unwrap();
    let started: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{version}: {line:?}"));
    started["exec"]["id"].as_str().unwrap().parse().unwrap()
}

/// With `cancel_on_disconnect`, an exec is cancelled when its reader disconnects. Without the option, the
/// exec continues. Both hold over HTTP/1.1 and HTTP/2.
#[test]
#[ignore = "starts real sandboxes"]
fn an_exec_that_was_to_end_with_its_reader_does_and_another_does_not() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        for (option, version) in [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")] {
            // Control: `curl` uses this version.
            let shown = Command::new("curl")
                .args(["-sS", option, "-o", "/dev/null", "-w", "%{http_version}"])
                .arg(format!("{}/healthz", service.url()))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&shown.stdout), version);
            let ended = start_and_disconnect(&service, &id, option, "?cancel_on_disconnect=true");
            let kept = start_and_disconnect(&service, &id, option, "");
            until(promised(5), "the exec to end with its reader", async || {
                let info = client.exec_info(&id, &ended).await.unwrap();
                info.outcome == Some(Outcome::Cancelled) && info.processes == 0
            })
            .await;
            // The other exec may have started only a moment ago.
            until(promised(5), "both processes of the other", async || {
                let other = client.exec_info(&id, &kept).await.unwrap();
                assert!(other.outcome.is_none(), "{other:?}");
                other.processes >= 2
            })
            .await;
        }
    });
}

/// A client that resets one stream of an HTTP/2 connection has disconnected from this exec only.
#[test]
#[ignore = "starts real sandboxes"]
fn a_reset_stream_ends_its_own_exec_and_no_other_of_the_connection() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        let stream = TcpStream::connect(service.url().trim_start_matches("http://")).await.unwrap();
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut start = async || {
            let request =
                Request::post(format!("{}/v1/sandboxes/{id}/execs?cancel_on_disconnect=true", service.url()))
                    .header("authorization", format!("Bearer {}", service.key))
                    .header("content-type", "application/json")
                    .header("accept", "application/x-ndjson");
            let spec = command(&script("sleep 61")).to_string();
            let request = request.body(Full::new(Bytes::from(spec))).unwrap();
            let mut response = sender.send_request(request).await.unwrap().into_body();
            let line = response.frame().await.unwrap().unwrap().into_data().unwrap();
            let line: Value =
                serde_json::from_slice(line.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
            (line["exec"]["id"].as_str().unwrap().parse::<ExecId>().unwrap(), response)
        };
        let (reset, body) = start().await;
        let (other, _kept) = start().await;
        // hyper resets the stream of a response that is dropped before its end.
        drop(body);
        until(promised(5), "the exec to end with its reader", async || {
            client.exec_info(&id, &reset).await.unwrap().outcome == Some(Outcome::Cancelled)
        })
        .await;
        assert_eq!(client.exec_info(&id, &other).await.unwrap().outcome, None);
        let (later, _kept) = start().await;
        assert_eq!(
            client.exec_info(&id, &later).await.unwrap().outcome,
            None,
            "the connection is still in use"
        );
    });
}

/// A client that uses another version of the API is refused before its request is executed, with an error that
/// names both versions.
#[test]
#[ignore = "starts real sandboxes"]
fn a_client_of_another_version_is_refused_before_anything_is_done() {
    served(async || {
        let service = Service::start();
        let wire = service.wire();
        let body = sandbox(&small());
        let newer = (API_VERSION + 1).to_string();
        for version in ["0", &newer, "1.0", "", "x"] {
            let header = [(VERSION_HEADER, version)];
            let answer = wire.ask_with("POST", "/v1/sandboxes", Some(&body), &header).await;
            assert_eq!((answer.status, answer.code().as_str()), (400, "version_unsupported"), "{version:?}");
            let message = answer.json()["message"].as_str().unwrap().to_owned();
            assert!(message.contains(&format!("uses version {version}")), "{message}");
            assert!(message.contains(&format!("this server uses version {API_VERSION}")), "{message}");
            assert_eq!(answer.json()["ran"], "no", "{version:?}");
        }
        assert!(service.client().sandboxes(true).await.unwrap().is_empty());
        // Control: the same request with the right version, and without the header, creates a sandbox.
        let right = API_VERSION.to_string();
        for headers in [&[(VERSION_HEADER, right.as_str())][..], &[]] {
            let answer = wire.ask_with("POST", "/v1/sandboxes", Some(&body), headers).await;
            assert_eq!(answer.status, 201, "{answer:?}");
        }
    });
}

/// If `bellglass run` is killed, its sandbox is removed once the client can no longer reconnect.
#[test]
#[ignore = "starts real sandboxes"]
fn the_sandbox_of_a_killed_run_is_gone_after_a_minute() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let mut run =
            service.command(&["run", "--timeout", "5s", "--", "sh", "-c", "echo up; exec sleep 600"]);
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        run.kill().unwrap();
        run.wait().unwrap();
        assert_eq!(client.sandboxes(false).await.unwrap().len(), 1, "the client could still reconnect");
        let begun = Instant::now();
        until(RUN_KEEPS, "the sandbox to be gone", async || {
            client.sandboxes(false).await.unwrap().is_empty()
        })
        .await;
        eprintln!("gone after {:.1?}", begun.elapsed());
        service.assert_nothing_left().await;
    });
}

/// An exec's deadline is measured from the start of its process, so it does not include the time that retries
/// take.
#[test]
#[ignore = "starts real sandboxes"]
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

/// If the command line cannot write its output, for example because the disk is full, it fails and never
/// reports success.
#[test]
#[ignore = "starts real sandboxes"]
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

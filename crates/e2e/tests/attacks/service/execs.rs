//! Attacks: floods of execs, and unread input.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::account::{Quota, Role};
use api::exec::ExecSpec;
use e2e::lab::script;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::ground::{
    Answer, Bystander, address, ask, head, held, keyed, quick, read, recovers, rss_bytes, small,
};

const MIB: usize = 1 << 20;

/// Sends the same request from several threads concurrently.
fn flood(threads: usize, each: usize, act: impl Fn() -> Answer + Sync) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| (0..each).map(|_| act()).collect::<Vec<_>>())).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    })
}

/// Verifies that attack A-14 fails: a flood of execs is limited to its project's rate.
#[test]
#[ignore = "starts real sandboxes"]
fn a_flood_of_execs_is_held_to_its_rate() {
    const FLOOD: usize = 1000;
    const PER_SECOND: u32 = 20;
    served(async || {
        let service = Service::start();
        let slow =
            service.key_of("slow", Role::Write, Quota { execs_per_second: PER_SECOND, ..PLENTY }).await;
        let sandbox = |key: &str| {
            let made = keyed(&service, key, "POST", "/v1/sandboxes", &small()).json();
            format!("/v1/sandboxes/{}/execs", made["id"].as_str().unwrap())
        };
        let (theirs, ours) = (sandbox(&slow), sandbox(&service.key));
        let bystander = Bystander::of(&service);
        let began = Instant::now();
        let answers = flood(16, FLOOD / 16, || keyed(&service, &slow, "POST", &theirs, &quick()));
        let took = began.elapsed();
        let started = answers.iter().filter(|answer| answer.status == 201).count();
        let most = f64::from(PER_SECOND).mul_add(took.as_secs_f64(), f64::from(2 * PER_SECOND)) as usize + 2;
        assert!(started >= 2 * PER_SECOND as usize && started <= most, "{started} in {took:?}");
        for refused in answers.iter().filter(|answer| answer.status != 201) {
            refused.assert("the flood", 429, "rate_limited");
            assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        }
        let slowest = bystander.was_served();
        // Control: with a higher rate limit, every exec of the same flood is started.
        let free = flood(8, 25, || keyed(&service, &service.key, "POST", &ours, &quick()));
        assert_eq!(free.iter().filter(|answer| answer.status == 201).count(), 200, "{free:?}");
        e2e::attack::count_control();
        recovers(&service).await;
        let rate = FLOOD as f64 / took.as_secs_f64();
        held(
            "A-14",
            &format!("{started} of {FLOOD} started, asked {rate:.0}/s; a bystander waited {slowest:?}"),
        );
    });
}

/// Verifies that attack A-14 fails: the output of concurrent execs is not mixed.
#[test]
#[ignore = "starts real sandboxes"]
fn streams_of_execs_at_once_do_not_mix() {
    const EXECS: usize = 120;
    served(async || {
        let service = Service::start();
        let client = service.client();
        let homes = [client.create(&e2e::service::small()).await.unwrap().id, {
            client.create(&e2e::service::small()).await.unwrap().id
        }];
        let mut readers = Vec::new();
        for number in 0..EXECS {
            let (client, home) = (client.clone(), homes[number % 2].clone());
            readers.push(tokio::spawn(async move {
                let text = format!("for i in $(seq 200); do echo {number}; echo {number} >&2; done");
                client.exec(&home, &script(&text)).await.unwrap().collect().await.unwrap()
            }));
        }
        for (number, reader) in readers.into_iter().enumerate() {
            let done = reader.await.unwrap();
            let expected = format!("{number}\n").repeat(200).into_bytes();
            assert!(done.stdout == expected && done.stderr == expected, "exec {number} got others' output");
        }
        // Reuse the idempotency key: the same request returns the same exec, a different request is refused,
        // and the same request for a different sandbox starts a different exec.
        let bearer = format!("Bearer {}", service.key);
        let start = |home: &api::SandboxId, body: &Value| {
            let headers = [
                ("authorization", bearer.as_str()),
                ("content-type", "application/json"),
                ("idempotency-key", "again"),
            ];
            let path = format!("/v1/sandboxes/{home}/execs");
            ask(&service, "POST", &path, &headers, body.to_string().as_bytes())
        };
        let body = json!(script("echo first >> /workspace/ran"));
        let first = start(&homes[0], &body).json()["id"].clone();
        assert!(first.is_string());
        assert_eq!(start(&homes[0], &body).json()["id"], first);
        start(&homes[0], &json!(script("echo other >> /workspace/ran"))).assert("another", 409, "conflict");
        assert_eq!(start(&homes[1], &json!(script("echo elsewhere >> /workspace/ran"))).status, 201);
        for (home, expected) in homes.iter().zip(["first\n", "elsewhere\n"]) {
            let done = client.exec(home, &script("sleep 0.2; cat /workspace/ran")).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&done.collect().await.unwrap().stdout), expected);
        }
        let why = "no defence can be turned off; every byte of 120 streams is compared";
        e2e::attack::held_without_control("A-14", "service", why);
    });
}

/// Verifies that attack A-14 fails: execs that are started while their sandbox is being deleted get a correct
/// error.
#[test]
#[ignore = "starts real sandboxes"]
fn execs_while_a_sandbox_is_deleted_are_told_so() {
    const ROUNDS: usize = 5;
    served(async || {
        let service = Service::start();
        let mut counts = std::collections::BTreeMap::<(u16, String), usize>::new();
        let mut ids = Vec::new();
        for round in 0..ROUNDS {
            let made = keyed(&service, &service.key, "POST", "/v1/sandboxes", &small()).json();
            let id = made["id"].as_str().unwrap().to_owned();
            let (path, done) = (format!("/v1/sandboxes/{id}"), AtomicBool::new(false));
            let answers: Vec<Answer> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut answers = Vec::new();
                            while !done.load(Ordering::Acquire) {
                                let path = format!("{path}/execs");
                                answers.push(keyed(&service, &service.key, "POST", &path, &quick()));
                            }
                            answers
                        })
                    })
                    .collect();
                std::thread::sleep(Duration::from_millis(50 + 20 * round as u64));
                let ended = keyed(&service, &service.key, "DELETE", &path, &Value::Null);
                assert_eq!(ended.json()["state"], "ended");
                std::thread::sleep(Duration::from_millis(20));
                done.store(true, Ordering::Release);
                all.into_iter().flat_map(|one| one.join().unwrap()).collect()
            });
            for answer in answers {
                *counts.entry(answer.refusal()).or_default() += 1;
            }
            let late = keyed(&service, &service.key, "POST", &format!("{path}/execs"), &quick());
            late.assert("an exec in what is gone", 410, "sandbox_lost");
            ids.push(id);
        }
        // Control: some execs were started in time, and others came too late.
        assert!(counts.contains_key(&(201, String::new())), "{counts:?}");
        e2e::attack::count_control();
        let known = [(201, ""), (410, "sandbox_lost"), (409, "conflict"), (404, "not_found")];
        for (status, code) in counts.keys() {
            assert!(known.contains(&(*status, code.as_str())), "{counts:?}");
        }
        service.traces(&ids).assert_nothing_left_but_the_server(service.pid());
        held("A-14", &format!("while deleted: {counts:?}"));
    });
}

/// Sends the headers of a request that writes input, without its body, and returns the response.
fn unsent(service: &Service, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.write_all(format!("{request}content-length: {MIB}\r\n\r\n").as_bytes()).unwrap();
    read(&mut stream)
}

/// Verifies that attack A-16 fails: input that is not read remains with the sender.
#[test]
#[ignore = "starts real sandboxes"]
fn input_that_nobody_reads_stays_with_whoever_sends_it() {
    const PIECES: usize = 64;
    const AT_ONCE: usize = 300;
    const MEMORY_BYTES: u64 = 224 << 20;
    served(async || {
        let service = Service::start();
        let client = service.client();
        let sandbox = client.create(&e2e::service::small()).await.unwrap().id;
        let path = format!("/v1/sandboxes/{sandbox}/execs");
        let begin = |text: &str| {
            let spec = ExecSpec { stdin: true, ..script(text) };
            let made = keyed(&service, &service.key, "POST", &path, &json!(spec)).json();
            made["id"].as_str().unwrap().to_owned()
        };
        let bearer = format!("Bearer {}", service.key);
        let piece = vec![b'x'; MIB];
        let send = |exec: &str, offset: usize| {
            let mut stream = TcpStream::connect(address(&service)).unwrap();
            let target = format!("{path}/{exec}/stdin?offset={offset}");
            let length = format!("content-length: {MIB}\r\n\r\n");
            let request = head("PUT", &target, &[("authorization", &bearer)]) + &length;
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(&piece));
            stream
        };
        // Control: a process that reads receives all of its input.
        let reading = begin("wc -c");
        let began = Instant::now();
        for number in 0..PIECES {
            assert_eq!(read(&mut send(&reading, number * MIB)).json()["received"], (number + 1) * MIB);
        }
        e2e::attack::count_control();
        let pace = began.elapsed();
        let before = rss_bytes(service.pid());
        let deaf = begin("sleep 300");
        let bystander = Bystander::of(&service);
        // Send one request after the other. The client abandons each request after a short time.
        let mut taken = 0;
        for _ in 0..PIECES {
            let mut stream = send(&deaf, taken);
            stream.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
            let answer = read(&mut stream);
            if answer.status == 200 {
                taken = answer.json()["received"].as_u64().unwrap() as usize;
            }
        }
        assert!(taken <= 2 * MIB, "{taken} bytes were taken of what nobody reads");
        // A process that does not read its input delays no other exec in the sandbox.
        let few: Vec<TcpStream> = (0..20).map(|_| send(&deaf, taken)).collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        is_answered(&client, &sandbox).await;
        drop(few);
        // Send many requests at the same time.
        let waiting: Vec<TcpStream> = (0..AT_ONCE).map(|_| send(&deaf, taken)).collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let grown = rss_bytes(service.pid()).saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{AT_ONCE} pieces of 1 MiB cost {} MiB", grown >> 20);
        let slowest = bystander.was_served();
        // The server refuses the next request before it reads a byte of the body.
        let target = format!("{path}/{deaf}/stdin?offset={taken}");
        let request = head("PUT", &target, &[("authorization", &bearer)]);
        unsent(&service, &request).assert("one more piece", 429, "rate_limited");
        assert!(grown > 32 << 20, "nothing was held: {grown} bytes");
        drop(waiting);
        recovers(&service).await;
        held(
            "A-16",
            &format!(
                "{taken} bytes taken; {AT_ONCE} pieces at once cost {} MiB; {PIECES} MiB read in {pace:?}; a bystander waited {slowest:?}",
                grown >> 20
            ),
        );
    });
}

/// Asserts that an exec in this sandbox starts and ends quickly.
async fn is_answered(client: &client::Client, sandbox: &api::SandboxId) {
    let began = Instant::now();
    let other = client.exec(sandbox, &script("echo here")).await.unwrap().collect().await.unwrap();
    assert_eq!(other.stdout, b"here\n");
    assert!(began.elapsed() < Duration::from_secs(5), "others waited {:?}", began.elapsed());
}

//! Runs the laws on a simulated machine, and tests the machine's restarts, faults and guest. Time is paused,
//! so hours pass instantly.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use api::exec::{ExecEnd, ExecInfo, ExecSpec, Outcome, OutputMode};
use api::frame::{HEADER_BYTES, Header};
use api::limits::Limits;
use api::posture::Posture;
use api::{ErrorCode, SandboxId};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use super::Sim;
use crate::laws::{self, Fixture, LawVerdict};
use crate::{Error, Exit, Inspect as _, Listed, Profile, Runtime, Spec};

/// Timeout for every operation. It is longer than any operation takes, unless the operation hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The node's end of a channel to a simulated guest.
struct Caller {
    sender: SendRequest<Full<Bytes>>,
}

impl Caller {
    async fn dialled(sim: &Sim, id: &SandboxId) -> Self {
        let stream = sim.connect(id, PATIENCE).await.unwrap();
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    async fn ask(&mut self, method: Method, path: &str, body: impl Into<Bytes>) -> Response<Incoming> {
        let uri = format!("http://guest{path}");
        let request = Request::builder().method(method).uri(uri).body(Full::new(body.into())).unwrap();
        self.sender.send_request(request).await.unwrap()
    }

    async fn call<T: serde::de::DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> (StatusCode, T) {
        let response = self.ask(method, path, body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    async fn start(&mut self, name: &str, spec: &ExecSpec) -> ExecInfo {
        let body = serde_json::to_vec(spec).unwrap();
        let (status, info) = self.call(Method::PUT, &format!("/execs/{name}"), body).await;
        assert_eq!(status, StatusCode::OK);
        info
    }

    /// Reads the output from an offset to the end.
    async fn output(&mut self, name: &str, from: u64) -> (String, ExecEnd) {
        let path = format!("/execs/{name}/output?stdout={from}&stderr=0");
        let bytes = self.ask(Method::GET, &path, "").await.into_body().collect().await.unwrap().to_bytes();
        let mut rest = &bytes[..];
        let (mut text, mut at) = (String::new(), from);
        loop {
            let (header, after) = rest.split_first_chunk::<HEADER_BYTES>().unwrap();
            let header = Header::decode(header).unwrap();
            let (payload, after) = after.split_at(header.payload_bytes());
            rest = after;
            match header {
                Header::Data { offset, .. } => {
                    assert_eq!(offset, at);
                    at += payload.len() as u64;
                    text.push_str(std::str::from_utf8(payload).unwrap());
                }
                Header::Gap { to, .. } => at = to,
                Header::Heartbeat => {}
                Header::End { .. } => {
                    let end: ExecEnd = serde_json::from_slice(payload).unwrap();
                    assert_eq!(end.stdout_bytes, at);
                    return (text, end);
                }
            }
        }
    }

    async fn execs(&mut self) -> Vec<ExecInfo> {
        self.call(Method::GET, "/execs", "").await.1
    }
}

fn id(name: &str) -> SandboxId {
    name.parse().unwrap()
}

fn spec() -> Spec {
    Spec {
        layers: Vec::new(),
        image: String::new(),
        limits: Limits::default(),
        profile: Profile::Run,
        guest: "/guest".into(),
    }
}

fn command(line: &str) -> ExecSpec {
    ExecSpec { argv: line.split(' ').map(str::to_owned).collect(), ..ExecSpec::default() }
}

async fn started(sim: &Sim, name: &str) -> SandboxId {
    let id = id(name);
    sim.start(&id, &spec()).await.unwrap();
    id
}

async fn listed(sim: &Sim) -> Vec<(String, bool, bool)> {
    let all = sim.list().await.unwrap();
    all.into_iter().map(|Listed { id, owned, alive }| (id.to_string(), owned, alive)).collect()
}

fn broken(verdicts: Vec<LawVerdict>) -> Vec<(&'static str, String)> {
    verdicts.into_iter().filter_map(|(name, verdict)| verdict.err().map(|seen| (name, seen))).collect()
}

/// Runs all laws, because none of them needs a real process. They only show that the simulation behaves like
/// a backend. They cannot detect that its usage values are fixed, its postures are made up, and its limits
/// are not enforced.
#[tokio::test(start_paused = true)]
async fn the_simulation_keeps_all_laws() {
    let sim = Sim::new();
    let machine = sim.clone();
    let fixture = Fixture {
        spec: spec(),
        prefix: "law".into(),
        instance: Box::new(move || Box::new(machine.beside())),
        patience: PATIENCE,
        used: AtomicU32::new(0),
    };
    let broken = broken(laws::all(&fixture).await);
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!(sim.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn execs_go_on_over_a_restart_and_the_guest_dials_the_next_process() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let mut first = Caller::dialled(&sim, &id).await;
    first.start("e1", &command("sleep 60")).await;
    first.start("e2", &command("echo one two")).await;

    let next = sim.restart();
    assert_eq!(listed(&next).await, [("s1".into(), false, true)]);
    let mut second = Caller::dialled(&next, &id).await;
    assert_eq!(listed(&next).await, [("s1".into(), true, true)]);
    let names: Vec<String> = second.execs().await.iter().map(|exec| exec.id.to_string()).collect();
    assert_eq!(names, ["e1", "e2"]);
    assert_eq!(second.output("e2", 4).await.0, "two\n");
    // The same request attaches to the exec that it started before the restart.
    second.start("e1", &command("sleep 60")).await;
    let (_, end) = second.output("e1", 0).await;
    assert_eq!(end.outcome, Outcome::Exited { code: 0 });
    assert_eq!(end.duration_us / 1_000_000, 60);
}

#[tokio::test(start_paused = true)]
async fn a_restart_cuts_the_connections_of_the_processes_before_it() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let mut stream = sim.connect(&id, PATIENCE).await.unwrap();
    let _next = sim.restart();
    let mut bytes = Vec::new();
    // Data that the guest sent before the restart is still readable; then the stream ends.
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_gone_can_do_nothing() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let next = sim.restart();
    let refusals = [
        sim.start(&self::id("s2"), &spec()).await.unwrap_err(),
        sim.connect(&id, PATIENCE).await.unwrap_err(),
        sim.stop(&id, Duration::ZERO).await.unwrap_err(),
        sim.list().await.unwrap_err(),
        sim.usage(&id).await.unwrap_err(),
        sim.posture(&id).await.unwrap_err(),
    ];
    for refusal in refusals {
        let Error::System { source, .. } = refusal else { panic!("{refusal:?}") };
        assert!(source.to_string().contains("another process owns the machine"), "{source}");
    }
    assert_eq!(listed(&next).await, [("s1".into(), false, true)]);
}

#[tokio::test(start_paused = true)]
async fn calls_under_way_at_a_restart_never_return() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let held = sim.connect(&id, PATIENCE).await.unwrap();
    let old = [
        tokio::spawn({
            let (sim, id) = (sim.clone(), id.clone());
            async move { drop(sim.wait(&id).await) }
        }),
        tokio::spawn({
            let (sim, id) = (sim.clone(), id.clone());
            async move { drop(sim.connect(&id, PATIENCE).await) }
        }),
    ];
    tokio::task::yield_now().await;
    let next = sim.restart();
    drop(held);
    let stream = next.connect(&id, PATIENCE).await.unwrap();
    next.stop(&id, Duration::ZERO).await.unwrap();
    drop(stream);
    tokio::time::sleep(2 * PATIENCE).await;
    assert!(old.iter().all(|call| !call.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn a_start_cut_by_a_restart_is_half_made_and_can_be_removed() {
    let sim = Sim::new();
    sim.faults(|faults| faults.start_delay = Duration::from_secs(1));
    let starting = tokio::spawn({
        let sim = sim.clone();
        async move { sim.start(&id("s1"), &spec()).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(listed(&sim).await, [("s1".into(), true, false)]);
    let next = sim.restart();
    tokio::time::sleep(PATIENCE).await;
    assert!(!starting.is_finished());
    assert_eq!(listed(&next).await, [("s1".into(), false, false)]);
    assert!(matches!(next.connect(&id("s1"), PATIENCE).await, Err(Error::Ended(_))));
    next.stop(&id("s1"), Duration::ZERO).await.unwrap();
    assert_eq!(listed(&next).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_still_becomes_a_sandbox() {
    let sim = Sim::new();
    sim.faults(|faults| faults.start_delay = Duration::from_secs(2));
    let given_up = tokio::time::timeout(Duration::from_secs(1), sim.start(&id("s1"), &spec())).await;
    assert!(given_up.is_err());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(listed(&sim).await, [("s1".into(), true, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_stopped_while_it_starts_is_neither_made_nor_left() {
    let sim = Sim::new();
    sim.faults(|faults| faults.start_delay = Duration::from_secs(2));
    let stopped = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sim.stop(&id("s1"), Duration::ZERO).await
    };
    let (name, spec) = (id("s1"), spec());
    let (started, stopped) = tokio::join!(sim.start(&name, &spec), stopped);
    assert!(matches!(started, Err(Error::Ended(_))), "{started:?}");
    stopped.unwrap();
    assert_eq!(listed(&sim).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_another_living_process_has_cannot_be_taken() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let beside = sim.beside();
    assert!(matches!(beside.connect(&id, PATIENCE).await, Err(Error::System { .. })));
    drop(sim);
    assert_eq!(listed(&beside).await, [("s1".into(), false, true)]);
    beside.connect(&id, PATIENCE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn starts_fail_where_they_are_asked_to_and_leave_nothing() {
    let sim = Sim::new();
    sim.faults(|faults| (faults.start_error_at, faults.full_starts) = (Some(2), 1));
    assert!(matches!(sim.start(&id("s0"), &spec()).await, Err(Error::Capacity { .. })));
    sim.start(&id("s1"), &spec()).await.unwrap();
    assert!(matches!(sim.start(&id("s2"), &spec()).await, Err(Error::Command { .. })));
    sim.start(&id("s2"), &spec()).await.unwrap();
    assert_eq!(listed(&sim).await, [("s1".into(), true, true), ("s2".into(), true, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_leaves_a_dead_sandbox_to_stop_again() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    sim.faults(|faults| (faults.stop_errors, faults.stop_delay) = (1, Duration::from_secs(3)));
    let began = Instant::now();
    assert!(matches!(sim.stop(&id, Duration::ZERO).await, Err(Error::System { .. })));
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(listed(&sim).await, [("s1".into(), true, false)]);
    assert_eq!(sim.wait(&id).await.unwrap(), Exit::Signaled(9));
    sim.stop(&id, Duration::ZERO).await.unwrap();
    assert_eq!(listed(&sim).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_silent_guest_dials_when_it_is_silent_no_more() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    sim.faults(|faults| faults.silent_guest = true);
    assert!(matches!(sim.connect(&id, PATIENCE).await, Err(Error::Deadline { .. })));
    let spoken = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sim.faults(|faults| faults.silent_guest = false);
    };
    let (connected, ()) = tokio::join!(sim.connect(&id, PATIENCE), spoken);
    connected.unwrap();
}

#[tokio::test(start_paused = true)]
async fn differences_of_posture_are_found_where_they_are_asked_for() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    sim.faults(|faults| faults.posture_differences = vec!["seccomp is 0, not 2".into()]);
    assert_eq!(sim.posture(&id).await.unwrap().1, ["seccomp is 0, not 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_from_outside_ends_waits_and_connections_and_leaves_the_rest() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let mut stream = sim.connect(&id, PATIENCE).await.unwrap();
    let (exit, ()) = tokio::join!(sim.wait(&id), async { sim.kill(&id, Exit::Signaled(11)).unwrap() });
    assert_eq!(exit.unwrap(), Exit::Signaled(11));
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    assert!(matches!(sim.connect(&id, PATIENCE).await, Err(Error::Ended(_))));
    assert_eq!(listed(&sim).await, [("s1".into(), true, false)]);
    assert!(matches!(sim.kill(&self::id("s2"), Exit::Unknown), Err(Error::NotFound(_))));
}

#[tokio::test(start_paused = true)]
async fn a_guest_ends_itself_when_its_time_to_live_is_over() {
    let sim = Sim::new();
    let limits = Limits { ttl_ms: 60_000, ..Limits::default() };
    sim.start(&id("s1"), &Spec { limits, ..spec() }).await.unwrap();
    let began = Instant::now();
    let exit = sim.wait(&id("s1")).await.unwrap();
    assert_eq!(exit, Exit::Exited(i32::from(api::exec::GUEST_EXPIRED)));
    assert_eq!(began.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn programs_end_as_they_are_told() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let mut caller = Caller::dialled(&sim, &id).await;
    caller.start("e1", &command("true")).await;
    assert_eq!(caller.output("e1", 0).await.1.outcome, Outcome::Exited { code: 0 });
    caller.start("e2", &ExecSpec { deadline_ms: Some(500), ..command("sleep 2") }).await;
    assert_eq!(caller.output("e2", 0).await.1.outcome, Outcome::Timeout);
    caller.start("e3", &command("count")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (status, ()) = caller.call(Method::DELETE, "/execs/e3", "").await;
    assert_eq!(status, StatusCode::OK);
    let (text, end) = caller.output("e3", 0).await;
    assert!(text.starts_with("1\n2\n3\n"), "{text}");
    assert_eq!(end.outcome, Outcome::Cancelled);
    caller.start("e4", &command("sleep 9")).await;
    let (_, processes) = caller.call::<u32>(Method::POST, "/execs/e4/signal", r#"{"signal":15}"#).await;
    assert_eq!(processes, 1);
    assert_eq!(caller.output("e4", 0).await.1.outcome, Outcome::Signaled { signal: 15 });
    caller.start("e5", &command("/.bellglass/guest posture")).await;
    let posture: Posture = serde_json::from_str(&caller.output("e5", 0).await.0).unwrap();
    assert_eq!(posture.uids, [1000; 4]);
}

#[tokio::test(start_paused = true)]
async fn what_is_said_on_a_channel_takes_no_time_while_the_clock_is_paused() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let began = Instant::now();
    let mut caller = Caller::dialled(&sim, &id).await;
    for number in 0..100 {
        caller.start(&format!("e{number}"), &command("echo hi")).await;
        assert_eq!(caller.output(&format!("e{number}"), 0).await.0, "hi\n");
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_id_is_one_exec_and_an_unknown_program_is_none() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let mut caller = Caller::dialled(&sim, &id).await;
    caller.start("e1", &command("echo hi")).await;
    caller.start("e1", &command("echo hi")).await;
    let other = serde_json::to_vec(&command("echo ho")).unwrap();
    let (status, error) = caller.call::<api::Error>(Method::PUT, "/execs/e1", other).await;
    assert_eq!((status, error.code), (StatusCode::CONFLICT, ErrorCode::Conflict));
    let unknown = serde_json::to_vec(&command("python3 -c 1")).unwrap();
    let (_, error) = caller.call::<api::Error>(Method::PUT, "/execs/e2", unknown).await;
    assert_eq!(error.code, ErrorCode::SpawnFailed);
    assert_eq!(caller.execs().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn output_over_its_bound_is_dropped_held_back_or_fatal_as_asked() {
    let sim = Sim::new();
    let id = started(&sim, "s1").await;
    let mut caller = Caller::dialled(&sim, &id).await;
    let flood = |output| {
        let argv = vec!["echo".into(), "x".repeat(10_000)];
        ExecSpec { argv, output, output_bytes: Some(4096), ..ExecSpec::default() }
    };
    caller.start("e1", &flood(OutputMode::Keep)).await;
    let (text, end) = caller.output("e1", 0).await;
    assert_eq!((text.len(), end.stdout_bytes, end.stdout_dropped), (4096, 10_001, 10_001 - 4096));
    caller.start("e2", &flood(OutputMode::Kill)).await;
    assert_eq!(caller.output("e2", 0).await.1.outcome, Outcome::OutputLimit);
    caller.start("e3", &flood(OutputMode::Block)).await;
    let written = async |caller: &mut Caller| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        caller.execs().await[2].stdout_bytes
    };
    assert_eq!(written(&mut caller).await, 4096);
    for offset in [4096, 8192] {
        let path = format!("/execs/e3/read?stdout={offset}&stderr=0");
        let (_, ()) = caller.call(Method::PUT, &path, "").await;
        tokio::task::yield_now().await;
    }
    assert_eq!(written(&mut caller).await, 10_001);
    assert_eq!(caller.output("e3", 8192).await.0.len(), 10_001 - 8192);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_sandboxes_fit_into_one_process() {
    let sim = Arc::new(Sim::new());
    sim.faults(|faults| faults.start_delay = Duration::from_millis(300));
    let mut starts = tokio::task::JoinSet::new();
    for number in 0..10_000 {
        let sim = Arc::clone(&sim);
        starts.spawn(async move { sim.start(&id(&format!("s{number}")), &spec()).await.unwrap() });
    }
    starts.join_all().await;
    let next = sim.restart();
    let all = next.list().await.unwrap();
    assert_eq!(all.len(), 10_000);
    assert!(all.iter().all(|one| one.alive && !one.owned));
    for one in all {
        next.stop(&one.id, Duration::ZERO).await.unwrap();
    }
    assert_eq!(next.list().await.unwrap(), []);
}

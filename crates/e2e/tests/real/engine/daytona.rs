//! Daytona as a backend: workspaces as sandboxes, and the fallback if Daytona cannot create one (requirements
//! A9.02, A9.06 and A12.03).

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use api::exec::{ExecSpec, Outcome};
use api::sandbox::CreateSandbox;
use client::Client;
use e2e::daytona::{KEY, Server, python};
use e2e::lab::{self, script};
use e2e::layer;
use e2e::service::{Service, served, small_limits, until};
use runtime::engine::EngineKind;

use super::words::lost;
use super::{bellglass, daytona, docker, said};

/// Timeout for the removal of a workspace.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Number of attempts that the payload of attack A-20 makes.
const ACTS: usize = 6;

/// Names and values of environment variables.
type Variables<'a> = &'a [(&'a str, &'a str)];

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/engine").join(name)
}

/// Returns the number of containers that are workspaces of a server.
fn workspaces(server: &Server) -> usize {
    let labels = format!("label=daytona.test={}", server.address());
    let (code, text) = said(Command::new("docker").args(["ps", "-aq", "--filter", &labels]));
    assert_eq!(code, 0, "{text}");
    text.lines().count()
}

/// Creates a data directory with the template `base`, and gives its image in Docker the name that the
/// template expects.
fn data() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    layer::lend_base(data.path());
    known(data.path());
    data
}

fn known(data: &Path) {
    let name = node::template::Store::new(data).load("base").unwrap().image();
    let image = layer::base_image("docker");
    layer::also_named(EngineKind::Docker, &image, &name);
    // An engine backend starts only images whose ID is recorded in the data directory.
    layer::lend_image(data, EngineKind::Docker, &image, &name);
}

async fn create(client: &Client) -> api::SandboxId {
    let ask = CreateSandbox { limits: small_limits().into(), ..CreateSandbox::default() };
    client.create(&ask).await.unwrap_or_else(|error| panic!("{error:?}")).id
}

async fn says(client: &Client, id: &api::SandboxId, text: &str) -> String {
    let spec = ExecSpec { deadline_ms: Some(20_000), ..script(text) };
    let ran = client.exec(id, &spec).await.unwrap().collect().await.unwrap();
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_published_sdk_drives_the_same_server() {
    if !daytona() {
        return;
    }
    let server = Server::start(&[]);
    // The stand-in for Daytona starts images by name.
    let image = "localhost/bellglass/of-daytona:latest";
    layer::also_named(EngineKind::Docker, &layer::base_image("docker"), image);
    let (code, text) = said(Command::new(python()).arg(own("sdk.py")).args([server.address(), KEY, image]));
    assert_eq!((code, text.lines().last()), (0, Some("ok")), "{text}");
    assert_eq!(workspaces(&server), 0);
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_run_in_a_workspace_leaves_nothing_there() {
    if !daytona() {
        return;
    }
    let server = Server::start(&["--user", "0"]);
    let data = data();
    let run =
        ["--backends", "daytona", "run", "--", "sh", "-c", "id -u; ls /proc | grep -c '^[0-9]'; exit 3"];
    let (code, text) = said(bellglass(data.path()).args(run).envs(server.variables()));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("Using backend: daytona, which lacks a machine of your own"), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.parse::<u32>().is_ok()).collect();
    // The visible processes are the guest, the shell, `ls` and `grep`. No process of the workspace outside
    // the sandbox is visible.
    assert!(lines[0] == "1000" && lines[1].parse::<u32>().unwrap() <= 5, "{text}");
    assert_eq!(workspaces(&server), 0, "{text}");
    let (code, text) = said(bellglass(data.path()).args(["sandbox-test", "base"]).envs(server.variables()));
    assert_eq!(code, 0, "configured, so it comes first: {text}");
    assert!(text.contains("Using backend: daytona"), "{text}");
}

/// Checks requirement A9.06: files and execs in a workspace survive between runs and while the server is not
/// running.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_that_comes_back_finds_its_workspaces() {
    if !daytona() {
        return;
    }
    served(async || {
        let server = Server::start(&["--user", "0"]);
        let mut service = Service::with_words(&server.before(), &["--backends", "daytona"]);
        known(service.data());
        let client = service.client();
        let id = create(&client).await;
        assert_eq!(says(&client, &id, "echo kept > file; cat file").await, "kept\n");
        let exec =
            client.exec(&id, &script("for i in 1 2 3 4 5 6; do echo $i; sleep 1; done")).await.unwrap();
        service.kill();
        service.begin();
        assert_eq!(exec.collect().await.unwrap().stdout, b"1\n2\n3\n4\n5\n6\n", "each line once");
        assert_eq!(says(&client, &id, "cat file").await, "kept\n");
        client.stop(&id).await.unwrap();
        until(GONE_WITHIN, "the workspace to be gone", async || workspaces(&server) == 0).await;
    });
}

/// Checks requirement A9.02: if Daytona cannot create a sandbox, an engine on this machine creates it, and
/// the fallback is logged.
#[test]
#[ignore = "starts real sandboxes"]
fn what_daytona_cannot_make_an_engine_makes() {
    if !daytona() {
        return;
    }
    served(async || {
        // Processes in these workspaces do not run as root, so the guest cannot apply its own confinement.
        let server = Server::start(&[]);
        let service = Service::with_words(&server.before(), &["--backends", "daytona,docker"]);
        known(service.data());
        let client = service.client();
        assert_eq!(client.node().await.unwrap().runtimes, ["daytona", "docker"]);
        let id = create(&client).await;
        assert_eq!(says(&client, &id, "echo here").await, "here\n");
        let log = service.words();
        assert!(
            log.contains("the Daytona workspace cannot be isolated: its processes do not run as root"),
            "{log}"
        );
        assert!(log.contains("trying the next backend"), "{log}");
        assert_eq!(workspaces(&server), 0, "what was begun there is gone");
        client.stop(&id).await.unwrap();
        let run = ["--backends", "daytona,engine", "run", "--", "echo", "here"];
        let data = data();
        let engine = std::env::var("DOCKER_HOST").unwrap();
        let mut command = bellglass(data.path());
        command.args(run).envs(server.variables()).env("DOCKER_HOST", engine);
        let (code, text) = said(command.env("CONTAINER_HOST", "unix:///nonexistent"));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("trying the next backend") && text.contains("here\n"), "{text}");
        let (code, text) = said(command.env("DAYTONA_API_KEY", "dtn_wrong"));
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains("Daytona rejected the key: it returned 401: Unauthorized; using the next backend"),
            "{text}"
        );
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn what_is_wrong_with_an_account_is_said_with_what_to_do() {
    if !docker() {
        return;
    }
    let data = data();
    let server = Server::start(&[]);
    let run = |variables: Variables<'_>| {
        let mut command = bellglass(data.path());
        command.args(["--backends", "daytona", "run", "--", "true"]).envs(variables.iter().copied());
        said(&mut command)
    };
    let cases: [(Variables<'_>, &str, &str); 5] = [
        (&[], "Daytona is not configured: DAYTONA_API_URL is not set", "https://app.daytona.io/api"),
        (
            &[("DAYTONA_API_URL", server.address())],
            "Daytona is not configured: DAYTONA_API_KEY is not set",
            "DAYTONA_API_KEY to a key",
        ),
        (
            &[("DAYTONA_API_URL", server.address()), ("DAYTONA_API_KEY", "dtn_wrong")],
            "Daytona rejected the key: it returned 401",
            "set DAYTONA_API_KEY to this key",
        ),
        (
            &[("DAYTONA_API_URL", "http://127.0.0.1:1/api"), ("DAYTONA_API_KEY", KEY)],
            "Daytona cannot be reached: http://127.0.0.1:1/api",
            "Check DAYTONA_API_URL",
        ),
        (
            &[("DAYTONA_API_URL", "http://daytona.example.org/api"), ("DAYTONA_API_KEY", KEY)],
            "Daytona cannot be used: DAYTONA_API_URL does not use https",
            "Your Daytona account shows the URL",
        ),
    ];
    for (variables, message, fix) in cases {
        let (code, text) = run(variables);
        assert_eq!(code, 125, "{text}");
        assert!(text.contains(message), "{text}");
        assert!(text.contains(fix), "{text}");
        assert!(!text.contains("dtn_wrong") && !text.contains(KEY), "the key is told to nobody: {text}");
    }
    let (code, text) = run(&server.variables().each_ref().map(|(name, value)| (*name, value.as_str())));
    assert_eq!(code, 125, "{text}");
    assert!(
        text.contains("the Daytona workspace cannot be isolated: its processes do not run as root"),
        "{text}"
    );
    assert!(text.contains("USER root"), "{text}");
    lost(data.path());
    let mut command = bellglass(data.path());
    command.args(["--backends", "daytona", "run", "--template", "lost", "--", "true"]);
    let (code, text) = said(command.envs(server.variables()));
    assert_eq!(code, 125, "{text}");
    assert!(text.contains("Daytona has no snapshot for this template"), "{text}");
    assert!(text.contains("daytona snapshot push"), "{text}");
    assert_eq!(workspaces(&server), 0);
}

/// Verifies that attack A-20 fails: code in a workspace cannot reach the Daytona agent, which runs as root in
/// the same workspace.
#[test]
#[ignore = "starts real sandboxes"]
fn the_agent_of_a_workspace_is_out_of_reach() {
    if !daytona() {
        return;
    }
    lab::on(&["daytona"], async |lab| {
        let sandbox = lab.sandbox().await;
        let container = Server::shared().container_of(sandbox.id());
        let payload = e2e::attack::file("A-20", "attack.py");
        let (code, text) = said(
            Command::new("docker").arg("cp").arg(&payload).arg(format!("{container}:/usr/local/attack.py")),
        );
        assert_eq!(code, 0, "{text}");
        let outside = |user: &str, word: &str| {
            let mut command = Command::new("docker");
            command.args(["exec", "-u", user, &container, "python3", "/usr/local/attack.py", word]);
            command
        };
        let mut agent = outside("0", "agent").stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(agent.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let (code, control) = said(&mut outside("1000", "attack"));
        assert_eq!((code, control.matches(": through").count()), (42, ACTS), "{control}");
        let attack = lab::collect(&sandbox, &lab::exec(&["python3", "/usr/local/attack.py", "attack"])).await;
        let told = String::from_utf8_lossy(&attack.stdout).into_owned();
        assert_eq!(attack.end.outcome, Outcome::Exited { code: 0 }, "{told}");
        assert_eq!((told.lines().count(), told.matches(": through").count()), (ACTS, 0), "{told}");
        agent.kill().unwrap();
        agent.wait().unwrap();
        sandbox.stop(Duration::ZERO).await.unwrap();
    });
}

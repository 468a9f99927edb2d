//! Error messages and the fixes that they suggest when something is missing (requirements A12.02 and A12.03).

use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;

use e2e::layer;
use runtime::engine::EngineKind;

use super::{bellglass, docker, engines, said};

/// User ID that has no permission to use any engine.
const NOBODY: u32 = 64_999;

#[test]
#[ignore = "starts real sandboxes"]
fn an_engine_that_is_not_there_is_named_with_what_to_install() {
    if engines().is_empty() {
        return;
    }
    // A socket at the default path belongs to an engine that this machine itself runs.
    if std::path::Path::new("/var/run/docker.sock").exists() {
        eprintln!("skipped: this machine has a Docker engine of its own");
        return;
    }
    let data = tempfile::tempdir().unwrap();
    layer::lend_base(data.path());
    let run = ["--backends", "docker", "run", "--", "true"];
    let (code, text) = said(bellglass(data.path()).args(run).env("HOME", "/nonexistent"));
    assert_eq!(code, 125, "{text}");
    assert!(
        text.contains("No backend available. docker: docker was not found: none of its sockets exists"),
        "{text}"
    );
    assert!(text.contains("apt-get install docker.io"), "{text}");
    let (code, text) = said(
        bellglass(data.path()).args(["--backends", "engine", "sandbox-status"]).env("HOME", "/nonexistent"),
    );
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("No backend available\n"), "{text}");
    for name in ["podman", "docker"] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_daemon_that_does_not_run_is_told_from_one_that_is_not_there() {
    if engines().is_empty() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    layer::lend_base(data.path());
    let socket = data.path().join("engine.sock");
    drop(UnixListener::bind(&socket).unwrap());
    for (kind, variable, fix) in [
        (EngineKind::Docker, "DOCKER_HOST", "systemctl start docker"),
        (EngineKind::Podman, "CONTAINER_HOST", "systemctl --user start podman.socket"),
    ] {
        let address = format!("unix://{}", socket.display());
        let run = ["--backends", kind.name(), "run", "--", "true"];
        let (code, text) = said(bellglass(data.path()).args(run).env(variable, &address));
        assert_eq!(code, 125, "{text}");
        assert!(
            text.contains(&format!("{} is not running: its daemon does not respond", kind.name())),
            "{text}"
        );
        assert!(text.contains(fix), "{text}");
    }
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_address_that_cannot_be_used_is_named_with_what_can() {
    if engines().is_empty() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    lost(data.path());
    let run = ["--backends", "docker", "run", "--template", "lost", "--", "true"];
    let (code, text) = said(bellglass(data.path()).args(run).env("DOCKER_HOST", "ssh://somewhere"));
    assert_eq!(code, 125, "{text}");
    assert!(text.contains("DOCKER_HOST is ssh://somewhere, which is neither unix:// nor tcp://"), "{text}");
}

#[test]
#[ignore = "starts real sandboxes"]
fn who_may_not_use_the_socket_is_told_how_to() {
    if !docker() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    lost(data.path());
    let owner = format!("{NOBODY}:{NOBODY}");
    assert!(
        std::process::Command::new("chown").args(["-R", &owner]).arg(data.path()).status().unwrap().success()
    );
    let mut command = bellglass(data.path());
    command
        .args(["--backends", "docker", "run", "--template", "lost", "--", "true"])
        .env("DOCKER_HOST", std::env::var("DOCKER_HOST").unwrap());
    let (code, text) = said(command.uid(NOBODY).gid(NOBODY));
    assert_eq!(code, 125, "{text}");
    assert!(text.contains("docker cannot be used: permission denied on "), "{text}");
    assert!(text.contains("usermod -aG docker"), "{text}");
}

/// Rootless Podman is refused if it cannot enforce limits. On cgroup version 1 it enforces none, although its
/// Docker-compatible API claims that it does.
#[test]
#[ignore = "starts real sandboxes"]
fn podman_without_root_is_used_where_it_can_limit_and_nowhere_else() {
    if !engines().contains(&EngineKind::Podman) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let as_user = |program: &str| {
        let mut command = std::process::Command::new(program);
        command
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir(home.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path());
        command
    };
    let socket = home.path().join("podman.sock");
    let address = format!("unix://{}", socket.display());
    // Podman starts several processes, and the first does not serve requests. The whole process group is
    // killed later.
    let mut service = as_user("podman");
    service.args(["system", "service", "--time=20", &address]).process_group(0);
    let mut service = service.spawn().unwrap();
    let since = std::time::Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(since.elapsed() < std::time::Duration::from_secs(30), "rootless Podman did not begin");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let mut status = as_user(&e2e::service::binary().to_string_lossy());
    let (_, text) = said(status.args(["--backends", "podman", "status"]).env("CONTAINER_HOST", &address));
    let group = i32::try_from(service.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    service.wait().unwrap();
    if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        assert!(text.contains("rootless, at unix://") || text.contains("is not supported here"), "{text}");
    } else {
        assert!(text.starts_with("No backend available\n"), "{text}");
        assert!(
            text.contains("memory_bytes is not supported here: rootless Podman enforces no limits"),
            "{text}"
        );
    }
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_image_that_is_missing_is_said_to_be_with_how_to_make_it() {
    for kind in engines() {
        let data = tempfile::tempdir().unwrap();
        lost(data.path());
        let engine = |command: &mut std::process::Command| {
            for name in ["DOCKER_HOST", "CONTAINER_HOST"] {
                command.env(name, std::env::var(name).unwrap_or_default());
            }
        };
        let mut command = bellglass(data.path());
        engine(command.args(["--backends", kind.name(), "run", "--template", "lost", "--", "true"]));
        let (code, text) = said(&mut command);
        assert_eq!(code, 125, "{text}");
        assert!(text.contains(&format!("{} has no image for this template", kind.name())), "{text}");
        assert!(text.contains("bellglass build-sandbox"), "{text}");
        let mut command = bellglass(data.path());
        engine(command.args(["--backends", kind.name(), "status"]));
        let (code, text) = said(&mut command);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(&format!("Using backend: {}", kind.name())), "{text}");
        assert!(text.contains("missing; to build it: bellglass build-sandbox lost"), "{text}");
    }
}

/// Saves a template named `lost`, whose layer and image do not exist.
pub fn lost(data: &std::path::Path) {
    let layers = vec!["0123456789abcdef".repeat(4)];
    let template = node::template::Template { layers, ..node::template::Template::of("lost") };
    node::template::Store::new(data).save(&template).unwrap();
}

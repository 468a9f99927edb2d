//! Use of an engine by a user other than root.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::layer;
use runtime::engine::EngineKind;

use super::{bellglass, docker, engines, said};

/// User ID that belongs to no account on this machine.
const USER: u32 = 64_998;

/// Returns the ID of the group that owns Docker's socket. Members of this group may use Docker.
fn docker_group() -> u32 {
    let socket = std::env::var("DOCKER_HOST").unwrap();
    let found = std::fs::metadata(socket.trim_start_matches("unix://")).unwrap();
    std::os::unix::fs::MetadataExt::gid(&found)
}

/// Returns a `bellglass` command that runs as an unprivileged member of this group, with its own home
/// directory.
fn as_user(home: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let groups = format!("--groups={}", docker_group());
    command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), &groups]);
    command.arg(e2e::service::binary()).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
    command.env("DOCKER_HOST", std::env::var("DOCKER_HOST").unwrap()).stdin(Stdio::null());
    command
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_user_in_the_group_docker_runs_without_root() {
    if !docker() {
        return;
    }
    assert_ne!(docker_group(), 0, "the socket belongs to a group of users");
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("base.tar");
    layer::export("base", &file);
    for path in [home.path(), &file] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    let (code, text) = said(as_user(home.path()).args(["run", "--", "true"]));
    assert_eq!(code, 125, "there is no template yet: {text}");
    let (code, text) = said(as_user(home.path()).args(["template", "import", "--name", "base"]).arg(&file));
    assert_eq!(code, 0, "{text}");
    let (code, text) =
        said(as_user(home.path()).args(["run", "--", "sh", "-c", "id -u; echo $HOME; exit 3"]));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("1000\n/home/sandbox\n"), "{text}");
    assert!(
        text.contains("Using backend: docker, which lacks a user namespace"),
        "nothing weaker without a word: {text}"
    );
    let (code, text) = said(as_user(home.path()).args(["sandbox-test", "base"]));
    assert_eq!(code, 0, "{text}");
    let (code, text) = said(as_user(home.path()).arg("status"));
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("Using backend: docker\n"), "{text}");
    assert!(text.contains("rootful"), "requirement A2.11: {text}");
    let (code, text) = said(as_user(home.path()).arg("doctor"));
    assert_eq!(code, 0, "{text}");
    assert!(home.path().join(".local/share/bellglass").is_dir());
}

/// Checks requirement A14.08: `build-sandbox` builds a recipe into a working image.
#[test]
#[ignore = "starts real sandboxes"]
fn a_recipe_is_built_by_the_engine_and_tried_out() {
    if !docker() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let recipe = home.path().join("tools.toml");
    let text = "from = \"localhost/bellglass/base:latest\"\nsteps = [\n  { copy = { from = \"app\", to = \"/opt/my app\" } },\n  \
        { run = \"echo $USER > /opt/who\" },\n  { user = \"sandbox\" },\n  { run = [\"sh\", \"-c\", \"id -u > /tmp/x; exit 0\"] },\n  \
        { env = { GREETING = \"a $HOME \\\"b\\\"\" } },\n  { workdir = \"/opt\" },\n]\n";
    std::fs::write(&recipe, text).unwrap();
    std::fs::create_dir(home.path().join("app")).unwrap();
    std::fs::write(home.path().join("app/a"), "hello\n").unwrap();
    for path in [home.path().to_owned(), recipe.clone()] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    layer::also_named(EngineKind::Docker, &layer::base_image("docker"), "localhost/bellglass/base:latest");
    let (code, text) = said(as_user(home.path()).arg("build-sandbox").arg(&recipe));
    assert_eq!(code, 0, "{text}");
    let show = "cat '/opt/my app/a' /opt/who; echo \"$GREETING\"; pwd";
    let (code, text) =
        said(as_user(home.path()).args(["run", "--template", "tools", "--", "sh", "-c", show]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("hello\nroot\na $HOME \"b\"\n/opt\n"), "{text}");
    let (code, text) = said(as_user(home.path()).args(["template", "containerfile"]).arg(&recipe));
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("FROM localhost/bellglass/base:latest")
            && text.contains(r#"COPY ["app","/opt/my app"]"#),
        "{text}"
    );
}

/// A killed command leaves a container behind. The next command removes it.
#[test]
#[ignore = "starts real sandboxes"]
fn what_a_killed_command_left_is_removed_by_the_next() {
    for kind in engines() {
        let data = tempfile::tempdir().unwrap();
        layer::lend_base(data.path());
        layer::base_image_in(data.path(), kind.name());
        let command = |words: &[&str]| {
            let mut command = bellglass(data.path());
            for name in ["DOCKER_HOST", "CONTAINER_HOST"] {
                command.env(name, std::env::var(name).unwrap_or_default());
            }
            command.args(["--backends", kind.name()]).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
            command
        };
        let mut child =
            command(&["run", "--", "sh", "-c", "echo begun; sleep 600"]).process_group(0).spawn().unwrap();
        let mut first = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let engines = data.path().join("engine").join(kind.name());
        assert_eq!(std::fs::read_dir(&engines).unwrap().count(), 1, "it is written down");
        let began = Instant::now();
        let (code, text) = said(command(&["run", "--", "echo", "ok"]).stdout(Stdio::piped()));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("removed sandboxes left behind by a killed command"), "{text}");
        assert_eq!(std::fs::read_dir(&engines).unwrap().count(), 0);
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

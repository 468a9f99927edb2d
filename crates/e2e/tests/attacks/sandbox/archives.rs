//! Attacks I-10, I-13 and I-14: images that engines import, and files that engines add to a sandbox. The
//! tests use the command line without root, as users do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use e2e::attack;
use e2e::lab::{sh, text, wanted};
use node::template::Store;
use runtime::engine::EngineKind;
use tempfile::TempDir;

use super::field::withstand;

/// User ID that nothing else on this machine uses.
const USER: u32 = 64_997;

/// A user other than root who may use an engine.
struct Person {
    home: TempDir,
    kind: EngineKind,
    /// ID of the attack whose defence is disabled, or an empty string.
    without: &'static str,
}

impl Person {
    fn new(kind: EngineKind, without: &'static str) -> Self {
        let home = tempfile::Builder::new().prefix("bellglass-person").tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(USER), Some(USER)).unwrap();
        Self { home, kind, without }
    }

    fn bellglass(&self, words: &[&str]) -> (i32, String) {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
        command.arg(e2e::service::binary()).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("HOME", self.home.path()).env(variable(self.kind), address(self.kind));
        command.env(api::defence::VARIABLE, e2e::attack::off(self.without));
        command.args(["--backends", self.kind.name()]).args(words).stdin(Stdio::null());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (status.code().unwrap_or(-1), text)
    }

    fn well(&self, words: &[&str]) -> String {
        let (code, text) = self.bellglass(words);
        assert_eq!(code, 0, "{words:?}: {text}");
        text
    }

    /// Returns the name that a template's image has in the engine.
    fn image(&self, template: &str) -> String {
        let data = self.home.path().join(".local/share/bellglass");
        Store::new(&data).load(template).unwrap().image()
    }

    /// Returns true if a sandbox of this template contains the file that exists only in the attacker's image.
    fn owned(&self, template: &str) -> bool {
        let (_, said) =
            self.bellglass(&["run", "--template", template, "--", "sh", "-c", "echo ran; cat /etc/owned"]);
        assert!(said.contains("ran\n"), "{said}");
        said.contains("\nowned\n")
    }

    /// Creates an archive that contains the payload of attack I-10.
    fn archive(&self, form: &str, names: &[&str]) -> PathBuf {
        let (source, target) = (base(self.home.path()), self.home.path().join(format!("{form}.tar")));
        let mut command = Command::new("python3");
        command.arg(attack::file("I-10", "attack.py")).arg(source).arg(&target).arg(form).args(names);
        assert!(command.status().unwrap().success());
        target
    }
}

/// Exports the template `base` to a file.
fn base(home: &Path) -> PathBuf {
    let file = home.join("base.tar");
    if !file.exists() {
        e2e::layer::export("base", &file);
        std::os::unix::fs::chown(&file, Some(USER), Some(USER)).unwrap();
    }
    file
}

/// Returns the name of the environment variable that holds an engine's address.
fn variable(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Docker => "DOCKER_HOST",
        EngineKind::Podman => "CONTAINER_HOST",
    }
}

/// Returns the address of an engine under test. Every user on this machine gets access to its socket.
fn address(kind: EngineKind) -> String {
    let address = std::env::var(variable(kind)).unwrap();
    let socket = address.trim_start_matches("unix://");
    std::fs::set_permissions(socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    address
}

/// Sends a request to an engine and returns the response.
fn ask(kind: EngineKind, path: &str) -> serde_json::Value {
    let address = address(kind);
    let socket = address.trim_start_matches("unix://");
    let url = format!("http://engine{path}");
    let said =
        Command::new("curl").args(["--silent", "--globoff", "--unix-socket", socket, &url]).output().unwrap();
    serde_json::from_slice(&said.stdout).unwrap_or_default()
}

fn id_of(kind: EngineKind, name: &str) -> String {
    ask(kind, &format!("/images/{name}/json"))["Id"].as_str().unwrap_or_default().to_owned()
}

/// Returns the engines under test.
fn engines() -> Vec<EngineKind> {
    EngineKind::ALL.into_iter().filter(|kind| wanted(kind.name())).collect()
}

/// Verifies that attack I-10 (finding IH1) fails: an archive cannot claim the name of another template's
/// image, neither by a key nor by an annotation.
#[test]
#[ignore = "starts real sandboxes"]
fn no_archive_takes_over_the_image_of_a_template() {
    for kind in engines() {
        // An archive names its image by the key `repoTags` or by an annotation. Docker applies the key.
        // Podman applies both, but an import with the key fails after Podman has applied the names.
        let reaches = if kind == EngineKind::Docker { "keys" } else { "annotation" };
        let control = Person::new(kind, "I-10");
        control.well(&["template", "import", "--name", "good", base(control.home.path()).to_str().unwrap()]);
        assert!(!control.owned("good"));
        let names = [control.image("good"), "localhost/bellglass/good:latest".to_owned()];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // Podman applies only one of an OCI layout's names. The name by which sandboxes are started is
        // sufficient.
        let archive =
            control.archive(reaches, if kind == EngineKind::Docker { &names[..] } else { &names[..1] });
        control.well(&["template", "import", "--name", "stranger", archive.to_str().unwrap()]);
        assert!(control.owned("good"), "control: {reaches} took nothing over on {}", kind.name());

        let person = Person::new(kind, "");
        person.well(&["template", "import", "--name", "good", base(person.home.path()).to_str().unwrap()]);
        assert!(!person.owned("good"), "names that were taken before mean nothing");
        let before: Vec<String> = names.iter().map(|name| id_of(kind, name)).collect();
        let keys = person.archive("keys", &names);
        let (code, said) =
            person.bellglass(&["template", "import", "--name", "by-keys", keys.to_str().unwrap()]);
        assert!(code == 125 && said.contains("repoTags"), "{code} {said}");
        let annotation = person.archive("annotation", &names);
        person.well(&["template", "import", "--name", "by-annotation", annotation.to_str().unwrap()]);
        let after: Vec<String> = names.iter().map(|name| id_of(kind, name)).collect();
        assert_eq!(before, after, "a name of ours means another image");
        assert!(!person.owned("good"));
        assert!(person.owned("by-annotation"), "the archive itself is a template like others");
        // Moving a tag directly in the engine has no effect either.
        let moved = format!(
            "/images/{}/tag?repo=localhost/bellglass/template&tag={}",
            id_of(kind, "localhost/bellglass/by-annotation:latest"),
            names[0].rsplit_once(':').unwrap().1
        );
        let socket = address(kind);
        let post = ["--silent", "-X", "POST", "--unix-socket", socket.trim_start_matches("unix://")];
        assert!(
            Command::new("curl").args(post).arg(format!("http://engine{moved}")).status().unwrap().success()
        );
        assert_ne!(id_of(kind, names[0]), before[0], "control: the tag was moved");
        assert!(!person.owned("good"), "started by a tag");
        e2e::attack::count_control();
        e2e::attack::held("I-10", kind.name(), "no archive takes over an image");
        for template in ["good", "by-annotation"] {
            person.well(&["template", "remove", template]);
        }
        for template in ["good", "stranger"] {
            control.bellglass(&["template", "remove", template]);
        }
    }
}

/// Verifies that attack I-13 (findings IL6, IL7 and IL8) fails: an image cannot redirect mounts, and removing
/// a template removes its images.
#[test]
#[ignore = "starts real sandboxes"]
fn an_image_moves_no_mount_and_leaves_nothing_behind() {
    for kind in engines() {
        let (control, person) = (Person::new(kind, "I-13"), Person::new(kind, ""));
        for one in [&control, &person] {
            let archive = one.archive("links", &[]);
            one.well(&["template", "import", "--name", "links", archive.to_str().unwrap()]);
        }
        let words = [
            "run",
            "--template",
            "links",
            "--",
            "sh",
            "-c",
            "readlink /workspace; touch /etc/mine && echo wrote",
        ];
        let (_, said) = control.bellglass(&words);
        // In Podman, sealing (adding the guest to the image) replaces the symlink with a directory.
        let reached = if kind == EngineKind::Docker { "/etc\nwrote" } else { "Read-only file system" };
        assert!(said.contains(reached), "control: {said}");
        let (code, said) = person.bellglass(&words);
        assert!(code == 125 && said.contains("/workspace is not a directory"), "{code} {said}");
        person.well(&["template", "import", "--name", "plain", base(person.home.path()).to_str().unwrap()]);
        person.well(&["run", "--template", "plain", "--", "true"]);
        let of_plain = id_of(kind, &person.image("plain"));
        let sealed = sealed(kind, &person);
        assert_eq!(sealed.len(), 1, "one image was sealed");
        for id in &sealed {
            let labels = ask(kind, &format!("/images/{id}/json"))["Config"]["Labels"].to_string();
            assert!(
                !labels.contains("dev.bellglass.sealing") && !labels.contains("dev.bellglass.owner"),
                "{labels}"
            );
        }
        person.well(&["template", "remove", "plain"]);
        assert_eq!(id_of(kind, "localhost/bellglass/plain:latest"), "", "its tag is there: {of_plain}");
        for id in sealed {
            assert_eq!(id_of(kind, &id), "", "a sealed image is there");
        }
        person.well(&["template", "remove", "links"]);
        control.well(&["template", "remove", "links"]);
        e2e::attack::count_control();
        e2e::attack::held("I-13", kind.name(), "no mount was moved");
    }
}

/// Returns the IDs of the sealed images that this user's sandboxes have created.
fn sealed(kind: EngineKind, person: &Person) -> Vec<String> {
    let notes = person.home.path().join(format!(".local/share/bellglass/engine/{}-sealed", kind.name()));
    let entries = std::fs::read_dir(notes).unwrap().flatten();
    entries.map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect()
}

/// Verifies that attack I-14 (finding IL1) fails: the machine's host names do not appear in a sandbox in an
/// engine.
#[test]
#[ignore = "starts real sandboxes"]
fn no_name_of_the_machine_is_in_a_sandbox_of_an_engine() {
    withstand("I-14", &["docker", "podman"], async |field| {
        if field.lab.runtime.name() == "podman" {
            // Control: Podman's default hosts file names the machine.
            let undefended = {
                let _undefended = super::field::turn_off("I-14");
                field.sandbox().await
            };
            let hosts = text(&sh(&undefended, "cat /etc/hosts").await);
            assert!(hosts.contains("containers.internal"), "control: {hosts}");
            undefended.stop(std::time::Duration::ZERO).await.unwrap();
        } else {
            field.has_no_control("Docker's default hosts file does not name the machine");
        }
        // A copy of the machine's hosts file would contain the following names.
        let machine = std::fs::read_to_string("/etc/hosts").unwrap();
        let sandbox = field.sandbox().await;
        let hosts = text(&sh(&sandbox, "cat /etc/hosts; python3 -c \"import socket; print(socket.gethostbyname('localhost'), socket.gethostbyname('sandbox'))\"").await);
        assert!(hosts.ends_with("127.0.0.1 127.0.0.1\n"), "{hosts}");
        assert!(!hosts.contains("containers.internal"), "{hosts}");
        let own = [
            "localhost",
            "ip6-localhost",
            "ip6-loopback",
            "ip6-allnodes",
            "ip6-allrouters",
            "ip6-localnet",
            "ip6-mcastprefix",
        ];
        let words = machine
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| line.split_whitespace().skip(1));
        let theirs: Vec<&str> = words.filter(|name| !own.contains(name)).collect();
        assert!(theirs.iter().all(|name| !hosts.contains(name)), "{theirs:?} in {hosts}");
        field.recovers(&sandbox).await;
    });
}

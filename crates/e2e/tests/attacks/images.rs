//! The attacks of `attacks/` on the sources of templates: U-10, U-11, U-12, U-20 and U-21, on the real
//! `bellglass template`.
//!
//! | module | contains |
//! |---|---|
//! | [`steps`] | U-12: a step that reaches beyond its own layer |
//! | [`forgery`] | U-20, U-21: a layer larger than the data written, and forged lines in the build log |

mod forgery;
mod steps;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use e2e::service::{binary, lend_template};
use e2e::world::{EVIL, World, in_a_world};
use tempfile::TempDir;

/// Maximum time until a build is refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);
const PORT: &str = "5443";

/// A data directory with recipes next to it.
struct Place {
    home: TempDir,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("bellglass-images").tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).unwrap();
        Self { home }
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Writes a recipe that starts from this image, and returns the command that builds the recipe.
    fn build(&self, name: &str, from: &str, more: &[&str]) -> Vec<String> {
        let recipe = self.home.path().join(format!("{name}.toml"));
        fs::write(&recipe, format!("from = {from:?}\n")).unwrap();
        let words = [binary().display().to_string(), "--data".into(), self.data().display().to_string()];
        let rest = ["template", "build", recipe.to_str().unwrap()];
        words.into_iter().chain(rest.into_iter().chain(more.iter().copied()).map(str::to_owned)).collect()
    }

    /// Returns the directory with the files of a template's only layer, as the machine's operator sees it.
    fn layer(&self, name: &str) -> PathBuf {
        let text = fs::read(self.data().join(format!("templates/{name}.json"))).unwrap();
        let template: serde_json::Value = serde_json::from_slice(&text).unwrap();
        self.data().join("layers").join(template["layers"][0].as_str().unwrap()).join("fs")
    }

    /// Returns the directory with the files of a template's last layer.
    fn top_layer(&self, name: &str) -> PathBuf {
        let text = fs::read(self.data().join(format!("templates/{name}.json"))).unwrap();
        let template: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let last = template["layers"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
        self.data().join("layers").join(last).join("fs")
    }

    /// Asserts that refused builds have left nothing behind.
    fn assert_tidy(&self) {
        let layers = fs::read_dir(self.data().join("layers")).into_iter().flatten().flatten();
        let left: Vec<_> = layers
            .map(|one| one.file_name())
            .filter(|name| name.to_string_lossy().starts_with("making"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        let sandboxes: Vec<_> =
            fs::read_dir(self.data().join("sandboxes")).into_iter().flatten().flatten().collect();
        assert!(sandboxes.is_empty(), "{sandboxes:?}");
    }
}

fn said(output: &Output) -> String {
    [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat()
}

/// Returns the number of requests that have arrived at a metadata service or a private address.
fn strayed(world: &World) -> usize {
    let said = world.seen()["said"].as_array().unwrap().clone();
    said.iter().filter(|one| !one["here"].as_str().unwrap().starts_with("93.184.216.")).count()
}

fn registry(world: &World) -> e2e::world::Inside {
    let program = e2e::attack::shared("registry.py");
    let identity = world.identity();
    let mut registry =
        world.inside(&["python3", program.to_str().unwrap(), EVIL, PORT, identity.to_str().unwrap()]);
    assert_eq!(registry.says(), "ready\n");
    registry
}

/// Verifies that attack U-10 fails: malformed images are refused or made harmless.
#[test]
#[ignore = "starts real sandboxes"]
fn images_that_nobody_should_have_made_are_refused_or_made_harmless() {
    in_a_world(async |world| {
        let _registry = registry(world);
        let place = Place::new();
        let build = |name: &str| {
            let begun = Instant::now();
            let output = world
                .command(&place.build(name, &format!("evil.example:{PORT}/{name}:1"), &[]))
                .output()
                .unwrap();
            assert!(begun.elapsed() < REFUSED_WITHIN, "{name} took {:?}", begun.elapsed());
            output
        };
        let control = build("good");
        assert!(control.status.success(), "{}", said(&control));
        assert_eq!(fs::read_to_string(place.layer("good").join("srv/hello")).unwrap(), "hello");
        for (name, why) in [
            ("zero", "layers"),
            ("many", "layers"),
            ("mismatch", "digest"),
            ("mismatchconfig", "digest"),
            ("short", "short"),
            ("hugeconfig", "too large"),
            ("liedconfig", "bytes"),
            ("circular", "Invalid digest. Expected"),
            ("workdir", "/proc/self/fd/8"),
            ("variables", "variable"),
        ] {
            let output = build(name);
            let words = said(&output);
            assert!(!output.status.success() && words.contains("fix:"), "{name}: {words}");
            assert!(words.contains(why), "{name}: {words}");
            assert!(words.len() < 4000, "{name} is told in {} bytes", words.len());
            println!("U-10 {name}: refused");
        }
        for name in ["bomb", "things", "entrypoint", "user"] {
            let output = build(name);
            assert!(output.status.success(), "{name}: {}", said(&output));
            let tree = place.layer(name);
            assert!(tree.join("srv").join(name).is_file(), "{name}: the layer is not complete");
            assert!(fs::symlink_metadata(tree.join("dev")).unwrap().is_dir(), "{name}");
            let left_out = ["dev/planted", "srv/node0", "srv/node1", "srv/node2"].map(|path| tree.join(path));
            assert!(left_out.iter().all(|path| fs::symlink_metadata(path).is_err()), "{name}: {left_out:?}");
            assert!(!Path::new("/etc/planted").exists(), "{name}");
            println!("U-10 {name}: made harmless");
            place.assert_tidy();
        }
        assert_eq!(strayed(world), 0);
        let why = "an image is malformed or not; the well-formed image of the same registry was accepted";
        e2e::attack::held_without_control("U-10", "runc", why);
    });
}

/// Verifies that attack U-11 fails: a registry cannot redirect a pull to a forbidden address.
#[test]
#[ignore = "starts real sandboxes"]
fn a_pull_is_not_led_to_where_it_may_not_go() {
    in_a_world(async |world| {
        let _registry = registry(world);
        let place = Place::new();
        // Control: a client without this defence follows the redirect of the same registry.
        let naive = "import re, ssl, sys, urllib.request, urllib.error\ntry: urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context())\nexcept urllib.error.HTTPError as error: urllib.request.urlopen(re.search('realm=\"([^\"]*)\"', error.headers['www-authenticate'])[1])";
        let words = ["python3", "-c", naive, &format!("https://evil.example:{PORT}/v2/realm/manifests/1")];
        let output = world.command(&words.map(str::to_owned)).output().unwrap();
        assert_eq!(strayed(world), 1, "the control is to arrive: {}", said(&output));
        let before = strayed(world);
        let target = place.home.path().join("skopeo");
        let words = [
            "skopeo",
            "copy",
            "--src-tls-verify=false",
            &format!("docker://evil.example:{PORT}/redirectblob:1"),
            &format!("dir:{}", target.display()),
        ];
        let output = world.command(&words.map(str::to_owned)).output().unwrap();
        assert!(strayed(world) > before, "redirectblob: the control is to arrive: {}", said(&output));
        let strayed_before = strayed(world);
        let evil = |name: &str| format!("evil.example:{PORT}/{name}:1");
        let references = [
            evil("redirect"),
            evil("redirectblob"),
            evil("redirectname"),
            evil("realm"),
            evil("realmprivate"),
            evil("loop"),
            evil("endless"),
            evil("endlessmanifest"),
            "169.254.169.254/latest/meta-data:1".into(),
            "meta.example/a/b:1".into(),
            "private.example/a/b:1".into(),
            "10.0.0.5:8080/a/b:1".into(),
            "loop.example:5000/a:1".into(),
            "rebind.example/a/b:1".into(),
            "machine.example/a/b:1".into(),
        ];
        for (at, reference) in references.iter().enumerate() {
            let begun = Instant::now();
            let output = world.command(&place.build(&format!("r{at}"), reference, &[])).output().unwrap();
            let words = said(&output);
            assert!(
                !output.status.success()
                    && (words.contains("cannot pull") || words.contains("does not match: expected")),
                "{reference}: {words}"
            );
            assert!(begun.elapsed() < REFUSED_WITHIN, "{reference} took {:?}", begun.elapsed());
            place.assert_tidy();
            println!("U-11 {reference}: refused");
        }
        assert_eq!(strayed(world), strayed_before, "nothing has arrived where it may not go");
        // A private registry is contacted only after the operator has named it.
        let output = world
            .command(&place.build("named", "10.0.0.5:8080/a/b:1", &["--registry", "http://10.0.0.5:8080"]))
            .output()
            .unwrap();
        assert!(!output.status.success());
        assert!(strayed(world) > strayed_before, "it is asked now: {}", said(&output));
        e2e::attack::count_control();
        e2e::attack::held("U-11", "runc", &format!("{} references", references.len()));
    });
}

/// Checks that an image from a real registry (Debian's package) becomes a template. Bellglass exports the
/// image, and a different tool pushes it to the registry.
#[test]
#[ignore = "starts real sandboxes"]
fn an_image_of_a_real_registry_becomes_a_template_that_runs() {
    in_a_world(async |world| {
        let place = Place::new();
        let store = place.home.path().join("registry");
        let config = place.home.path().join("registry.yml");
        let identity = world.identity();
        let directory = identity.parent().unwrap().display().to_string();
        fs::write(&config, format!(
            "version: 0.1\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\nhttp: {{ addr: '93.184.216.40:5000', tls: {{ certificate: {directory}/hosts, key: {directory}/key }} }}\n",
            store.display()
        )).unwrap();
        let _registry = world.inside(&["docker-registry", "serve", config.to_str().unwrap()]);
        e2e::service::until(Duration::from_secs(20), "the registry listens", async || {
            std::net::TcpStream::connect("93.184.216.40:5000").is_ok()
        })
        .await;
        // Export a template of this machine as one file that a different tool can read.
        std::fs::create_dir_all(place.data()).unwrap();
        lend_template(&place.data(), "base", 'b');
        let bellglass = |words: &[&str]| {
            let own = [binary().display().to_string(), "--data".into(), place.data().display().to_string()];
            let words: Vec<String> =
                own.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect();
            world.command(&words).output().unwrap()
        };
        let file = place.home.path().join("base.tar");
        let exported = bellglass(&["template", "export", "base", file.to_str().unwrap()]);
        assert!(exported.status.success(), "{}", said(&exported));
        let words = [
            "skopeo",
            "copy",
            "--dest-tls-verify=false",
            &format!("oci-archive:{}", file.display()),
            "docker://93.184.216.40:5000/team/base:1",
        ];
        let pushed = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(pushed.status.success(), "{}", said(&pushed));

        let reference = "registry.good.example:5000/team/base:1";
        let pulled = world.command(&place.build("pulled", reference, &[])).output().unwrap();
        assert!(pulled.status.success(), "{}", said(&pulled));
        let ran = bellglass(&["run", "--template", "pulled", "--", "python3", "-c", "print(6 * 7)"]);
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "42\n", "{}", said(&ran));
        // All layers are already present, but the build still fetches the manifest, so it fails once the
        // registry's blobs are removed.
        fs::remove_dir_all(store.join("docker/registry/v2/blobs/sha256")).unwrap();
        let gone = world.command(&place.build("again", reference, &[])).output().unwrap();
        assert!(!gone.status.success(), "the manifest is still asked for: {}", said(&gone));
    });
}

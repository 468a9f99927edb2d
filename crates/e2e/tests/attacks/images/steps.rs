//! Attack U-12: a build step that reaches beyond its own layer.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use e2e::lab::{collect, exec, on, text};
use e2e::service::lend_template;
use node::Sandbox;
use node::template::recipe::Recipe;
use node::template::{BuildOrder, Builder, Store, Template};
use runtime::Spec;

use crate::sandbox::rooted;
use crate::sandbox::said::Said;

const PAYLOAD: &str = include_str!("../../../../../attacks/U-12-build-step-escape/attack.sh");

/// Attempts of the payload.
const ACTS: [&str; 17] = [
    "mount",
    "bind",
    "guest",
    "channel",
    "disk",
    "device",
    "whiteout",
    "trace",
    "memory",
    "descriptors",
    "root",
    "unshare",
    "chroot",
    "hostname",
    "trusted",
    "attribute",
    "raw",
];

/// Returns the metadata of all files in several directories of the layer below.
fn look(tree: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    for directory in [".", "etc", "bin", "usr/bin", "srv", "root"] {
        for entry in fs::read_dir(tree.join(directory)).into_iter().flatten().flatten() {
            let status = entry.path().symlink_metadata().unwrap();
            seen.push(format!(
                "{:?} {:o} {} {} {}",
                entry.path(),
                status.mode(),
                status.uid(),
                status.size(),
                status.ctime_nsec()
            ));
        }
    }
    seen.sort();
    seen
}

/// Verifies that attack U-12 fails: a build step changes only its own layer.
#[test]
#[ignore = "starts real sandboxes"]
fn a_step_changes_its_own_layer_and_nothing_else() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let builder = Builder::new(&lab.machine, Arc::clone(&lab.runtime));
        let build = async |name: &str, text: &str| {
            let recipe = Recipe::parse(text).unwrap();
            let order = BuildOrder::new(name, &recipe, Path::new("."));
            builder.build(&order, &|_| {}).await
        };
        let said = async |template: &Template, script: &str| {
            let spec =
                Spec { layers: template.layer_directories(lab.data()), ..lab.spec(Default::default()) };
            let sandbox = Sandbox::start(Arc::clone(&lab.runtime), lab.id(), &spec).await.unwrap();
            let said = text(&collect(&sandbox, &template.apply(exec(&["/bin/sh", "-c", script]))).await);
            sandbox.stop(std::time::Duration::ZERO).await.unwrap();
            said
        };
        e2e::attack::begin();
        rooted::assert_reached("U-12", &ACTS);
        let before = look(&e2e::layer::base());
        let step = format!("from = \"base\"\nsteps = [{{ run = '''\n{PAYLOAD}''' }}]");
        let evil = build("evil", &step).await.unwrap();
        let log = String::from_utf8(Store::new(lab.data()).build_log("evil").unwrap()).unwrap();
        let printed: Vec<&str> = log.lines().filter(|line| !line.starts_with('#')).map(str::trim).collect();
        rooted::assert_held(&Said::read(&printed.join("\n"), &log, Some(0)), &ACTS);
        e2e::attack::held("U-12", "runc", &format!("{} attempts as root", ACTS.len()));
        assert_eq!(look(&e2e::layer::base()), before, "the layer below is as it was");

        // The step's own template contains the changes that a step may make. Its sandboxes have the same
        // isolation as all others, because every start checks the posture.
        let script = "cat /srv/lawful; cat /etc/debian_version > /dev/null || echo hidden; id -un; stat -c %a /srv/root-shell; test -d /workspace && test -w /workspace && echo own; wc -c < /etc/resolv.conf; ls -A /srv | tr '\\n' ' '; ls -A /srv/hidden | wc -l";
        let seen = said(&evil, script).await;
        assert!(seen.starts_with("lawful\nsandbox\n755\nown\n0\n"), "{seen}");
        assert!(!seen.contains(".wh."), "{seen}");
        // The process that the step left running was killed before the layer was archived, so the file to
        // which the process wrote does not grow.
        let later =
            said(&evil, "wc -c < /srv/later 2>/dev/null; sleep 0.2; wc -c < /srv/later 2>/dev/null").await;
        let sizes: Vec<&str> = later.lines().collect();
        assert!(sizes.is_empty() || sizes[0] == sizes[1], "{later}");

        // A different recipe on the same base is not affected, and neither is the same step on a different
        // base.
        let other = build(
            "other",
            "from = \"base\"\nsteps = [{ run = \"test ! -e /srv/lawful && echo fine > /srv/fine\" }]",
        )
        .await
        .unwrap();
        assert_eq!(said(&other, "cat /srv/fine; ls /srv").await, "fine\nfine\n");
        let moved = build("moved", &step.replace("\"base\"", "\"other\"")).await.unwrap();
        assert!(moved.layers.last() != evil.layers.last() && moved.layers.len() == 3);

        // An attempt to exhaust resources ends with the step.
        for (name, script) in
            [("bomb", "b() { b | b & }; b; sleep 3; exit 1"), ("disk", "cat /dev/zero > /srv/full; exit 1")]
        {
            let failed = build(name, &format!("from = \"base\"\nsteps = [{{ run = '{script}' }}]"))
                .await
                .unwrap_err()
                .to_api();
            assert!(failed.message.starts_with("step 1 of 1 (run "), "{failed:?}");
            println!("attack U-12 {name} ended with its step");
        }
        let again =
            build("again", "from = \"base\"\nsteps = [{ run = \"echo fine > /srv/fine\" }]").await.unwrap();
        assert_eq!(said(&again, "cat /srv/fine").await, "fine\n");
    });
}

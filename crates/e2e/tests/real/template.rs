//! Templates that are imported from images, on a real runtime.

mod hostile;
mod image;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use api::ErrorCode;
use api::exec::Outcome;
use e2e::Lab;
use e2e::lab::{collect, exec, on, text};
use node::template::{Builder, Store, Template, TemplateProgress};
use node::{Error, Sandbox};
use runtime::Spec;

use image::{Image, Layer};

/// A modification that damages an image.
type Change = fn(&mut Image);

/// Imports an image. Returns the template and the number of layers that already existed.
async fn import(lab: &Lab, name: &str, file: &Path) -> Result<(Template, usize), Error> {
    let kept = Mutex::new(0);
    let builder = Builder::new(&lab.machine, Arc::clone(&lab.runtime));
    let watch = |progress: TemplateProgress<'_>| {
        if let TemplateProgress::Kept { .. } = progress {
            *kept.lock().unwrap() += 1;
        }
    };
    let template = builder.import(name, file, &watch).await?;
    let kept = *kept.lock().unwrap();
    Ok((template, kept))
}

/// Starts a sandbox from a template.
async fn start(lab: &Lab, template: &Template) -> Result<Sandbox, Error> {
    let spec = Spec { layers: template.layer_directories(lab.data()), ..lab.spec(Default::default()) };
    Sandbox::start(Arc::clone(&lab.runtime), lab.id(), &spec).await
}

/// Runs a script with the image's own shell and returns its standard output.
async fn said(sandbox: &Sandbox, template: &Template, script: &str) -> String {
    let spec = template.apply(exec(&["/bin/sh", "-c", script]));
    let collected = collect(sandbox, &spec).await;
    let problem = String::from_utf8_lossy(&collected.stderr).into_owned();
    assert_eq!(collected.end.outcome, Outcome::Exited { code: 0 }, "{script}: {problem}");
    text(&collected)
}

/// Returns the entries of the layers directory that are neither complete layers nor the empty layer.
fn half_made(lab: &Lab) -> Vec<String> {
    let entries = fs::read_dir(lab.data().join("layers")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "empty" && name.len() != 64).collect()
}

/// Returns an image with three layers: programs, files, and changes to these files.
fn sample() -> Image {
    let files = Layer::new()
        .directory("etc", 0o755)
        .file("etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/:/bin/sh\n")
        .file("srv/kept", 0o644, "kept")
        .file("srv/gone", 0o644, "gone")
        .file("srv/changed", 0o644, "old")
        .file("data/old", 0o644, "old")
        .file("secret", 0o4755, "x")
        .owned("var/www/page", 33, 33, "page");
    let changes = Layer::new()
        .file("srv/.wh.gone", 0o644, "")
        .file("srv/changed", 0o600, "new")
        .file("data/.wh..wh..opq", 0o644, "")
        .file("data/new", 0o644, "new")
        .symlink("srv/link", "/srv/kept")
        .link("srv/copy", "srv/kept");
    Image::new(vec![Layer::programs(), files, changes])
        .with("Env", serde_json::json!(["GREETING=hello there"]))
        .with("WorkingDir", "/srv".into())
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_image_becomes_a_template_that_runs() {
    on(&["runc"], async |lab| {
        let directory = tempfile::tempdir().unwrap();
        sample().layout(directory.path());
        let (template, kept) = import(lab, "sample", directory.path()).await.unwrap();
        assert_eq!((template.layers.len(), kept), (3, 0));
        assert_eq!(Store::new(lab.data()).load("sample").unwrap(), template);
        let sandbox = start(lab, &template).await.unwrap();
        let script = "echo $GREETING; pwd; cat kept copy link; ls /srv /data; id -un";
        let expected =
            "hello there\n/srv\nkeptkeptkept/data:\nnew\n\n/srv:\nchanged\ncopy\nkept\nlink\nsandbox\n";
        assert_eq!(said(&sandbox, &template, script).await, expected);
        let status = said(&sandbox, &template, "stat -c '%a %u %g' changed /secret /var/www/page /tmp").await;
        assert_eq!(status, "600 0 0\n755 0 0\n644 33 33\n1777 0 0\n");
        assert!(said(&sandbox, &template, "cat /etc/passwd").await.contains("sandbox:x:1000:1000"));
        assert_eq!(half_made(lab), Vec::<String>::new());
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_user_kernel_unpacks_what_hides_nothing_and_names_what_does() {
    on(&["runsc"], async |lab| {
        let layers = sample().layers;
        let directory = tempfile::tempdir().unwrap();
        Image::new(layers.into_iter().take(2).collect()).layout(directory.path());
        let (template, _) = import(lab, "plain", directory.path()).await.unwrap();
        let sandbox = start(lab, &template).await.unwrap();
        let script = "cat /srv/kept; stat -c '%a %u %g' /secret /var/www/page";
        assert_eq!(said(&sandbox, &template, script).await, "kept755 0 0\n644 33 33\n");
        let directory = tempfile::tempdir().unwrap();
        sample().layout(directory.path());
        let error = import(lab, "hiding", directory.path()).await.unwrap_err().to_api();
        assert_eq!(error.code, ErrorCode::Unsupported, "{error:?}");
        assert_eq!(half_made(lab), Vec::<String>::new());
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_same_layers_are_unpacked_once_however_they_come() {
    on(&["runc"], async |lab| {
        let directory = tempfile::tempdir().unwrap();
        sample().layout(directory.path());
        let (first, _) = import(lab, "first", directory.path()).await.unwrap();
        let files = tempfile::tempdir().unwrap();
        let (saved, packed) = (files.path().join("saved.tar"), files.path().join("layout.tar"));
        sample().saved(&saved);
        image::pack(directory.path(), &packed);
        for (name, file) in [("second", &saved), ("third", &packed)] {
            let (template, kept) = import(lab, name, file).await.unwrap();
            assert_eq!((&template.layers, kept), (&first.layers, 3), "{name}");
        }
        // Without its last layer, the image has a different top layer. This top layer is unpacked again,
        // because only a top layer gets the mount points and the user. The layer below is reused.
        let fewer = Image::new(sample().layers.into_iter().take(2).collect());
        let other = tempfile::tempdir().unwrap();
        fewer.layout(other.path());
        let (template, kept) = import(lab, "fewer", other.path()).await.unwrap();
        assert_eq!((template.layers.len(), kept), (2, 1));
        // After its last template is removed, a layer is removed too, once no sandbox can be using it.
        for name in ["first", "second", "third"] {
            Store::new(lab.data()).remove(name).unwrap();
        }
        node::remove_unused_layers(lab.data()).unwrap();
        let left = fs::read_dir(lab.data().join("layers")).unwrap().count();
        assert_eq!(left, 3, "two layers and the empty one");
        start(lab, &template).await.unwrap();
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_image_that_was_changed_is_refused_and_nothing_of_it_is_kept() {
    on(&["runc"], async |lab| {
        let changes: [(&str, Change); 3] = [
            ("the blob", |image| image.wrong_blob = true),
            ("the diff id", |image| image.wrong_diff_id = true),
            ("the archive", |image| image.layers.last_mut().unwrap().bytes.truncate(700)),
        ];
        for (label, change) in changes {
            let mut image = Image::new(vec![Layer::new().file("a", 0o644, &"x".repeat(4000))]);
            change(&mut image);
            let directory = tempfile::tempdir().unwrap();
            image.layout(directory.path());
            let error = import(lab, "changed", directory.path()).await.unwrap_err().to_api();
            assert_eq!(error.code, ErrorCode::InvalidRequest, "{label}: {error:?}");
            assert!(Store::new(lab.data()).list().unwrap().is_empty());
            let left = fs::read_dir(lab.data().join("layers")).unwrap().count();
            assert!(left <= 1, "{label}: only the empty one");
        }
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_refused_entry_is_named() {
    on(&["runc"], async |lab| {
        // The file is so large that the guest responds long before it could have read everything.
        let big = "x".repeat(8 << 20);
        let layer = Layer::new().file("../out", 0o644, "x").file("big", 0o644, &big);
        let directory = tempfile::tempdir().unwrap();
        Image::new(vec![layer]).layout(directory.path());
        let error = import(lab, "out", directory.path()).await.unwrap_err().to_api();
        assert!(error.message.contains("../out"), "{error:?}");
        assert_eq!(half_made(lab), Vec::<String>::new());
        let bomb = Layer::new().file("zeros", 0o644, &"\0".repeat(64 << 20));
        let directory = tempfile::tempdir().unwrap();
        Image::new(vec![bomb]).layout(directory.path());
        let error = import(lab, "bomb", directory.path()).await.unwrap_err().to_api();
        assert_eq!(error.code, ErrorCode::LimitExceeded, "{error:?}");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_image_of_another_tool_is_the_same_image() {
    on(&["runc"], async |lab| {
        let directory = tempfile::tempdir().unwrap();
        let (layout, saved) = (directory.path().join("layout"), directory.path().join("saved.tar"));
        sample().layout(&layout);
        let skopeo = |arguments: &[&str]| {
            let output = std::process::Command::new("skopeo").args(arguments).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let from = format!("oci:{}", layout.display());
        skopeo(&["copy", &from, &format!("docker-archive:{}:x:y", saved.display())]);
        let zstd = directory.path().join("zstd");
        skopeo(&[
            "copy",
            "--dest-compress-format=zstd",
            "--dest-compress",
            &from,
            &format!("oci:{}", zstd.display()),
        ]);
        let (first, _) = import(lab, "ours", &layout).await.unwrap();
        let (second, _) = import(lab, "theirs", &saved).await.unwrap();
        let other = Lab::new("runc");
        let (third, kept) = import(&other, "zstd", &zstd).await.unwrap();
        assert_eq!((&first.layers, &first.layers), (&second.layers, &third.layers));
        assert_eq!(kept, 0);
        let sandbox = start(&other, &third).await.unwrap();
        assert_eq!(said(&sandbox, &third, "cat /srv/kept").await, "kept");
        sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_that_unpacks_goes_with_the_command_that_was_killed() {
    on(&["runc"], async |lab| {
        let layers = lab.data().join("layers");
        let directory = tempfile::tempdir().unwrap();
        Image::new(vec![Layer::programs()]).layout(directory.path());
        // Drop the import at its first byte, as if its process were killed at that moment. Its sandbox keeps
        // running.
        let seen = tokio::sync::Notify::new();
        let builder = Builder::new(&lab.machine, Arc::clone(&lab.runtime));
        let watch = |progress: TemplateProgress<'_>| {
            if let TemplateProgress::Bytes(_) = progress {
                seen.notify_one();
            }
        };
        tokio::select! {
            made = builder.import("killed", directory.path(), &watch) => panic!("too fast: {made:?}"),
            () = seen.notified() => {}
        }
        assert_eq!(half_made(lab).len(), 1);
        node::remove_unused_layers(lab.data()).unwrap();
        assert_eq!(half_made(lab).len(), 1, "a sandbox may be writing to it");
        for listed in lab.runtime.list().await.unwrap() {
            lab.runtime.stop(&listed.id, std::time::Duration::ZERO).await.unwrap();
        }
        node::remove_unused_layers(lab.data()).unwrap();
        assert_eq!(half_made(lab), Vec::<String>::new());
        assert!(layers.join("empty").exists());
    });
}

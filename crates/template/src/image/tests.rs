//! Tests with valid and invalid images.

mod fuzz;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;

/// An OCI layout in a directory.
struct Layout {
    directory: TempDir,
}

impl Layout {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("blobs/sha256")).unwrap();
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&self, kind: &str, content: &[u8]) -> Value {
        let hash = layers::hexadecimal(&Sha256::digest(content));
        fs::write(self.path().join("blobs/sha256").join(&hash), content).unwrap();
        json!({ "mediaType": kind, "digest": format!("sha256:{hash}"), "size": content.len() })
    }

    fn manifest(&self, configuration: &Value, layers: &[&[u8]]) -> Value {
        let config =
            self.blob("application/vnd.oci.image.config.v1+json", configuration.to_string().as_bytes());
        let layers: Vec<Value> =
            layers.iter().map(|layer| self.blob("application/vnd.oci.image.layer.v1.tar", layer)).collect();
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
        self.blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        fs::write(self.path().join("index.json"), index.to_string()).unwrap();
    }

    fn read(&self) -> Result<Image, Error> {
        Image::read(&Package::open(self.path()).unwrap())
    }
}

fn configuration(layers: usize) -> Value {
    json!({
        "architecture": architecture(),
        "os": "linux",
        "config": { "Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/srv//app/", "User": "0", "Entrypoint": ["/x"] },
        "rootfs": { "type": "layers", "diff_ids": vec![format!("sha256:{}", "a".repeat(64)); layers] },
    })
}

fn code(result: Result<Image, Error>) -> api::ErrorCode {
    result.unwrap_err().to_api().code
}

#[test]
fn a_layout_is_read_and_its_wishes_are_kept() {
    let layout = Layout::new();
    layout.index(&[layout.manifest(&configuration(2), &[b"one", b"two"])]);
    let image = layout.read().unwrap();
    assert_eq!(image.layers.len(), 2);
    assert!(image.layers[0].blob.starts_with("blobs/sha256/") && image.layers[0].digest.is_some());
    assert_eq!(image.env["A"], "b=c");
    assert_eq!(image.cwd.as_deref(), Some("/srv/app"));
}

#[test]
fn the_image_of_this_machine_is_chosen() {
    let layout = Layout::new();
    let mut ours = layout.manifest(&configuration(1), &[b"one"]);
    ours["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    let other = json!({
        "digest": format!("sha256:{}", "b".repeat(64)), "size": 5, "mediaType": "x",
        "platform": { "architecture": "s390x", "os": "linux" },
    });
    let mut note = layout.manifest(&configuration(1), &[b"two"]);
    note["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    let inner = json!({ "manifests": [other.clone(), ours, note] });
    let inner = layout.blob("application/vnd.oci.image.index.v1+json", inner.to_string().as_bytes());
    layout.index(&[inner]);
    assert_eq!(layout.read().unwrap().layers.len(), 1);
    layout.index(&[other]);
    let error = layout.read().unwrap_err().to_api();
    assert!(error.message.contains("linux/s390x") && error.fix.contains("--platform"), "{error:?}");
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let layout = Layout::new();
    let mut foreign = configuration(1);
    foreign["architecture"] = json!("mips");
    layout.index(&[layout.manifest(&foreign, &[b"one"])]);
    assert!(layout.read().unwrap_err().to_api().message.contains("linux/mips"));
}

#[test]
fn images_that_do_not_add_up_are_refused() {
    let layout = Layout::new();
    for (layers, digests) in [(0, 0), (1, 2), (2, 1)] {
        layout.index(&[layout.manifest(&configuration(digests), &vec![&b"x"[..]; layers])]);
        assert_eq!(code(layout.read()), api::ErrorCode::InvalidRequest, "{layers} {digests}");
    }
    layout.index(&[layout.manifest(&configuration(65), &vec![&b"x"[..]; 65])]);
    assert_eq!(code(layout.read()), api::ErrorCode::LimitExceeded);
    layout.index(&[]);
    assert_eq!(code(layout.read()), api::ErrorCode::InvalidRequest);
    let two = [&b"one"[..], b"two"].map(|layer| layout.manifest(&configuration(1), &[layer]));
    layout.index(&two);
    assert!(layout.read().unwrap_err().to_api().message.contains("2 images"));
    fs::remove_file(layout.path().join("index.json")).unwrap();
    assert_eq!(code(layout.read()), api::ErrorCode::InvalidRequest);
}

#[test]
fn a_part_that_is_not_what_its_digest_says_is_refused() {
    let layout = Layout::new();
    let manifest = layout.manifest(&configuration(1), &[b"one"]);
    let hash = manifest["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let path = layout.path().join("blobs/sha256").join(hash);
    fs::write(&path, fs::read_to_string(&path).unwrap() + " ").unwrap();
    layout.index(&[manifest]);
    assert!(layout.read().unwrap_err().to_api().message.contains("does not match: expected"));
    for digest in ["sha256:../../../etc/passwd", "md5:0", "sha256:", &format!("sha512:{}", "a".repeat(64))] {
        layout.index(&[json!({ "digest": digest, "size": 1 })]);
        assert_eq!(code(layout.read()), api::ErrorCode::InvalidRequest, "{digest}");
    }
}

#[test]
fn an_index_inside_itself_is_refused() {
    // A real cycle is impossible: an index would have to contain its own digest. This test therefore nests
    // indexes too deeply.
    let layout = Layout::new();
    let mut inner = layout.manifest(&configuration(1), &[b"one"]);
    for _ in 0..DEPTH_MAX {
        let index = json!({ "manifests": [inner] });
        inner = layout.blob("application/vnd.oci.image.index.v1+json", index.to_string().as_bytes());
    }
    layout.index(&[inner]);
    assert_eq!(code(layout.read()), api::ErrorCode::LimitExceeded);
}

#[test]
fn wishes_that_no_program_could_have_are_refused() {
    let layout = Layout::new();
    for (key, value) in [
        ("Env", json!(["=x"])),
        ("Env", json!(["A B=x"])),
        ("Env", json!(["A=\u{0}"])),
        ("Env", json!(vec!["A=b"; 1025])),
        ("WorkingDir", json!("relative")),
        ("WorkingDir", json!("/proc/self/fd/8")),
        ("WorkingDir", json!("//proc/self/fd/8")),
        ("WorkingDir", json!("/a/../../x")),
        ("WorkingDir", json!(format!("/{}", "x".repeat(4096)))),
    ] {
        let mut configuration = configuration(1);
        configuration["config"][key] = value.clone();
        layout.index(&[layout.manifest(&configuration, &[b"one"])]);
        assert!(layout.read().is_err(), "{key} {value}");
    }
    let mut configuration = configuration(1);
    configuration["config"] = Value::Null;
    layout.index(&[layout.manifest(&configuration, &[b"one"])]);
    assert_eq!(layout.read().unwrap().cwd, None);
}

#[test]
fn a_saved_archive_is_read_in_its_old_and_its_new_form() {
    let directory = tempfile::tempdir().unwrap();
    let text = configuration(1).to_string();
    let hash = layers::hexadecimal(&Sha256::digest(&text));
    for (config, layer) in [
        (format!("{hash}.json"), "id/layer.tar".to_owned()),
        (format!("blobs/sha256/{hash}"), format!("blobs/sha256/{}", "c".repeat(64))),
    ] {
        for name in [&config, &layer] {
            fs::create_dir_all(directory.path().join(name).parent().unwrap()).unwrap();
        }
        fs::write(directory.path().join(&config), &text).unwrap();
        fs::write(directory.path().join(&layer), "x").unwrap();
        let manifest = json!([{ "Config": config, "RepoTags": ["x:latest"], "Layers": [layer] }]);
        fs::write(directory.path().join("manifest.json"), manifest.to_string()).unwrap();
        let image = Image::read(&Package::open(directory.path()).unwrap()).unwrap();
        assert_eq!(image.layers[0].digest.is_some(), layer.starts_with("blobs"));
    }
    fs::write(directory.path().join("manifest.json"), "[]").unwrap();
    assert!(Image::read(&Package::open(directory.path()).unwrap()).is_err());
}

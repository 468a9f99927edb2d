//! Images that the tests assemble by hand.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Programs that the tests' scripts use.
const PROGRAMS: [&str; 6] = ["/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/id", "/usr/bin/stat", "/bin/true"];

/// An image that can be written as an OCI layout or as an archive.
pub struct Image {
    pub layers: Vec<Layer>,
    pub wishes: Value,
    /// True if the content of one layer's archive must not match its digest.
    pub wrong_blob: bool,
    /// True if the diff IDs in the configuration must not match the layers.
    pub wrong_diff_id: bool,
}

/// The permissions and the owner of a file in a layer.
#[derive(Clone, Copy)]
pub struct Access {
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
}

impl Access {
    /// Returns these permissions for a file that belongs to root.
    pub fn of_root(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0 }
    }
}

/// The archive of a layer.
#[derive(Clone, Default)]
pub struct Layer {
    pub bytes: Vec<u8>,
}

impl Layer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a layer with a shell and a few programs from this machine, and the libraries that they need.
    pub fn programs() -> Self {
        static MADE: OnceLock<Layer> = OnceLock::new();
        MADE.get_or_init(Self::copied).clone()
    }

    fn copied() -> Self {
        let mut layer = Self::new();
        let mut copied: Vec<PathBuf> = Vec::new();
        for program in PROGRAMS {
            let output = Command::new("ldd").arg(program).output().unwrap();
            let listed = String::from_utf8(output.stdout).unwrap();
            let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
            for path in libraries.chain([program]).map(PathBuf::from) {
                if !copied.contains(&path) {
                    let name = path.to_str().unwrap().trim_start_matches('/');
                    layer = layer.entry(b'0', name, "", Access::of_root(0o755), &fs::read(&path).unwrap());
                    copied.push(path);
                }
            }
        }
        layer
    }

    pub fn directory(self, name: &str, mode: u32) -> Self {
        self.entry(b'5', name, "", Access::of_root(mode), b"")
    }

    pub fn file(self, name: &str, mode: u32, content: &str) -> Self {
        self.entry(b'0', name, "", Access::of_root(mode), content.as_bytes())
    }

    pub fn owned(self, name: &str, uid: u64, gid: u64, content: &str) -> Self {
        self.entry(b'0', name, "", Access { mode: 0o644, uid, gid }, content.as_bytes())
    }

    pub fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(b'2', name, target, Access::of_root(0o777), b"")
    }

    pub fn link(self, name: &str, target: &str) -> Self {
        self.entry(b'1', name, target, Access::of_root(0o644), b"")
    }

    pub fn entry(mut self, kind: u8, name: &str, target: &str, access: Access, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        // Set names as raw bytes, because the library refuses the names that a hostile image contains.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(access.mode);
        header.set_uid(access.uid);
        header.set_gid(access.gid);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// Returns the complete archive, with its end marker.
    fn archive(&self) -> Vec<u8> {
        [self.bytes.as_slice(), &[0; 1024]].concat()
    }
}

impl Image {
    pub fn new(layers: Vec<Layer>) -> Self {
        Self { layers, wishes: json!({}), wrong_blob: false, wrong_diff_id: false }
    }

    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.wishes[name] = value;
        self
    }

    /// Writes the image as an OCI layout in which every second layer is compressed.
    pub fn layout(&self, directory: &Path) {
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let put = |kind: &str, content: &[u8]| {
            let hash = hexadecimal(content);
            fs::write(blobs.join(&hash), content).unwrap();
            json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": format!("sha256:{hash}"),
                "size": content.len() })
        };
        let config = put("config.v1+json", self.configuration().to_string().as_bytes());
        let mut layers = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            layers.push(match number % 2 {
                0 => put("layer.v1.tar+gzip", &gzip(&layer.archive())),
                _ => put("layer.v1.tar", &layer.archive()),
            });
        }
        if self.wrong_blob {
            let name = layers[0]["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
            let mut content = fs::read(blobs.join(&name)).unwrap();
            let last = content.len() - 1;
            content[last] ^= 1;
            fs::write(blobs.join(name), content).unwrap();
        }
        let manifest = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config, "layers": layers });
        let manifest = put("manifest.v1+json", manifest.to_string().as_bytes());
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(directory.join("index.json"), index.to_string()).unwrap();
        fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    /// Writes the image as an archive in the legacy format of `docker save`.
    pub fn saved(&self, file: &Path) {
        let mut builder = tar::Builder::new(File::create(file).unwrap());
        let mut put = |name: &str, content: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, content).unwrap();
        };
        let configuration = self.configuration().to_string();
        let config = format!("{}.json", hexadecimal(configuration.as_bytes()));
        put(&config, configuration.as_bytes());
        let mut names = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            names.push(format!("{number}/layer.tar"));
            put(&names[number], &layer.archive());
        }
        let manifest = json!([{ "Config": config, "RepoTags": ["sample:latest"], "Layers": names }]);
        put("manifest.json", manifest.to_string().as_bytes());
        builder.finish().unwrap();
    }

    fn configuration(&self) -> Value {
        let architecture = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        };
        let digest = |layer: &Layer| match self.wrong_diff_id {
            true => format!("sha256:{}", "0".repeat(64)),
            false => format!("sha256:{}", hexadecimal(&layer.archive())),
        };
        let diff_ids: Vec<String> = self.layers.iter().map(digest).collect();
        json!({ "architecture": architecture, "os": "linux", "config": self.wishes,
            "rootfs": { "type": "layers", "diff_ids": diff_ids } })
    }
}

/// Writes a directory into a tar archive.
pub fn pack(directory: &Path, file: &Path) {
    let mut builder = tar::Builder::new(File::create(file).unwrap());
    builder.append_dir_all(".", directory).unwrap();
    builder.finish().unwrap();
}

fn hexadecimal(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compresses bytes. The last result is cached, because many images have the same first layer.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    static LAST: Mutex<(Vec<u8>, Vec<u8>)> = Mutex::new((Vec::new(), Vec::new()));
    let mut last = LAST.lock().unwrap();
    if last.0 != bytes {
        // Only the best level compresses zeros by a factor of a thousand. That level is too slow for all
        // other data.
        let zeros = bytes.ends_with(&[0; 4096]);
        let level = if zeros { flate2::Compression::best() } else { flate2::Compression::fast() };
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(bytes).unwrap();
        *last = (bytes.to_vec(), encoder.finish().unwrap());
    }
    last.1.clone()
}

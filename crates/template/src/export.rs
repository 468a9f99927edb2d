//! Export of a template as one file: an OCI layout in an archive, which Bellglass and other tools can import.
//!
//! A guest in a dedicated sandbox archives each layer, because the host never opens anything inside a layer.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guest_client::link::GuestRequest;
use guest_client::sandbox::Sandbox;
use host::error::Error;
use hyper::Method;
use runtime::engine::Engine;
use runtime::{Profile, Runtime as _, Spec};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::layers::{Layers, hexadecimal};
use crate::note::{LABEL, Note};
use crate::unpack::{LIMITS, Source, SourceMessage};
use crate::{Builder, ProgressSink, Store, Template, TemplateProgress, failed, unsound};

/// Number of bytes written between two checks of the free disk space.
const ROOM_EVERY_BYTES: u64 = 64 << 20;
const PACK_WITHIN: Duration = Duration::from_secs(60);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A blob with its digest and size.
struct PackedBlob {
    digest: String,
    size: u64,
}

/// A file to write, with its path for error messages.
struct OutputFile<'a> {
    file: File,
    path: &'a Path,
}

impl Builder {
    /// Exports a template to a file, which must not exist yet. Until the file is complete, its name ends with
    /// `.part`.
    ///
    /// # Errors
    /// The template does not exist, the file exists already, or there is too little free disk space.
    pub async fn export(&self, name: &str, file: &Path, watch: ProgressSink<'_>) -> Result<(), Error> {
        let layers = Layers::open(&self.data).await?;
        let template = Store::new(&self.data).load(name)?;
        if file.exists() {
            return Err(unsound(
                format!("{} already exists", file.display()),
                "Choose another file name, or remove the file.",
            ));
        }
        let part = PathBuf::from(format!("{}.part", file.display()));
        let made = File::create(&part).map_err(failed("create", &part))?;
        let output = OutputFile { file: made, path: &part };
        let written = self.write_image(&template, &layers, output, watch).await;
        if written.is_err() {
            // A failure to remove the file is ignored, because the original error is more useful.
            let _ = std::fs::remove_file(&part);
        }
        written.and_then(|()| std::fs::rename(&part, file).map_err(failed("create", file)))
    }

    /// Loads a template into an engine, unless the engine already has it.
    ///
    /// # Errors
    /// The template does not exist, there is too little free disk space, or the engine rejects the image.
    pub async fn load(
        &self,
        name: &str,
        engine: &Engine,
        watch: ProgressSink<'_>,
    ) -> Result<Template, Error> {
        let layers = Layers::open(&self.data).await?;
        let template = Store::new(&self.data).load(name)?;
        if engine.has_image(&template.image()).await? {
            return Ok(template);
        }
        // The file is unlinked at once, so that it cannot be left behind.
        let path = self.data.join(format!("engine/loading-{}", self.fresh_id()?));
        let mut options = File::options();
        let made =
            options.read(true).write(true).create_new(true).open(&path).map_err(failed("create", &path))?;
        std::fs::remove_file(&path).map_err(failed("remove", &path))?;
        let mut archive = made.try_clone().map_err(failed("create", &path))?;
        // The archive contains no image name. Otherwise, the engine would move that name from the image that
        // currently has it.
        let nameless = Template { name: String::new(), ..template.clone() };
        self.write_image(&nameless, &layers, OutputFile { file: made, path: &path }, watch).await?;
        io::Seek::rewind(&mut archive).map_err(failed("read", &path))?;
        let loaded = engine.load(archive).await?;
        engine.adopt(&loaded, &template.image(), &[crate::containerfile::named(name)]).await?;
        Ok(template)
    }

    async fn write_image(
        &self,
        template: &Template,
        layers: &Layers,
        output: OutputFile<'_>,
        watch: ProgressSink<'_>,
    ) -> Result<(), Error> {
        let OutputFile { file, path } = output;
        let mut archive = tar::Builder::new(file);
        let count = template.layers.len();
        let mut parts = Vec::new();
        for (index, key) in template.layers.iter().enumerate() {
            watch(TemplateProgress::Layer { number: index + 1, count, bytes: None });
            let (packed, digest) = self.pack(layers, key, watch).await?;
            parts.push(add(&mut archive, packed, digest).map_err(failed("write", path))?);
        }
        let layer_parts = parts.iter().map(|part| part.described(LAYER)).collect::<Vec<_>>();
        let config = serde_json::to_vec(&configuration(template, &parts)).map_err(io::Error::from);
        let config = document(&mut archive, &config.map_err(failed("write", path))?);
        let config = config.map_err(failed("write", path))?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.described(CONFIG),
            "layers": layer_parts,
        });
        let manifest =
            document(&mut archive, manifest.to_string().as_bytes()).map_err(failed("write", path))?;
        let annotations = match template.name.as_str() {
            "" => json!({}),
            name => json!({ "org.opencontainers.image.ref.name": name }),
        };
        let described = json!({
            "mediaType": MANIFEST,
            "digest": manifest.digest,
            "size": manifest.size,
            "annotations": annotations,
        });
        let index = json!({ "schemaVersion": 2, "manifests": [described] }).to_string();
        // The same manifest in the format of `docker save`. Older engines read only this format.
        let layer_names: Vec<String> = parts.iter().map(|part| blob(&part.digest)).collect();
        let saved = json!([{ "Config": blob(&config.digest), "RepoTags": null, "Layers": layer_names }]);
        let written = named(&mut archive, "index.json", index.as_bytes())
            .and_then(|()| named(&mut archive, "manifest.json", saved.to_string().as_bytes()))
            .and_then(|()| named(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#))
            .and_then(|()| archive.into_inner())
            .and_then(|file| file.sync_all());
        written.map_err(failed("write", path))
    }

    /// Writes a layer as an archive to an unlinked file, and returns the file with its digest.
    async fn pack(
        &self,
        layers: &Layers,
        key: &str,
        watch: ProgressSink<'_>,
    ) -> Result<(File, String), Error> {
        let id = self.fresh_id()?;
        let making = layers.making(&id)?;
        let spec = Spec {
            layers: vec![layers.empty()?],
            image: String::new(),
            limits: LIMITS,
            profile: Profile::Unpack { done: vec![layers.tree(key)], target: making.tree() },
            guest: self.guest.clone(),
        };
        let sandbox = Sandbox::start(Arc::clone(&self.runtime), id, &spec).await?;
        let packed = async {
            let ask = GuestRequest { method: Method::GET, path: "/layer?of=0".into(), body: Bytes::new() };
            let body = sandbox.link().ask_once(&ask, None, PACK_WITHIN).await?.into_body();
            // No limit is needed: the size of a stored layer was limited when the layer was created.
            collect(Source::of_guest(body, u64::MAX), &making.path().join("layer.tar"), watch).await
        }
        .await;
        sandbox.stop(Duration::ZERO).await?;
        // The open descriptor keeps the file accessible after it is unlinked.
        making.discard()?;
        packed
    }
}

impl PackedBlob {
    fn described(&self, kind: &str) -> serde_json::Value {
        json!({ "mediaType": kind, "digest": self.digest, "size": self.size })
    }
}

async fn collect(mut source: Source, path: &Path, watch: ProgressSink<'_>) -> Result<(File, String), Error> {
    let mut options = File::options();
    let mut file =
        options.read(true).write(true).create_new(true).open(path).map_err(failed("write", path))?;
    let mut written = 0;
    loop {
        match source.pieces.recv().await {
            Some(SourceMessage::Bytes(bytes)) => {
                let next = written + bytes.len() as u64;
                if written / ROOM_EVERY_BYTES != next / ROOM_EVERY_BYTES {
                    crate::check_room(path, ROOM_EVERY_BYTES)?;
                }
                file.write_all(&bytes).map_err(failed("write", path))?;
                written = next;
                watch(TemplateProgress::Bytes(written));
            }
            Some(SourceMessage::Says(_)) => {}
            Some(SourceMessage::End(digest)) => return Ok((file, digest)),
            Some(SourceMessage::Failed(error)) => return Err(error),
            None => return Err(Error::Protocol("a layer ended early while it was being packed".into())),
        }
    }
}

fn configuration(template: &Template, parts: &[PackedBlob]) -> serde_json::Value {
    let env: Vec<String> = template.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let note = serde_json::to_string(&Note::of(template)).unwrap_or_default();
    let digests: Vec<&str> = parts.iter().map(|part| part.digest.as_str()).collect();
    json!({
        "architecture": crate::image::architecture(),
        "os": "linux",
        "config": {
            "Env": env,
            "WorkingDir": template.cwd.as_deref().unwrap_or(""),
            "User": api::limits::UID.to_string(),
            "Labels": { LABEL: note },
        },
        "rootfs": { "type": "layers", "diff_ids": digests },
    })
}

fn add(archive: &mut tar::Builder<File>, mut packed: File, digest: String) -> io::Result<PackedBlob> {
    io::Seek::rewind(&mut packed)?;
    let size = packed.metadata()?.len();
    let mut header = header(size);
    archive.append_data(&mut header, blob(&digest), packed.take(size))?;
    Ok(PackedBlob { digest, size })
}

fn document(archive: &mut tar::Builder<File>, text: &[u8]) -> io::Result<PackedBlob> {
    let digest = format!("sha256:{}", hexadecimal(&Sha256::digest(text)));
    named(archive, &blob(&digest), text)?;
    Ok(PackedBlob { digest, size: text.len() as u64 })
}

fn named(archive: &mut tar::Builder<File>, name: &str, text: &[u8]) -> io::Result<()> {
    archive.append_data(&mut header(text.len() as u64), name, text)
}

fn blob(digest: &str) -> String {
    format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(size);
    header
}

#[cfg(test)]
mod tests {
    use api::limits::WantedLimits;

    use super::*;

    #[test]
    fn what_only_a_template_has_travels_with_it() {
        let template = Template {
            imports: vec!["numpy".into()],
            ready: Some(vec!["true".into()]),
            limits: WantedLimits { pids: Some(7), ..WantedLimits::default() },
            ..Template::of("a")
        };
        let text = serde_json::to_string(&Note::of(&template)).unwrap();
        let note: Note = serde_json::from_str(&text).unwrap();
        assert_eq!(note.written_on(Template { built_at: template.built_at, ..Template::of("a") }), template);
    }
}

//! Pulls images from registries. An image is stored in a directory as an OCI layout, and then imported like
//! an exported image.
//!
//! All requests to registries pass through the broker that serves sandboxes, under a policy that allows only
//! public addresses. A registry, a redirect target or an authentication server is refused if its name
//! resolves to a private address. A registry at a private address is contacted only if the operator names it,
//! and then only its host is exempt.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::layer::LAYERS_MAX;
use api::policy::Policy;
use egress::{Broker, BrokerReport, Decision, Party};
use futures_util::StreamExt as _;
use host::error::Error;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::manifest::{OciDescriptor, OciImageManifest};
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::layers::{self, Layers, hexadecimal};
use crate::package::Package;
use crate::{Builder, ProgressSink, Template, TemplateProgress, failed, unsound};

/// Maximum number of bytes to transfer before the layers: indexes, the manifest, the configuration and
/// authentication.
const WORDS_BYTES_MAX: u64 = 16 << 20;
const CONFIG_BYTES_MAX: i64 = 4 << 20;
/// Maximum total size of an image's layers in bytes, as transferred.
const IMAGE_BYTES_MAX: u64 = 16 << 30;
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// Maximum time to wait for the next bytes of a response.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// Timeout for the whole image.
const PULL_WITHIN: Duration = Duration::from_secs(40 * 60);

/// A connection to a registry.
struct RegistryConnection {
    client: Client,
    reference: Reference,
    policy: watch::Sender<Policy>,
    /// The reason for the broker's last refusal.
    refused: Arc<Mutex<Option<String>>>,
    door: tokio::task::JoinHandle<()>,
}

/// The number of a blob, counted from 1, and the total number of blobs.
#[derive(Clone, Copy)]
struct BlobPosition {
    number: usize,
    count: usize,
}

impl Drop for RegistryConnection {
    fn drop(&mut self) {
        self.door.abort();
    }
}

impl Builder {
    /// Pulls an image and unpacks its layers. The returned template has a placeholder name and is not saved.
    pub(super) async fn pull(
        &self,
        text: &str,
        own: Option<&str>,
        watch: ProgressSink<'_>,
    ) -> Result<Template, Error> {
        let layers = Layers::open(&self.data).await?;
        let way = RegistryConnection::open(text, own, &self.broker).await?;
        // The directory is named like an incomplete layer, so it is removed even if this process dies.
        let id = host::machine::fresh_id()?;
        let making = layers.making(&id)?;
        let directory = making.tree();
        let pulled = tokio::time::timeout(PULL_WITHIN, way.fetch(&layers, &directory, watch)).await;
        let pulled = pulled.unwrap_or(Err(Error::Deadline { what: "pulling an image", after: PULL_WITHIN }));
        let template = match pulled {
            Ok(()) => self.import_package("pulled", &Package::open(&directory)?, &layers, watch).await,
            Err(error) => Err(error),
        };
        making.discard()?;
        template
    }
}

impl RegistryConnection {
    async fn open(text: &str, own: Option<&str>, broker: &Arc<Broker>) -> Result<Self, Error> {
        let reference: Reference = text.parse().map_err(|error| {
            unsound(
                format!("{text:?} is not an image reference: {error}"),
                "Write the reference as HOST/NAME:TAG or HOST/NAME@sha256:….",
            )
        })?;
        let refused = Arc::<Mutex<Option<String>>>::default();
        let heard = Arc::clone(&refused);
        let (policy, allowed) = watch::channel(Policy {
            open: true,
            bytes_per_second: 1 << 30,
            bytes_max: WORDS_BYTES_MAX,
            ..Policy::default()
        });
        let tell = move |told: BrokerReport| {
            if let BrokerReport::Decided(Decision { verdict: Err(why), .. }) = told {
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            }
        };
        let party = Arc::new(Party::new(allowed, Box::new(tell)));
        let failed =
            |source| Error::System { act: "open a port for the connection to a registry".into(), source };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let proxy = format!("http://{}", listener.local_addr().map_err(failed)?);
        let door = tokio::spawn(serve(listener, Arc::clone(broker), party));
        egress::gate::upstream::use_ring();
        let (protocol, direct) = own_registry(own, reference.resolve_registry())?;
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_WITHIN),
            read_timeout: Some(READ_WITHIN),
            user_agent: "bellglass",
            http_proxy: Some(proxy.clone()),
            https_proxy: Some(proxy),
            no_proxy: direct,
            max_concurrent_download: 1,
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| {
            unsound(format!("cannot connect to registries: {error}"), "Fix this machine's certificates.")
        })?;
        Ok(Self { client, reference, policy, refused, door })
    }

    /// Downloads the image into a directory. Layers that already exist on this machine are not downloaded.
    async fn fetch(&self, layers: &Layers, directory: &Path, watch: ProgressSink<'_>) -> Result<(), Error> {
        watch(TemplateProgress::Says(&format!("contacting {}", self.reference.resolve_registry())));
        let auth = RegistryAuth::Anonymous;
        self.client
            .auth(&self.reference, &auth, RegistryOperation::Pull)
            .await
            .map_err(|error| self.failed(&error))?;
        let (manifest, _) = self
            .client
            .pull_image_manifest(&self.reference, &auth)
            .await
            .map_err(|error| self.failed(&error))?;
        let bytes = check(&manifest)?;
        let blobs = directory.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).map_err(failed("create directory", &blobs))?;
        self.blob(&manifest.config, &blobs, BlobPosition { number: 1, count: 1 }, watch).await?;
        self.policy
            .send_modify(|policy| policy.bytes_max = bytes.saturating_add(bytes / 16 + 2 * WORDS_BYTES_MAX));
        let known = known(layers, &blobs, &manifest)?;
        let count = manifest.layers.len();
        for (index, layer) in manifest.layers.iter().enumerate() {
            if known.get(index).copied().unwrap_or(false) {
                // The import reads only the size of a layer that already exists, so a sparse file suffices.
                let path = blobs.join(hash(layer)?);
                let file = std::fs::File::create(&path).map_err(failed("write", &path))?;
                file.set_len(size(layer)).map_err(failed("write", &path))?;
            } else {
                self.blob(layer, &blobs, BlobPosition { number: index + 1, count }, watch).await?;
            }
        }
        lay_out(directory, &manifest)
    }

    /// Downloads a blob, and refuses more bytes than announced. The import verifies the blob's digest.
    async fn blob(
        &self,
        blob: &OciDescriptor,
        blobs: &Path,
        position: BlobPosition,
        watch: ProgressSink<'_>,
    ) -> Result<(), Error> {
        let BlobPosition { number, count } = position;
        let path = blobs.join(hash(blob)?);
        crate::check_room(blobs, size(blob))?;
        watch(TemplateProgress::Layer { number, count, bytes: Some(size(blob)) });
        let mut stream =
            self.client.pull_blob_stream(&self.reference, blob).await.map_err(|error| self.failed(&error))?;
        let mut file = std::fs::File::create(&path).map_err(failed("write", &path))?;
        let mut taken = 0;
        while let Some(bytes) = stream.stream.next().await {
            let bytes = bytes.map_err(|error| self.failed(&error))?;
            taken += bytes.len() as u64;
            if taken > size(blob) {
                return Err(crate::package::mismatch(&blob.digest, &format!("{} bytes", size(blob)), "more"));
            }
            file.write_all(&bytes).map_err(failed("write", &path))?;
            watch(TemplateProgress::Bytes(taken));
        }
        Ok(())
    }

    fn failed(&self, error: &dyn std::error::Error) -> Error {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let why = refused.unwrap_or_else(|| host::error::chain(error));
        let why: String = why.chars().filter(|c| !c.is_control()).take(400).collect();
        unsound(
            format!("cannot pull {}: {why}", self.reference),
            "Check the reference. A registry at a private address is contacted only if --registry names it.",
        )
    }
}

/// Serves the registry client as its local proxy.
async fn serve(listener: TcpListener, broker: Arc<Broker>, party: Arc<Party>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(Arc::clone(&broker).serve(stream, Arc::clone(&party)));
    }
}

/// Returns the protocol for the operator's own registry, and the registry's host. Connections to this host
/// bypass the broker. Fails if the image is in a different registry.
fn own_registry(own: Option<&str>, wanted: &str) -> Result<(ClientProtocol, Option<String>), Error> {
    let Some(own) = own else { return Ok((ClientProtocol::Https, None)) };
    let (plain, host) = match own.split_once("://") {
        Some(("http", host)) => (true, host),
        Some(("https", host)) => (false, host),
        _ => {
            return Err(unsound(
                format!("{own:?} is not a registry URL"),
                "Write http://HOST:PORT or https://HOST:PORT.",
            ));
        }
    };
    let host = host.trim_end_matches('/');
    if host != wanted {
        return Err(unsound(
            format!("the image is in registry {wanted}, but --registry names {host:?}"),
            "Use the registry of the image, with its port, or omit --registry.",
        ));
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).to_owned();
    api::host::Host::parse(&name).map_err(Error::Request)?;
    let protocol =
        if plain { ClientProtocol::HttpsExcept(vec![host.to_owned()]) } else { ClientProtocol::Https };
    Ok((protocol, Some(name)))
}

/// Checks that an image can be imported, before it is downloaded. Returns the image's size in bytes.
fn check(manifest: &OciImageManifest) -> Result<u64, Error> {
    if manifest.layers.is_empty() || manifest.layers.len() > LAYERS_MAX {
        let found = manifest.layers.len() as u64;
        return Err(Error::Request(api::limits::exceeded("the number of layers", found, LAYERS_MAX as u64)));
    }
    if manifest.config.size > CONFIG_BYTES_MAX {
        return Err(unsound("the configuration of the image is too large", "Pull another image."));
    }
    let all = manifest.layers.iter().chain([&manifest.config]);
    if all.clone().any(|blob| blob.size < 0) {
        return Err(unsound("a part of the image has a negative size", "Pull another image."));
    }
    let bytes = all.fold(0_u64, |sum, blob| sum.saturating_add(size(blob)));
    if bytes > IMAGE_BYTES_MAX {
        return Err(Error::Request(api::limits::exceeded(
            "the size of the image in bytes",
            bytes,
            IMAGE_BYTES_MAX,
        )));
    }
    Ok(bytes)
}

/// Returns, for each layer, true if it already exists on this machine. Layers that the configuration does not
/// describe count as missing.
fn known(layers: &Layers, blobs: &Path, manifest: &OciImageManifest) -> Result<Vec<bool>, Error> {
    let path = blobs.join(hash(&manifest.config)?);
    let text = std::fs::read(&path).map_err(failed("read", &path))?;
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let listed = config.pointer("/rootfs/diff_ids").and_then(serde_json::Value::as_array);
    let ids: Vec<String> =
        listed.into_iter().flatten().filter_map(|id| id.as_str().map(str::to_owned)).collect();
    (1..=ids.len())
        .map(|count| {
            let below = ids.get(..count).unwrap_or_default();
            let key = layers::key(below, count == ids.len());
            layers.has(&key, below.last().map_or("", String::as_str))
        })
        .collect()
}

/// Writes the index and the manifest, which turn a directory of blobs into an OCI layout.
fn lay_out(directory: &Path, manifest: &OciImageManifest) -> Result<(), Error> {
    let wrong = |error: serde_json::Error| failed("write", directory)(error.into());
    let text = serde_json::to_vec(manifest).map_err(wrong)?;
    let digest = hexadecimal(&Sha256::digest(&text));
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{digest}"),
            "size": text.len(),
        }],
    });
    layers::write(&directory.join("blobs/sha256").join(digest), &text)?;
    layers::write(&directory.join("index.json"), &serde_json::to_vec(&index).map_err(wrong)?)
}

/// Returns the file name of a blob.
fn hash(blob: &OciDescriptor) -> Result<&str, Error> {
    let hash = blob.digest.strip_prefix("sha256:").filter(|hash| layers::is_key(hash));
    hash.ok_or_else(|| {
        unsound("a part of the image is not identified by its SHA-256 digest", "Pull another image.")
    })
}

fn size(blob: &OciDescriptor) -> u64 {
    u64::try_from(blob.size).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(size: i64) -> OciDescriptor {
        OciDescriptor { digest: format!("sha256:{}", "a".repeat(64)), size, ..OciDescriptor::default() }
    }

    #[test]
    fn an_image_that_could_not_be_imported_is_refused_before_it_comes() {
        // Covers attacks U-10 and U-11.
        let image =
            |layers: Vec<OciDescriptor>| OciImageManifest { layers, config: blob(2), ..Default::default() };
        assert_eq!(check(&image(vec![blob(3), blob(4)])).unwrap(), 9);
        for bad in [
            image(vec![]),
            image(vec![blob(1); LAYERS_MAX + 1]),
            image(vec![blob(-1)]),
            image(vec![blob(i64::MAX), blob(i64::MAX)]),
            OciImageManifest { layers: vec![blob(1)], config: blob(1 << 30), ..Default::default() },
        ] {
            assert!(check(&bad).is_err());
        }
        for digest in ["", "sha256:../../../etc/passwd", "sha512:aa", "sha256:A"] {
            assert!(hash(&OciDescriptor { digest: digest.into(), ..blob(1) }).is_err(), "{digest}");
        }
    }

    #[test]
    fn an_own_registry_is_named_with_how_it_is_asked() {
        let own = |named: Option<&str>| own_registry(named, "registry.lan:5000");
        assert_eq!(own(Some("http://registry.lan:5000")).unwrap().1.as_deref(), Some("registry.lan"));
        for bad in [
            "registry.lan:5000",
            "http://registry.lan",
            "http://other.lan:5000",
            "http://*",
            "http://10.0.0.0/8",
        ] {
            assert!(own(Some(bad)).is_err(), "{bad}");
        }
        assert_eq!(own(None).unwrap().1, None);
    }
}

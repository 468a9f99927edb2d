//! A wrapper around a real runtime that can close the runtime's connections at any moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::SandboxId;
use api::posture::Posture;
use runtime::{Error, Exit, Inspect, Listed, Properties, Runtime, Spec, Usage};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// Runtime that relays every connection through a pair of sockets, so that it can close the connection.
pub struct Cutter {
    inner: Arc<dyn Runtime>,
    relays: Mutex<Vec<JoinHandle<()>>>,
    carried: Arc<AtomicU64>,
}

impl Cutter {
    /// Creates a wrapper around this runtime.
    pub fn new(inner: Arc<dyn Runtime>) -> Self {
        Self { inner, relays: Mutex::default(), carried: Arc::default() }
    }

    /// Closes all current connections.
    pub fn cut(&self) {
        for relay in self.relays.lock().unwrap().drain(..) {
            relay.abort();
        }
    }

    /// Returns the number of connections opened so far.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Runtime for Cutter {
    fn properties(&self) -> Properties {
        self.inner.properties()
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        self.inner.start(id, spec).await
    }
    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error> {
        let mut guest = self.inner.connect(id, within).await?;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let relay = tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut guest, &mut theirs).await;
        });
        self.relays.lock().unwrap().push(relay);
        self.carried.fetch_add(1, Ordering::Relaxed);
        Ok(ours)
    }
    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error> {
        self.inner.wait(id).await
    }
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        self.inner.stop(id, grace).await
    }
    async fn list(&self) -> Result<Vec<Listed>, Error> {
        self.inner.list().await
    }
}

#[async_trait::async_trait]
impl Inspect for Cutter {
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        self.inner.usage(id).await
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        self.inner.posture(id).await
    }
}

//! Unpacks one layer, which is streamed into a dedicated sandbox.
//!
//! ```text
//! thread: read, hash ──pieces──▶ body of PUT /layer ──▶ guest unpacks ──▶ report
//! ```
//!
//! The last piece confirms that the source was read completely and that its digest is correct. Without it,
//! the request body is aborted, and the sandbox is removed with everything that the guest has unpacked so
//! far.

use std::fmt::Display;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::layer::{Compression, LayerReport};
use api::limits::Limits;
use bytes::Bytes;
use guest_client::link::GuestRequest;
use guest_client::sandbox::Sandbox;
use host::error::Error;
use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::Body;
use runtime::{Profile, Runtime, Spec};
use streamed::Feed;
use tokio::sync::mpsc;

use crate::package::{self, Blob};
use crate::{ProgressSink, TemplateProgress, Unpacked, failed, layers};

/// Maximum number of pieces waiting to be sent, and maximum size of a piece in bytes.
const PIECES_WAITING: usize = 4;
const PIECE_BYTES: usize = 256 * 1024;
/// Maximum number of pieces queued in the connection.
const FRAMES_WAITING: usize = 2;
/// Timeout for one layer, from its first byte to the guest's report. A slow disk, or a build from packages,
/// needs much of this time.
const LAYER_WITHIN: Duration = Duration::from_secs(40 * 60);
/// Limits of the sandbox. Only the guest runs in it, with two threads. The memory is mostly for data that is
/// not yet written to disk. The sandbox expires soon after `LAYER_WITHIN`, even if no process is left to stop
/// it.
pub(super) const LIMITS: Limits =
    Limits { memory_bytes: 256 << 20, cpu_millis: 2000, ttl_ms: 45 * 60 * 1000, ..Limits::MIN };

/// A request to unpack one layer.
pub(super) struct Unpack {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) id: SandboxId,
    /// The directory that becomes the root of the sandbox.
    pub(super) empty: PathBuf,
    pub(super) guest: PathBuf,
    /// The directory to fill.
    pub(super) target: PathBuf,
    /// The directories of the layers below, lowest first.
    pub(super) done: Vec<PathBuf>,
    /// True if the layer is the topmost layer of its image.
    pub(super) top: bool,
}

/// A failure to unpack a layer. `stopped` is true if the sandbox is gone.
pub(super) struct UnpackFailure {
    pub(super) cause: Error,
    pub(super) stopped: bool,
}

/// The source of a layer's bytes.
pub(super) struct Source {
    pub(super) compression: Compression,
    pub(super) pieces: mpsc::Receiver<SourceMessage>,
    /// The program that produces the bytes. Dropping it stops the program.
    pub(super) _program: Option<Box<dyn Send>>,
}

/// A message from the thread that reads a source.
pub(super) enum SourceMessage {
    /// A chunk of the source's bytes.
    Bytes(Bytes),
    /// A message to show to the user.
    Says(String),
    /// The end of the source, with the digest of all bytes.
    End(String),
    /// The source failed. No further messages follow.
    Failed(Error),
}

impl Source {
    /// Reads a blob of an image. If a digest is given, the blob must match it.
    pub(super) fn blob(blob: Blob, digest: Option<String>) -> Result<Self, Error> {
        let compression = Compression::sniff(&blob.first()?);
        let (sender, pieces) = mpsc::channel(PIECES_WAITING);
        tokio::task::spawn_blocking(move || {
            let last = match pass_on(blob, &sender) {
                Err(error) => SourceMessage::Failed(failed("read", "the image".as_ref())(error)),
                Ok(found) => match digest {
                    Some(digest) if digest != found => {
                        SourceMessage::Failed(package::mismatch("layer", &digest, &found))
                    }
                    _ => SourceMessage::End(found),
                },
            };
            let _ = sender.blocking_send(last);
        });
        Ok(Self { compression, pieces, _program: None })
    }

    /// Reads an archive of at most `bytes_max` bytes, which a guest produces while it is read.
    pub(super) fn of_guest<B>(body: B, bytes_max: u64) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Display + Send,
    {
        let (sender, pieces) = mpsc::channel(PIECES_WAITING);
        tokio::spawn(async move {
            let mut body = std::pin::pin!(body);
            let (mut hasher, mut left) = (layers::Hashing::default(), bytes_max);
            let last = loop {
                match body.frame().await {
                    None => break SourceMessage::End(hasher.finish()),
                    Some(Err(error)) => {
                        break SourceMessage::Failed(Error::Protocol(format!(
                            "a layer ended early: {error}"
                        )));
                    }
                    Some(Ok(frame)) => {
                        let Ok(bytes) = frame.into_data() else { continue };
                        match left.checked_sub(bytes.len() as u64) {
                            Some(less) => left = less,
                            None => break SourceMessage::Failed(too_large(bytes_max)),
                        }
                        hasher.take(&bytes);
                        if sender.send(SourceMessage::Bytes(bytes)).await.is_err() {
                            return;
                        }
                    }
                }
            };
            let _ = sender.send(last).await;
        });
        Self { compression: Compression::None, pieces, _program: None }
    }

    /// Reads an archive that `make` writes in a separate thread.
    pub(super) fn made(make: impl FnOnce(&mut dyn io::Write) -> Result<(), Error> + Send + 'static) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES_WAITING);
        tokio::task::spawn_blocking(move || {
            let mut outlet = SourceWriter { sender, now: Vec::new(), hasher: layers::Hashing::default() };
            let made = make(&mut outlet);
            let last = match made.and_then(|()| outlet.flush().map_err(failed("pack", "an archive".as_ref())))
            {
                Ok(()) => SourceMessage::End(outlet.hasher.finish()),
                Err(error) => SourceMessage::Failed(error),
            };
            let _ = outlet.sender.blocking_send(last);
        });
        Self { compression: Compression::None, pieces, _program: None }
    }
}

/// Writer that hashes the written bytes and forwards them as pieces.
struct SourceWriter {
    sender: mpsc::Sender<SourceMessage>,
    now: Vec<u8>,
    hasher: layers::Hashing,
}

impl io::Write for SourceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.now.extend_from_slice(bytes);
        if self.now.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.take(&self.now);
        let piece = SourceMessage::Bytes(std::mem::take(&mut self.now).into());
        self.sender.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Unpack {
    /// Unpacks the layer. Always stops the sandbox, even if unpacking fails.
    pub(super) async fn run(
        self,
        source: Source,
        watch: ProgressSink<'_>,
    ) -> Result<Unpacked, UnpackFailure> {
        let spec = Spec {
            layers: vec![self.empty.clone()],
            image: String::new(),
            limits: LIMITS,
            profile: Profile::Unpack { done: self.done.clone(), target: self.target.clone() },
            guest: self.guest.clone(),
        };
        let unpacked = match Sandbox::start(Arc::clone(&self.runtime), self.id.clone(), &spec).await {
            Err(error) => Err(error),
            Ok(sandbox) => {
                let unpacked = self.stream(&sandbox, source, watch).await;
                sandbox.stop(Duration::ZERO).await.and(unpacked)
            }
        };
        match unpacked {
            Ok(unpacked) => Ok(unpacked),
            Err(cause) => {
                let left = self.runtime.list().await;
                let stopped = left.is_ok_and(|left| left.iter().all(|listed| listed.id != self.id));
                Err(UnpackFailure { cause, stopped })
            }
        }
    }

    async fn stream(
        &self,
        sandbox: &Sandbox,
        source: Source,
        watch: ProgressSink<'_>,
    ) -> Result<Unpacked, Error> {
        let path = format!(
            "/layer?compression={}&top={}&done={}",
            source.compression.name(),
            u8::from(self.top),
            self.done.len()
        );
        let ask = GuestRequest { method: Method::PUT, path, body: Bytes::new() };
        let (sender, body) = streamed::body(FRAMES_WAITING);
        let asking = sandbox.link().stream::<LayerReport>(&ask, body, LAYER_WITHIN);
        let feeding = feed(source.pieces, sender, watch);
        tokio::pin!(asking, feeding);
        // A guest that rejects a layer responds before it has read the whole layer.
        let digest = tokio::select! {
            biased;
            fed = &mut feeding => fed?,
            report = &mut asking => {
                report?;
                return Err(Error::Protocol("the guest reported a layer before its last byte was sent".into()));
            }
        };
        match digest {
            Some(digest) => Ok(Unpacked { report: asking.await?, digest }),
            None => {
                asking.await?;
                Err(Error::Protocol("the guest reported a layer that it did not read to the end".into()))
            }
        }
    }
}

/// Returns the error for a step's output that is larger than the step's disk.
fn too_large(bytes_max: u64) -> Error {
    Error::Request(api::Error {
        fix: "Write less data in one step. Sparse files count with their full size.".into(),
        ..api::limits::exceeded(
            "the size of a step's output in bytes",
            bytes_max.saturating_add(1),
            bytes_max,
        )
    })
}

/// Hashes and forwards all bytes of `reader`. Returns their digest, or an error if the receiver is gone.
pub(super) fn pass_on(mut reader: impl Read, sender: &mpsc::Sender<SourceMessage>) -> io::Result<String> {
    let mut hasher = layers::Hashing::default();
    loop {
        let mut bytes = Vec::with_capacity(PIECE_BYTES);
        reader.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(hasher.finish());
        }
        hasher.take(&bytes);
        if sender.blocking_send(SourceMessage::Bytes(bytes.into())).is_err() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
}

/// Forwards pieces to the connection. Returns the digest of all bytes, or `None` if the guest stopped
/// reading.
async fn feed(
    mut pieces: mpsc::Receiver<SourceMessage>,
    sender: Feed,
    watch: ProgressSink<'_>,
) -> Result<Option<String>, Error> {
    let mut sent = 0;
    loop {
        match pieces.recv().await {
            Some(SourceMessage::Bytes(bytes)) => {
                sent += bytes.len() as u64;
                if sender.send(bytes).await.is_err() {
                    return Ok(None);
                }
                watch(TemplateProgress::Bytes(sent));
            }
            Some(SourceMessage::Says(text)) => watch(TemplateProgress::Says(&text)),
            Some(SourceMessage::End(digest)) => return Ok(Some(digest)),
            Some(SourceMessage::Failed(error)) => {
                sender.abort(io::ErrorKind::InvalidData.into());
                return Err(error);
            }
            None => {
                sender.abort(io::ErrorKind::UnexpectedEof.into());
                return Err(failed("read", "the layer".as_ref())(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    #[tokio::test]
    async fn a_layer_is_no_larger_than_the_disk_it_was_made_on() {
        // Covers attack U-20.
        for (bytes, fits) in [(1000, true), (1001, false)] {
            let mut source = Source::of_guest(Full::new(Bytes::from(vec![0; bytes])), 1000);
            let mut ended = false;
            while let Some(piece) = source.pieces.recv().await {
                match piece {
                    SourceMessage::End(_) => ended = true,
                    SourceMessage::Failed(error) => {
                        let error = error.to_api();
                        assert_eq!(error.code, api::ErrorCode::LimitExceeded, "{error:?}");
                    }
                    SourceMessage::Bytes(_) | SourceMessage::Says(_) => {}
                }
            }
            assert_eq!(ended, fits, "{bytes}");
        }
    }
}

//! Unpacks one layer of an image into `/layers/target`, in a sandbox that exists only for this purpose. Also
//! packs layers.
//!
//! | module | holds |
//! |---|---|
//! | [`source`] | the archive's bytes as they arrive: decompressed, metered and hashed |
//! | [`name`] | validated names of entries, and the names reserved for the sandbox |
//! | [`entry`] | one entry, assembled from its headers; ambiguous headers are refused |
//! | [`merged`] | path lookup across this layer and the layers below it |
//! | [`tree`] | creating and replacing files in this layer |
//! | [`apply`] | the rules for each kind of entry |
//! | [`pack`] | the reverse operation: packing a layer as an archive |
//! | [`top`] | additions to the last layer of an image: mount points, the user, host names |
//! | [`refusal`] | the errors of all these modules |
//!
//! ```text
//! body ──chunks──▶ thread: decompress ─▶ meter, hash ─▶ entries ─▶ rules ─▶ files      ──▶ report or refusal
//! ```
//!
//! [`crate::files`] uses the same archive reader.
//!
//! The archive is untrusted. The `tar` crate splits it into headers and contents. The modules here walk every
//! path themselves, one component at a time, from a descriptor of the layer's root, so that the kernel never
//! follows a symlink. The walk uses only system calls that every isolation tier supports. It is safe, because
//! no other process writes to the layer meanwhile.

mod apply;
mod entry;
mod merged;
mod name;
mod pack;
mod refusal;
mod source;
#[cfg(test)]
mod tests;
mod top;
mod tree;

use std::io::Read;
use std::os::fd::OwnedFd;

use api::layer::{Compression, LAYERS_MAX, LayerReport};
use api::{Error, ErrorCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{CWD, Mode, OFlags};
use streamed::Feed;
use tokio::sync::{mpsc, oneshot};

use apply::LayerUnpacker;
pub use entry::{Ahead, ArchiveEntry, EntryKind};
use merged::Merged;
use pack::Packed;
pub use refusal::broken;
use refusal::platform;
use source::{Arriving, BodyChunk};
pub use source::{Fault, Source};
use tree::Tree;

use crate::sweep::{self, Whom};

/// Maximum number of chunks queued between the connection and the unpacking thread. Each chunk is at most one
/// frame of the connection.
const PIECES_WAITING: usize = 4;
/// Directory of the new layer.
const TARGET: &str = "/layers/target";
/// Directory with the changes of a build.
const UPPER: &str = "/.bellglass/upper";

/// Parameters of a request to unpack a layer.
#[derive(Clone, Copy, Debug)]
pub struct UnpackRequest {
    /// Compression of the archive.
    pub compression: Compression,
    /// True if this is the last layer of its image.
    pub top: bool,
    /// Number of layers below the new layer: `/layers/0` (the lowest), `/layers/1`, ….
    pub done: usize,
}

/// Unpacks the archive in the body of a request.
pub async fn put(order: UnpackRequest, mut body: Incoming) -> Result<LayerReport, Error> {
    let layers = open(order.done)?;
    let (pieces, receiver) = mpsc::channel(PIECES_WAITING);
    let (sender, report) = oneshot::channel();
    // Unpack in a separate thread, so that this process can serve other requests meanwhile.
    let unpacking = std::thread::Builder::new().name("unpack".into()).spawn(move || {
        let fault = Fault::default();
        let arriving = Arriving::new(receiver, fault.clone());
        let _ = sender.send(unpack(arriving, fault, order, layers));
    });
    unpacking.map_err(|error| platform("start a thread", &error))?;
    loop {
        let piece = match body.frame().await {
            Some(Ok(frame)) => {
                frame.into_data().map_or_else(|_| BodyChunk::Bytes(Bytes::new()), BodyChunk::Bytes)
            }
            Some(Err(_)) => break,
            None => BodyChunk::End,
        };
        let last = matches!(piece, BodyChunk::End);
        // The thread stops receiving once it has refused the layer. Its report contains the reason.
        if pieces.send(piece).await.is_err() || last {
            break;
        }
    }
    drop(pieces);
    report.await.unwrap_or_else(|_| Err(broken("the unpacking thread has exited")))
}

/// Sends a layer of this sandbox as an archive. `of` is the number of the layer, or `upper` for the changes
/// of a build. For `upper`, all user processes are killed first, so that the archive is consistent.
pub async fn get(of: &str, in_user_kernel: bool, sender: Feed) -> Result<(), Error> {
    let path = if of == "upper" {
        sweep::kill(Whom::Everybody).await;
        UPPER.to_owned()
    } else {
        let number: usize = of.parse().map_err(|_| {
            Error::invalid(
                "`of` does not name a layer",
                "Use of=N, where N is the number of a layer, or of=upper.",
            )
        })?;
        format!("/layers/{number}")
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &path, flags, Mode::empty())
        .map_err(|_| Error::not_found(format!("there is no {path} in this sandbox")))?;
    let (pieces, mut packed) = mpsc::channel(PIECES_WAITING);
    let packing = std::thread::Builder::new().name("pack".into()).spawn(move || {
        if in_user_kernel {
            // A user-space kernel can delay writes, so flush them to the directory that is read here.
            rustix::fs::sync();
        }
        pack::pack(&root, &pieces);
    });
    packing.map_err(|error| platform("start a thread", &error))?;
    tokio::task::spawn_local(async move {
        while let Some(piece) = packed.recv().await {
            let goes_on = match piece {
                Packed::Bytes(bytes) => sender.send(bytes).await.is_ok(),
                Packed::End => false,
            };
            if !goes_on {
                return;
            }
        }
        // The packing thread exited without sending an end marker.
        sender.abort(std::io::ErrorKind::InvalidData.into());
    });
    Ok(())
}

/// Unpacks an archive into the last of `layers`. The others are the layers below it, lowest first.
pub fn unpack(
    reader: impl Read,
    fault: Fault,
    order: UnpackRequest,
    layers: Vec<OwnedFd>,
) -> Result<LayerReport, Error> {
    let source = Source::new(reader, order.compression, fault.clone());
    let mut archive = tar::Archive::new(source);
    let mut unpacker = LayerUnpacker::new(Tree::new(Merged::new(layers)?));
    let unpacked = unpacker.all(&mut archive);
    let finished = unpacked.and_then(|()| archive.into_inner().finish());
    // Decoders and the archive reader hide why their source failed, so the source's own error takes
    // precedence.
    let (digest, bytes) = finished.map_err(|error| fault.take().unwrap_or(error))?;
    let (tree, entries, skipped) = unpacker.done()?;
    if order.top {
        top::finish(&tree)?;
    }
    Ok(LayerReport { digest, bytes, entries, skipped })
}

/// Opens the layers below, lowest first, then the target, which must be empty.
fn open(done: usize) -> Result<Vec<OwnedFd>, Error> {
    if done >= LAYERS_MAX {
        return Err(api::limits::exceeded("done", done as u64, LAYERS_MAX as u64 - 1));
    }
    let names = (0..done).map(|number| format!("/layers/{number}")).chain([TARGET.to_owned()]);
    let layers: Vec<OwnedFd> = names
        .map(|name| {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, &name, flags, Mode::empty()).map_err(|_| {
                Error::not_found(format!("there is no {name}: this sandbox does not unpack layers"))
            })
        })
        .collect::<Result<_, _>>()?;
    let fresh = layers.last().is_some_and(|target| tree::is_empty(target).unwrap_or(false));
    if fresh {
        return Ok(layers);
    }
    Err(Error {
        code: ErrorCode::Conflict,
        ..Error::invalid(
            "this sandbox already has a layer, or part of one",
            "Unpack each layer in a separate sandbox.",
        )
    })
}

//! An upload of an object, from its first byte to its atomic publication.

use bytes::{Bytes, BytesMut};
use object_store::MultipartUpload;
use sha2::{Digest, Sha256};

use super::destination::ObjectDestination;
use super::failed;
use super::space::DiskSpace;
use crate::error::Error;
use crate::ledger::Charge;

/// Number of buffered bytes that triggers the write of a chunk of an upload.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// An upload in progress. Dropping it before [`Incoming::finish`] leaves nothing behind.
pub struct Incoming {
    upload: Box<dyn MultipartUpload>,
    held: BytesMut,
    hasher: Sha256,
    size_bytes: u64,
    room: DiskSpace,
    place: ObjectDestination,
    charge: Option<Charge>,
}

impl Incoming {
    /// Creates an upload that has received no bytes. Its bytes count toward `charge`.
    pub(super) fn new(
        upload: Box<dyn MultipartUpload>,
        place: ObjectDestination,
        room: DiskSpace,
        charge: Option<Charge>,
    ) -> Self {
        let (held, hasher) = (BytesMut::new(), Sha256::new());
        Self { upload, held, hasher, size_bytes: 0, room, place, charge }
    }

    /// Counts the full size of an upload whose length is known in advance, so that an upload that does not
    /// fit is refused before it starts.
    ///
    /// # Errors
    /// Returns `quota_exceeded` if the project's quota would be exceeded.
    pub fn prepay(&mut self, size_bytes: u64) -> Result<(), Error> {
        self.charge.as_mut().map_or(Ok(()), |charge| charge.prepay(size_bytes))
    }

    /// Appends bytes. Waits until they are written, unless they fit into the buffer.
    ///
    /// # Errors
    /// Returns an error if the project's quota is used up, the disk is full, or a file system operation
    /// fails.
    pub async fn push(&mut self, bytes: &Bytes) -> Result<(), Error> {
        if let Some(charge) = &mut self.charge {
            charge.grow(bytes.len() as u64)?;
        }
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE_BYTES {
            self.write().await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Error> {
        let piece = self.held.split().freeze();
        let _writing = self.room.take(piece.len() as u64)?;
        self.upload.put_part(piece.into()).await.map_err(failed("write"))
    }

    /// Returns the number of bytes received so far.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the SHA-256 of the bytes received so far.
    pub fn sha256(&self) -> String {
        self.hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Writes the rest and publishes the object atomically.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn finish(mut self) -> Result<(), Error> {
        if !self.held.is_empty() {
            self.write().await?;
        }
        let _alone = self.place.alone().await;
        let before = self.place.counted_bytes().await?;
        self.upload.complete().await.map_err(failed("write"))?;
        if let (Some(project), Some(charge)) = (&self.place.project, self.charge.take()) {
            charge.keep();
            project.subtract(before);
        }
        Ok(())
    }
}

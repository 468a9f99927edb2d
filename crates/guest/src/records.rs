//! Records on a socket between this process and an interpreter. Each record is a JSON text, followed by a NUL
//! byte, which JSON never contains.
//!
//! User code may hold the other end of the socket, so received records are not trusted. The size of a record
//! is limited, and only one large record at a time is in memory, for a limited time.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use api::limits;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, send,
    sendmsg, socketpair,
};
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::watched::{Watched, watch};

/// Maximum size of a record: one line of results, including its envelope.
const RECORD_BYTES_MAX: usize = limits::RESULT_BYTES_MAX;
/// Size above which a record counts as large. The guest has 64 MiB of memory for everything.
const SMALL_BYTES: usize = 256 * 1024;
/// Timeout for reading and handling a large record. Other large records wait for its permit.
const LARGE_WITHIN: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 * 1024;
/// Maximum number of descriptors sent with one record.
const DESCRIPTORS_MAX: usize = 4;

thread_local! {
    static LARGE: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// The guest's end of the socket.
pub struct Records {
    socket: Watched,
    unread: RefCell<Unread>,
}

/// Bytes that were read but not returned yet.
#[derive(Default)]
struct Unread {
    bytes: Vec<u8>,
    /// Start of the next record in `bytes`.
    from: usize,
    /// Position in `bytes` up to which no record ends.
    scanned: usize,
    /// True if the read of a large record was cancelled halfway. No more records can be read, because the
    /// start of the next one is unknown.
    broken: bool,
}

/// A received record.
pub struct ChannelRecord {
    /// Content, without the final NUL byte.
    pub bytes: Vec<u8>,
    place: Option<OwnedSemaphorePermit>,
}

impl ChannelRecord {
    /// Returns how long the caller may hold the record while it waits for something else. For a large record,
    /// this time is limited, because other large records wait for its permit.
    pub fn patience(&self) -> Duration {
        if self.place.is_some() { LARGE_WITHIN } else { Duration::MAX }
    }
}

/// Permit for a large record that is being read. If the read is cancelled, its bytes are discarded, because
/// they would otherwise stay in memory without a permit.
struct LargeRecordPermit<'a> {
    records: &'a Records,
    permit: Option<OwnedSemaphorePermit>,
    until: Instant,
}

impl Drop for LargeRecordPermit<'_> {
    fn drop(&mut self) {
        if self.permit.is_some() {
            self.records.unread.replace(Unread { broken: true, ..Unread::default() });
        }
    }
}

impl Records {
    /// Creates a socket pair. Returns the guest's end and the descriptor of the other end.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let socket = watch(ours, Interest::READABLE | Interest::WRITABLE)?;
        Ok((Self { socket, unread: RefCell::default() }, theirs))
    }

    /// Returns the next record, or `None` if the other side is gone or violates the protocol. The call can be
    /// cancelled at any time. If it is cancelled in the middle of a large record, no more records can be
    /// read.
    pub async fn read(&self) -> Option<ChannelRecord> {
        let mut place: Option<LargeRecordPermit<'_>> = None;
        loop {
            // Yield, so that a peer that writes continuously does not monopolize this thread.
            tokio::task::yield_now().await;
            let (taken, held, broken) = {
                let mut unread = self.unread.borrow_mut();
                (unread.take(), unread.bytes.len(), unread.broken)
            };
            if let Some(bytes) = taken {
                return Some(ChannelRecord { bytes, place: place.and_then(|mut place| place.permit.take()) });
            }
            if held > RECORD_BYTES_MAX || broken {
                return None;
            }
            if held >= SMALL_BYTES && place.is_none() {
                let permit = LARGE.with(Arc::clone).acquire_owned().await.ok();
                place =
                    Some(LargeRecordPermit { records: self, permit, until: Instant::now() + LARGE_WITHIN });
            }
            let ready = self.socket.readable();
            let mut ready = match &place {
                Some(place) => tokio::time::timeout_at(place.until, ready).await.ok()?.ok()?,
                None => ready.await.ok()?,
            };
            let mut bytes = [0; READ_BYTES];
            match ready.try_io(|socket| Ok(rustix::io::read(socket.get_ref(), &mut bytes)?)) {
                Ok(Ok(0)) => return None,
                Ok(Ok(count)) => self.unread.borrow_mut().add(bytes.get(..count).unwrap_or_default()),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return None,
                Err(_would_block) => {}
            }
        }
    }

    /// Sends a record. Waits while the other side does not read.
    pub async fn write(&self, record: &impl serde::Serialize) -> io::Result<()> {
        self.send(record, &[]).await
    }

    /// Sends a record with descriptors, which arrive with its first byte.
    pub async fn send(
        &self,
        record: &impl serde::Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(record)?;
        bytes.push(0);
        self.send_bytes(&bytes, descriptors).await
    }

    /// Sends raw bytes.
    pub async fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let mut ready = self.socket.writable().await?;
            let rest = bytes.get(sent..).unwrap_or_default();
            let with = if sent == 0 { descriptors } else { &[] };
            match ready.try_io(|socket| send_some(socket.get_ref().as_fd(), rest, with)) {
                Ok(Ok(count)) => sent += count,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }
}

impl Unread {
    /// Removes the first record from the bytes read so far, if it is complete.
    fn take(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.get(self.scanned..).unwrap_or_default();
        let Some(found) = rest.iter().position(|byte| *byte == 0) else {
            self.scanned = self.bytes.len();
            return None;
        };
        let end = self.scanned + found;
        if self.from == 0 && end + 1 == self.bytes.len() {
            // Usually, the record is the only one in the buffer and can be moved. If there are several, the
            // record is copied.
            let mut record = std::mem::take(self).bytes;
            record.truncate(end);
            return Some(record);
        }
        let record = self.bytes.get(self.from..end).unwrap_or_default().to_vec();
        (self.from, self.scanned) = (end + 1, end + 1);
        Some(record)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.from);
        self.scanned -= self.from;
        self.from = 0;
        self.bytes.extend_from_slice(bytes);
    }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    // NOSIGNAL: writing to a dead process returns an error instead of raising a signal.
    if descriptors.is_empty() {
        return Ok(send(socket, bytes, SendFlags::NOSIGNAL)?);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[io::IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn records_come_whole_and_in_order_however_they_are_cut() {
        let (records, theirs) = Records::pair().unwrap();
        let mut theirs = UnixStream::from(theirs);
        theirs.write_all(b"{\"a\"").unwrap();
        tokio::select! {
            biased;
            _ = records.read() => panic!("it is not whole"),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        theirs.write_all(b":1}\0{}\0[").unwrap();
        assert_eq!(records.read().await.unwrap().bytes, b"{\"a\":1}");
        assert_eq!(records.read().await.unwrap().bytes, b"{}");
        drop(theirs);
        assert!(records.read().await.is_none(), "what has no end is none");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_flood_of_records_leaves_time_for_others() {
        let (records, theirs) = Records::pair().unwrap();
        let flood = std::thread::spawn(move || {
            let mut theirs = UnixStream::from(theirs);
            while theirs.write_all(&[0; 65_536]).is_ok() {}
        });
        let reader = async {
            while let Some(record) = records.read().await {
                assert!(record.bytes.is_empty());
            }
        };
        let timer = tokio::time::sleep(Duration::from_millis(50));
        tokio::time::timeout(Duration::from_secs(20), async {
            tokio::select! {
                biased;
                () = reader => panic!("it does not end"),
                () = timer => {}
            }
        })
        .await
        .unwrap();
        drop(records);
        flood.join().unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_large_record_that_is_given_up_keeps_no_place_and_no_memory() {
        let (records, theirs) = Records::pair().unwrap();
        let mut theirs = UnixStream::from(theirs);
        let writer = std::thread::spawn(move || {
            theirs.write_all(&vec![b'x'; 2 * SMALL_BYTES]).unwrap();
            theirs
        });
        assert!(tokio::time::timeout(Duration::from_millis(300), records.read()).await.is_err());
        assert_eq!(records.unread.borrow().bytes.capacity(), 0);
        assert_eq!(LARGE.with(|large| large.available_permits()), 1);
        assert!(records.read().await.is_none(), "what follows is no record");
        drop(records);
        drop(writer.join());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_record_without_an_end_is_given_up() {
        let (records, theirs) = Records::pair().unwrap();
        let flood = std::thread::spawn(move || {
            let mut theirs = UnixStream::from(theirs);
            while theirs.write_all(&[b'x'; 65_536]).is_ok() {}
        });
        assert!(records.read().await.is_none());
        assert!(records.unread.borrow().bytes.len() <= RECORD_BYTES_MAX + READ_BYTES);
        drop(records);
        flood.join().unwrap();
    }
}

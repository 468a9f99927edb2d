//! Records on a socket between this process and an interpreter: JSON, each ended by a NUL byte, which JSON never holds.
//!
//! At the other end is user code, so nothing here trusts what comes: a record has a largest size, and of the large ones only
//! one at a time is in memory, for a limited time.

use std::cell::{Cell, RefCell};
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

/// The longest record: a line of results, and the words around it.
const RECORD_BYTES_MAX: usize = limits::RESULT_BYTES_MAX;
/// Above this a record counts as large. The guest has 64 MiB for everything.
const SMALL_BYTES: usize = 256 * 1024;
/// A large record that is not whole by then is not waited for: others wait for its place.
const LARGE_WITHIN: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 * 1024;
/// Descriptors that go with one record.
const DESCRIPTORS_MAX: usize = 4;

thread_local! {
    static LARGE: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// Our end of such a socket.
pub struct Records {
    socket: Watched,
    unread: RefCell<Vec<u8>>,
    /// Bytes of `unread` in which no end of a record was found.
    scanned: Cell<usize>,
    /// The place of the large record that is being read, and until when it has it.
    place: RefCell<Option<(OwnedSemaphorePermit, Instant)>>,
}

/// One record.
pub struct Record {
    /// Without its end.
    pub bytes: Vec<u8>,
    _place: Option<(OwnedSemaphorePermit, Instant)>,
}

impl Records {
    /// A socket, and the end of it for the other side.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let socket = watch(ours, Interest::READABLE | Interest::WRITABLE)?;
        let (unread, scanned, place) = (RefCell::default(), Cell::new(0), RefCell::new(None));
        Ok((Self { socket, unread, scanned, place }, theirs))
    }

    /// The next record; none when the other side is gone, or does not keep to the rules. Can be given up at any time.
    pub async fn read(&self) -> Option<Record> {
        loop {
            if let Some(bytes) = self.take() {
                return Some(Record { bytes, _place: self.place.take() });
            }
            let held = self.unread.borrow().len();
            if held > RECORD_BYTES_MAX {
                return None;
            }
            if held >= SMALL_BYTES && self.place.borrow().is_none() {
                let permit = LARGE.with(Arc::clone).acquire_owned().await.ok()?;
                self.place.replace(Some((permit, Instant::now() + LARGE_WITHIN)));
            }
            let until = self.place.borrow().as_ref().map(|(_, until)| *until);
            let ready = self.socket.readable();
            let mut ready = match until {
                Some(until) => tokio::time::timeout_at(until, ready).await.ok()?.ok()?,
                None => ready.await.ok()?,
            };
            let mut bytes = [0; READ_BYTES];
            match ready.try_io(|socket| Ok(rustix::io::read(socket.get_ref(), &mut bytes)?)) {
                Ok(Ok(0)) => return None,
                Ok(Ok(count)) => {
                    self.unread.borrow_mut().extend_from_slice(bytes.get(..count).unwrap_or_default())
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return None,
                Err(_would_block) => {}
            }
        }
    }

    /// Takes the first record out of what was read, if it is whole.
    fn take(&self) -> Option<Vec<u8>> {
        let mut unread = self.unread.borrow_mut();
        let rest = unread.get(self.scanned.get()..).unwrap_or_default();
        let Some(found) = rest.iter().position(|byte| *byte == 0) else {
            self.scanned.set(unread.len());
            return None;
        };
        let end = self.scanned.replace(0) + found;
        let after = unread.split_off(end + 1);
        let mut record = std::mem::replace(&mut *unread, after);
        record.truncate(end);
        Some(record)
    }

    /// Sends one. Waits while the other side does not read.
    pub async fn write(&self, record: &impl serde::Serialize) -> io::Result<()> {
        self.send(record, &[]).await
    }

    /// Sends one with descriptors, which come with its first byte.
    pub async fn send(
        &self,
        record: &impl serde::Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(record)?;
        bytes.push(0);
        self.send_bytes(&bytes, descriptors).await
    }

    /// Sends bytes as they are.
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

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    // A process that is gone is an error here, not a signal.
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
    async fn a_record_without_an_end_is_given_up() {
        let (records, theirs) = Records::pair().unwrap();
        let flood = std::thread::spawn(move || {
            let mut theirs = UnixStream::from(theirs);
            while theirs.write_all(&[b'x'; 65_536]).is_ok() {}
        });
        assert!(records.read().await.is_none());
        assert!(records.unread.borrow().len() <= RECORD_BYTES_MAX + READ_BYTES);
        drop(records);
        flood.join().unwrap();
    }
}

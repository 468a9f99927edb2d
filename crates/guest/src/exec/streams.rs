//! Moves the output of an exec from its pipes to its spools, and records the results of code.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use api::code::{ResultLine, RunResult};
use api::exec::{Outcome, Stream};
use api::limits;

use super::GuestExec;
use crate::spool::{Spool, SpoolWrite};
use crate::watched::Watched;

/// Maximum size of one read from a pipe. All execs share one buffer, because there is no await between a read
/// and storing its bytes in the spool.
const SCRATCH_BYTES: usize = 256 * 1024;
/// Upper bound for the unread output of a terminal. The actual maximum is 68 KiB on Linux, and 128 KiB plus
/// one page on gVisor.
const TERMINAL_BYTES_MAX: usize = 256 * 1024;
/// Size of the results spool above which a short notice replaces each further result.
const RESULTS_FULL: u64 = limits::RESULTS_BYTES_MAX - 1_000_000;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

impl GuestExec {
    /// Calls `act` with the spool of a stream.
    pub fn spool<T>(&self, stream: Stream, act: impl FnOnce(&mut Spool) -> T) -> T {
        let [stdout, stderr, results] = &mut *self.spools.borrow_mut();
        act(match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
            Stream::Results => results,
        })
    }

    /// Returns the number of output bytes that are retained.
    pub fn kept(&self) -> u64 {
        self.spools.borrow().iter().map(Spool::kept).sum()
    }

    /// Returns true if some of the output is on disk.
    pub fn has_file(&self) -> bool {
        self.spools.try_borrow().is_ok_and(|spools| spools.iter().any(Spool::has_file))
    }

    /// Discards the retained output, so that a reader gets a gap instead. Returns false if the spools are in
    /// use.
    pub fn forget_output(&self) -> bool {
        self.spools.try_borrow_mut().is_ok_and(|mut spools| {
            spools.iter_mut().for_each(Spool::forget);
            true
        })
    }

    /// Records that a reader has acknowledged all bytes below the offset.
    pub fn consume(&self, stream: Stream, offset: u64) {
        self.spool(stream, |spool| spool.consume(offset));
        self.room.notify_waiters();
    }

    /// Records that all bytes below the offset were sent to a reader.
    pub fn sent(&self, stream: Stream, offset: u64) {
        if self.spool(stream, |spool| spool.sent(offset)) {
            self.room.notify_waiters();
        }
    }

    /// Appends a result, with the current length of both output streams. The lengths tell a reader where in
    /// the output the result belongs.
    pub fn show(&self, result: &RunResult) {
        if let Ok(text) = serde_json::to_string(result) {
            self.show_raw(&text);
        }
    }

    /// Appends a result that is already JSON, as received from the process.
    pub fn show_raw(&self, result: &str) {
        let (stdout, stderr) = (self.written(Stream::Stdout), self.written(Stream::Stderr));
        let line = format!("{{\"stdout\":{stdout},\"stderr\":{stderr},\"result\":{result}}}\n");
        let fits = |line: &str, most: u64| self.written(Stream::Results) + line.len() as u64 <= most;
        if line.len() <= limits::RESULT_BYTES_MAX && fits(&line, RESULTS_FULL) && !result.contains('\n') {
            self.spool(Stream::Results, |spool| spool.write(line.as_bytes()));
        } else {
            let result = RunResult::Omitted { bytes: result.len() as u64, types: Vec::new() };
            let mut line = serde_json::to_string(&ResultLine { stdout, stderr, result }).unwrap_or_default();
            line.push('\n');
            if fits(&line, limits::RESULTS_BYTES_MAX) {
                self.spool(Stream::Results, |spool| spool.write(line.as_bytes()));
            }
        }
        self.changed.notify_waiters();
    }

    fn written(&self, stream: Stream) -> u64 {
        self.spool(stream, |spool| spool.written())
    }

    /// Moves the bytes that are already in the pipes to the spools. The process wrote these bytes before it
    /// sent the message that the caller is handling.
    pub async fn catch_up(&self, streams: &[(Stream, Rc<Watched>)]) {
        for (stream, pipe) in streams {
            self.drain(*stream, pipe, self.pending(pipe)).await;
        }
    }

    /// Moves bytes from a pipe to its spool until the pipe closes.
    pub(super) async fn pump(self: Rc<Self>, stream: Stream, pipe: Rc<Watched>) {
        loop {
            let Ok(mut ready) = pipe.readable().await else { return };
            // Check for room only after `readable`, because `catch_up` may store bytes of this stream during
            // that wait.
            let most = self.until_room(stream).await;
            match ready.try_io(|pipe| self.take(stream, pipe.get_ref(), most)) {
                Ok(Ok(0)) => return,
                Ok(Ok(_)) => tokio::task::yield_now().await,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }

    /// Moves up to `bytes` bytes that are already in a pipe to its spool.
    pub async fn drain(&self, stream: Stream, pipe: &Watched, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let most = self.until_room(stream).await;
            match self.take(stream, pipe.get_ref(), left.min(most)) {
                Ok(0) | Err(_) => return,
                Ok(count) => left = left.saturating_sub(count),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns an upper bound for the number of bytes now in a pipe. For a terminal, which does not report
    /// this number, returns its maximum capacity.
    pub(super) fn pending(&self, pipe: &Watched) -> usize {
        if self.has_terminal() {
            return TERMINAL_BYTES_MAX;
        }
        let count = rustix::io::ioctl_fionread(pipe.get_ref()).ok();
        count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    }

    /// Waits until the spool accepts at least one byte. Returns how many bytes it accepts.
    pub async fn until_room(&self, stream: Stream) -> usize {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.spool(stream, |spool| spool.room()) {
                0 => room.await,
                bytes => return usize::try_from(bytes).unwrap_or(usize::MAX),
            }
        }
    }

    /// Reads from a pipe once, directly into the spool, so that no byte is lost if the task is cancelled.
    pub fn take(&self, stream: Stream, pipe: &OwnedFd, most: usize) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let most = most.min(SCRATCH_BYTES);
            let count = rustix::io::read(pipe, scratch.get_mut(..most).unwrap_or_default())?;
            let bytes = scratch.get(..count).unwrap_or_default();
            if self.spool(stream, |spool| spool.write(bytes)) == SpoolWrite::OverLimit {
                self.ask_to_end(Outcome::OutputLimit);
            }
            self.changed.notify_waiters();
            Ok(count)
        })
    }
}

/// Reads and discards output, so that a process left in the background neither blocks nor dies from a closed
/// pipe.
pub(super) async fn discard(pipe: Rc<Watched>) {
    while let Ok(mut ready) = pipe.readable().await {
        let read = ready.try_io(|pipe| {
            SCRATCH.with_borrow_mut(|scratch| Ok(rustix::io::read(pipe.get_ref(), &mut scratch[..])?))
        });
        match read {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return,
            _ => tokio::task::yield_now().await,
        }
    }
}

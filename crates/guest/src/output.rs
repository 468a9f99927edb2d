//! Frames for a reader of an exec's output: retained output from the reader's offsets on, gaps, heartbeats,
//! and the end of the exec.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use api::exec::Stream;
use api::frame::{HEADER_BYTES, Header};
use bytes::{Bytes, BytesMut};
use streamed::Feed;

use crate::exec::GuestExec;
use crate::spool::SpoolRead;

/// Maximum interval between frames, so that a reader can distinguish a silent exec from a dead guest.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Maximum payload of one frame. It is large, so that a flood of output needs few frames.
const CHUNK_BYTES: usize = 256 * 1024;
/// Lower bound for the maximum payload when there are many readers. Each reader may stall with four frames in
/// flight, and the guest has only 64 MiB of memory.
const CHUNK_BYTES_MIN: usize = 16 * 1024;
/// Total payload size that all readers share. Up to four readers get full-size frames; with more readers,
/// each gets smaller frames.
const CHUNKS_BYTES: usize = 1 << 20;

thread_local! {
    static READERS: Cell<usize> = const { Cell::new(0) };
}

/// Guard that counts one reader while it exists.
struct ReaderGuard;

impl ReaderGuard {
    fn new() -> Self {
        READERS.set(READERS.get() + 1);
        Self
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        READERS.set(READERS.get().saturating_sub(1));
    }
}

/// Position of a reader in each stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position {
    /// Offset of the next byte of standard output to send.
    pub stdout: u64,
    /// Offset of the next byte of standard error to send.
    pub stderr: u64,
    /// Offset of the next byte of results to send.
    pub results: u64,
}

/// Sends frames until the exec is complete and all its output was sent, or the reader is gone.
pub async fn send(exec: Rc<GuestExec>, mut at: Position, sender: Feed) {
    let _guard = ReaderGuard::new();
    let mut buffer = BytesMut::new();
    loop {
        let changed = exec.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // Get the end before reading the streams: if the exec is complete at this point, its spools already
        // hold all output.
        let end = exec.end();
        let mut idle = true;
        for stream in [Stream::Stdout, Stream::Stderr, Stream::Results] {
            let position = match stream {
                Stream::Stdout => &mut at.stdout,
                Stream::Stderr => &mut at.stderr,
                Stream::Results => &mut at.results,
            };
            if let Some(frame) = next(&exec, stream, position, &mut buffer) {
                idle = false;
                if sender.send(frame).await.is_err() {
                    return;
                }
                exec.sent(stream, *position);
            }
        }
        if !idle {
            continue;
        }
        if let Some(end) = end {
            let Ok(json) = serde_json::to_vec(&end) else { return };
            let length = u32::try_from(json.len()).unwrap_or(0);
            let frame = [&Header::End { length }.encode()[..], &json].concat();
            let _ = sender.send(frame.into()).await;
            return;
        }
        if tokio::time::timeout(HEARTBEAT, changed).await.is_err() {
            let frame = Bytes::copy_from_slice(&Header::Heartbeat.encode());
            if sender.send(frame).await.is_err() {
                return;
            }
        }
    }
}

fn next(exec: &GuestExec, stream: Stream, position: &mut u64, buffer: &mut BytesMut) -> Option<Bytes> {
    let offset = *position;
    let available = exec.spool(stream, |spool| spool.written().saturating_sub(offset));
    if available == 0 {
        return None;
    }
    let most = (CHUNKS_BYTES / READERS.get().max(1)).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES);
    let room = usize::try_from(available).unwrap_or(most).min(most);
    buffer.resize(HEADER_BYTES + room, 0);
    let (head, payload) = buffer.split_at_mut(HEADER_BYTES);
    let header = match exec.spool(stream, |spool| spool.read(offset, payload)) {
        SpoolRead::Nothing => return None,
        SpoolRead::Gap { to } => {
            *position = to;
            Header::Gap { stream, to }
        }
        SpoolRead::Data(count) => {
            *position = offset + count as u64;
            Header::Data { stream, offset, length: u32::try_from(count).unwrap_or(0) }
        }
    };
    head.copy_from_slice(&header.encode());
    Some(buffer.split_to(HEADER_BYTES + header.payload_bytes()).freeze())
}

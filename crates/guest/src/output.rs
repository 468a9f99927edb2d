//! The frames a reader of an exec gets: what is kept from its offsets on, gaps, heartbeats, and the end.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use api::exec::Stream;
use api::frame::{HEADER_BYTES, Header};
use bytes::{Bytes, BytesMut};
use streamed::Feed;

use crate::exec::Exec;
use crate::spool::Read;

/// A reader hears something at least this often, so that it can tell a silent exec from a dead guest.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The payload of one frame: large enough to carry a flood.
const CHUNK_BYTES: usize = 256 * 1024;
/// The same where many read: each of them may have stopped, with four frames on their way to it, and the guest has 64 MiB.
const CHUNK_BYTES_MIN: usize = 16 * 1024;
/// What all readers share: four of them at full size, and each further one with less.
const CHUNKS_BYTES: usize = 1 << 20;

thread_local! {
    static READERS: Cell<usize> = const { Cell::new(0) };
}

/// One of the readers, for as long as it is there.
struct Counted;

impl Counted {
    fn new() -> Self {
        READERS.set(READERS.get() + 1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        READERS.set(READERS.get().saturating_sub(1));
    }
}

/// Where a reader is in each stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position {
    /// The next byte of standard output it wants.
    pub stdout: u64,
    /// The next byte of standard error it wants.
    pub stderr: u64,
    /// The next byte of results it wants.
    pub results: u64,
}

/// Sends frames until the exec is complete and everything was sent, or the reader is gone.
pub async fn send(exec: Rc<Exec>, mut at: Position, sender: Feed) {
    let _counted = Counted::new();
    let mut buffer = BytesMut::new();
    loop {
        let changed = exec.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // Before the streams are looked at: what is complete now holds nothing that we could miss.
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

fn next(exec: &Exec, stream: Stream, position: &mut u64, buffer: &mut BytesMut) -> Option<Bytes> {
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
        Read::Nothing => return None,
        Read::Gap { to } => {
            *position = to;
            Header::Gap { stream, to }
        }
        Read::Data(count) => {
            *position = offset + count as u64;
            Header::Data { stream, offset, length: u32::try_from(count).unwrap_or(0) }
        }
    };
    head.copy_from_slice(&header.encode());
    Some(buffer.split_to(HEADER_BYTES + header.payload_bytes()).freeze())
}

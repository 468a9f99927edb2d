//! The decoder of an exec's output. It verifies the guest's frames: bytes must be contiguous, and the end
//! must agree with the bytes received.

use std::time::Duration;

use api::exec::{ExecEnd, Outcome, Stream};
use api::frame::{HEADER_BYTES, Header};
use api::output::{Event, PerStream};
use bytes::{Buf, BytesMut};
use host::error::Error;

use super::results::Results;

/// The frames of one exec that were received, and the position that they have reached.
#[derive(Default)]
pub(super) struct OutputDecoder {
    /// The next offset to read in each of the three streams.
    position: PerStream<u64>,
    dropped: [u64; 2],
    results: Results,
    buffer: BytesMut,
    /// The stream of the current data frame, and the number of bytes of the frame that have not arrived yet.
    open: Option<(Stream, usize)>,
}

impl OutputDecoder {
    /// Returns the next offset to read in each stream.
    pub fn position(&self) -> PerStream<u64> {
        self.position
    }

    /// Continues at these offsets.
    pub fn seek(&mut self, stdout: u64, stderr: u64, results: u64) {
        self.position = PerStream { stdout, stderr, results };
        self.results = Results::at(results);
        self.leave();
    }

    /// Adds received bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns true if results were discarded and must be requested again, from the current position.
    pub fn is_behind(&self) -> bool {
        self.results.is_behind()
    }

    /// Drops the received bytes that have not been decoded, and keeps the position. Results that were
    /// received but not delivered will be read again.
    pub fn leave(&mut self) {
        self.results.leave();
        self.position.results = self.results.asks_from();
        self.buffer.clear();
        self.open = None;
    }

    /// Decodes the next event, if it is complete. Data is returned as it arrives, even if its frame is
    /// incomplete. Also returns `None` if [`OutputDecoder::is_behind`].
    pub fn decode(&mut self) -> Result<Option<Event>, Error> {
        loop {
            let PerStream { stdout, stderr, .. } = self.position;
            if let Some((offset, next, line)) = self.results.next([stdout, stderr])? {
                return Ok(Some(Event::Result { offset, next, line }));
            }
            if self.is_behind() {
                return Ok(None);
            }
            if let Some((stream, left)) = self.open {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                let bytes = self.buffer.split_to(left.min(self.buffer.len())).freeze();
                self.open = Some((stream, left - bytes.len())).filter(|(_, left)| *left > 0);
                let at = self.position.get_mut(stream);
                let offset = *at;
                *at += bytes.len() as u64;
                if stream == Stream::Results {
                    self.results.take(&bytes)?;
                    continue;
                }
                return Ok(Some(Event::Data { stream, offset, bytes }));
            }
            let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let header = Header::decode(header).map_err(|bad| Error::Protocol(bad.to_string()))?;
            match header {
                Header::Heartbeat => self.buffer.advance(HEADER_BYTES),
                Header::Data { stream, offset, length } => {
                    let at = *self.position.get(stream);
                    if offset != at {
                        return Err(Error::Protocol(format!("received offset {offset}, expected {at}")));
                    }
                    // After a gap, the offset can be any number.
                    if offset.checked_add(length.into()).is_none() {
                        return Err(Error::Protocol(format!(
                            "{length} bytes at offset {offset} exceed the largest offset"
                        )));
                    }
                    self.buffer.advance(HEADER_BYTES);
                    self.open = Some((stream, length as usize));
                }
                Header::Gap { stream, to } => {
                    self.buffer.advance(HEADER_BYTES);
                    if let Some(gap) = self.skip(stream, to)? {
                        return Ok(Some(gap));
                    }
                }
                Header::End { length } => {
                    let whole = HEADER_BYTES + length as usize;
                    if self.buffer.len() < whole {
                        return Ok(None);
                    }
                    self.buffer.advance(HEADER_BYTES);
                    let end: ExecEnd = serde_json::from_slice(&self.buffer.split_to(length as usize))
                        .map_err(|error| Error::Protocol(format!("malformed end frame: {error}")))?;
                    // A result that is still held back also counts as a mismatch: it waits for output that
                    // will never arrive.
                    if PerStream::of_end(&end) != self.position || self.results.told() != end.results_bytes {
                        return Err(Error::Protocol(
                            "the end frame does not match the bytes received".into(),
                        ));
                    }
                    return Ok(Some(Event::End(end)));
                }
            }
        }
    }

    /// Counts the bytes of a stream up to an offset as dropped. Returns no event for a gap in the result
    /// stream that contains no undelivered line.
    fn skip(&mut self, stream: Stream, to: u64) -> Result<Option<Event>, Error> {
        let at = self.position.get_mut(stream);
        let from = *at;
        if to <= from {
            return Err(Error::Protocol(format!("invalid gap from {from} to {to}")));
        }
        *at = to;
        match stream {
            Stream::Stdout => self.dropped[0] += to - from,
            Stream::Stderr => self.dropped[1] += to - from,
            // Results are delivered as whole lines, so a partly received line is dropped with the rest.
            Stream::Results => return Ok(self.results.skip(to).map(|from| Event::Gap { stream, from, to })),
        }
        Ok(Some(Event::Gap { stream, from, to }))
    }

    /// Builds the end report of an exec that ran for this time and whose guest can no longer send the report.
    pub fn end_from_here(&self, outcome: Outcome, ran: Duration) -> ExecEnd {
        let PerStream { stdout: stdout_bytes, stderr: stderr_bytes, .. } = self.position;
        let [stdout_dropped, stderr_dropped] = self.dropped;
        ExecEnd {
            outcome,
            stdout_bytes,
            stdout_dropped,
            stderr_bytes,
            stderr_dropped,
            results_bytes: self.results.told(),
            state_lost: false,
            duration_us: u64::try_from(ran.as_micros()).unwrap_or(u64::MAX),
            left_running: 0,
            memory: None,
        }
    }
}

#[cfg(test)]
mod fuzz;

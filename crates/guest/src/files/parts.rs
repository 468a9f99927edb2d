//! Reads the parts of `api::files` from standard input, and writes them to standard output. The calls block,
//! because this process does nothing else.

use std::io::{self, Read, Write};

use api::Error;
use api::files::{FileAnswer, FileAsk, FileEnd, PART_HEADER_BYTES, Part, PartKind};
use api::limits::BODY_BYTES_MAX;
use rustix::stdio::{stdin, stdout};
use serde::Serialize;

/// Maximum payload of one part: the payload of one frame of the connection, less the part's header.
const CHUNK_BYTES: usize = 256 * 1024 - PART_HEADER_BYTES;

/// Reader for the body of a request: data, then an end marker.
#[derive(Default)]
pub struct PartReader {
    left: usize,
    ended: bool,
}

/// Writer for the data of an answer. It buffers data until a part is full.
pub struct PartWriter {
    /// Space for a header, then the payload.
    buffer: Vec<u8>,
}

/// Reads and checks the request.
pub fn ask() -> Result<FileAsk, Error> {
    let broke_off = |error: io::Error| {
        Error::invalid(format!("the request ended early: {error}"), "Send the request again.")
    };
    let part = header().map_err(broke_off)?;
    if part.kind != PartKind::Head || part.length as usize > BODY_BYTES_MAX {
        return Err(broke_off(io::ErrorKind::InvalidData.into()));
    }
    let mut bytes = vec![0; part.length as usize];
    exactly(&mut bytes).map_err(broke_off)?;
    let ask: FileAsk = serde_json::from_slice(&bytes)
        .map_err(|error| Error::invalid(format!("malformed request: {error}"), "Fix the request."))?;
    ask.check()?;
    Ok(ask)
}

/// Writes the head of the answer.
pub fn head(answer: &FileAnswer) -> io::Result<()> {
    json(PartKind::Head, answer)
}

/// Writes the end marker of an answer that contains data.
pub fn end(end: &FileEnd) -> io::Result<()> {
    json(PartKind::End, end)
}

/// Sends data without waiting for a full part.
pub fn data(bytes: &[u8]) -> io::Result<()> {
    let mut outlet = PartWriter::default();
    outlet.write_all(bytes)?;
    outlet.flush()
}

impl Read for PartReader {
    /// Reads data. Returns 0 after the end marker. Input that ends without the marker is an error.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 && !self.ended {
            let part = header()?;
            match part.kind {
                PartKind::Data => self.left = part.length as usize,
                PartKind::End => self.ended = true,
                PartKind::Head => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        let most = self.left.min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = again(|| rustix::io::read(stdin(), buffer.get_mut(..most).unwrap_or_default()))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

impl Default for PartWriter {
    fn default() -> Self {
        let mut buffer = Vec::with_capacity(PART_HEADER_BYTES + CHUNK_BYTES);
        buffer.resize(PART_HEADER_BYTES, 0);
        Self { buffer }
    }
}

impl PartWriter {
    /// Lets `read` fill one part directly, without copying, and sends the part. The read may be short.
    /// Returns the bytes that were sent, or an empty slice at the end of the data.
    pub fn fill(
        &mut self,
        most: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<&[u8]> {
        let most = usize::try_from(most).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        self.buffer.resize(PART_HEADER_BYTES + most, 0);
        let count = read(self.buffer.get_mut(PART_HEADER_BYTES..).unwrap_or_default())?;
        self.buffer.truncate(PART_HEADER_BYTES + count);
        self.send()?;
        Ok(self.buffer.get(PART_HEADER_BYTES..).unwrap_or_default())
    }

    fn send(&mut self) -> io::Result<()> {
        let length = self.buffer.len() - PART_HEADER_BYTES;
        if length == 0 {
            return Ok(());
        }
        let part = Part { kind: PartKind::Data, length: u32::try_from(length).unwrap_or(u32::MAX) };
        if let Some(header) = self.buffer.first_chunk_mut() {
            *header = part.encode();
        }
        all(&self.buffer)
    }
}

impl Write for PartWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= PART_HEADER_BYTES + CHUNK_BYTES {
            self.flush()?;
        }
        let room = PART_HEADER_BYTES + CHUNK_BYTES - self.buffer.len();
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.buffer.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        self.buffer.truncate(PART_HEADER_BYTES);
        Ok(())
    }
}

fn json(kind: PartKind, value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(value).map_err(io::Error::other)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    all(&[&Part { kind, length }.encode()[..], &json].concat())
}

fn header() -> io::Result<Part> {
    let mut bytes = [0; PART_HEADER_BYTES];
    exactly(&mut bytes)?;
    Part::decode(bytes).map_err(io::Error::other)
}

fn exactly(mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = again(|| rustix::io::read(stdin(), &mut *buffer))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = buffer.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

fn all(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = again(|| rustix::io::write(stdout(), bytes))?;
        bytes = bytes.get(count..).unwrap_or_default();
    }
    Ok(())
}

fn again(mut act: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match act() {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

//! The archive's bytes as they arrive: decompressed, metered and hashed.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use api::Error;
use api::layer::Compression;
use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::refusal::{broken, over};

/// Maximum uncompressed size of one layer: several times the size of the largest layers in images for running
/// code.
const LAYER_BYTES_MAX: u64 = 16 << 30;
/// Maximum compression ratio. Deflate reaches its maximum of 1032 only on zeros; archives of programs reach
/// about 4.
const RATIO_MAX: u64 = 1000;
/// Size below which the compression ratio is not checked: such a small layer is harmless, even if it consists
/// of zeros.
const RATIO_AFTER_BYTES: u64 = 16 << 20;
/// Maximum window of a Zstandard frame, which the decoder holds in memory. It is the largest window that
/// image builders use.
const WINDOW_BYTES_MAX: u64 = 32 << 20;
/// Size of one read of the data after the end of the archive, which is read only for the digest.
const REST_BYTES: usize = 64 * 1024;

/// The first error of a source. Stored separately, because decoders hide the errors of their reader.
#[derive(Clone, Debug, Default)]
pub struct Fault(Rc<RefCell<Option<Error>>>);

/// A chunk of a body.
pub enum BodyChunk {
    /// Some bytes.
    Bytes(Bytes),
    /// End marker. Without it, the body is incomplete.
    End,
}

/// Reader for the body of a request, for use in a separate thread.
pub struct Arriving {
    pieces: mpsc::Receiver<BodyChunk>,
    now: Bytes,
    ended: bool,
    fault: Fault,
}

/// Reader of an archive's uncompressed bytes.
pub struct Source<R: Read> {
    decoder: Decoder<CountingReader<R>>,
    taken: Rc<Cell<u64>>,
    given: u64,
    hasher: Sha256,
    fault: Fault,
}

/// Buffered reader that counts the bytes that its user has taken. Bytes that it has only read ahead do not
/// count, because they would make the compression ratio of a bomb look harmless.
struct CountingReader<R> {
    reader: BufReader<R>,
    count: Rc<Cell<u64>>,
}

enum Decoder<R: BufRead> {
    None(R),
    Gzip(Box<MultiGzDecoder<R>>),
    Zstd(Box<Frames<R>>),
}

/// Reader of consecutive Zstandard frames. It omits skippable frames.
struct Frames<R> {
    reader: R,
    frame: FrameDecoder,
    open: bool,
    fault: Fault,
}

impl Fault {
    /// Stores the error if it is the first. Returns an equivalent I/O error, which a reader can return.
    fn raise(&self, error: Error) -> io::Error {
        let message = error.message.clone();
        self.0.borrow_mut().get_or_insert(error);
        io::Error::other(message)
    }

    /// Removes and returns the stored error.
    pub fn take(&self) -> Option<Error> {
        self.0.borrow_mut().take()
    }

    fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }
}

impl Arriving {
    /// Creates a reader for a body whose chunks arrive through a channel.
    pub fn new(pieces: mpsc::Receiver<BodyChunk>, fault: Fault) -> Self {
        Self { pieces, now: Bytes::new(), ended: false, fault }
    }
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(BodyChunk::Bytes(bytes)) => self.now = bytes,
                Some(BodyChunk::End) => self.ended = true,
                None => return Err(self.fault.raise(broken("it ended early"))),
            }
        }
        let count = self.now.len().min(buffer.len());
        if let Some(to) = buffer.get_mut(..count) {
            self.now.copy_to_slice(to);
        }
        Ok(count)
    }
}

impl<R: Read> Source<R> {
    /// Creates a reader that decompresses the bytes of `reader`.
    pub fn new(reader: R, compression: Compression, fault: Fault) -> Self {
        let taken = Rc::new(Cell::new(0));
        let counted = CountingReader { reader: BufReader::new(reader), count: Rc::clone(&taken) };
        let decoder = match compression {
            Compression::None => Decoder::None(counted),
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(counted))),
            Compression::Zstd => Decoder::Zstd(Box::new(Frames::new(counted, fault.clone()))),
        };
        Self { decoder, taken, given: 0, hasher: Sha256::new(), fault }
    }

    /// Reads the data after the archive's end, which may only be padding. Returns the digest and size of all
    /// uncompressed bytes.
    pub fn finish(mut self) -> Result<(String, u64), Error> {
        let mut rest = vec![0; REST_BYTES];
        loop {
            match self.read(&mut rest) {
                Ok(0) => break,
                Ok(count) if rest.iter().take(count).all(|byte| *byte == 0) => {}
                Ok(_) => return Err(broken("data follows the end of the archive")),
                Err(error) => return Err(broken(error)),
            }
        }
        let digest: String = self.hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((format!("sha256:{digest}"), self.given))
    }

    fn meter(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hasher.update(bytes);
        self.given += bytes.len() as u64;
        if self.given > LAYER_BYTES_MAX {
            return Err(over("the archive is too large", format!("{LAYER_BYTES_MAX} bytes")));
        }
        let bursts = self.given > RATIO_AFTER_BYTES && self.given / self.taken.get().max(1) > RATIO_MAX;
        if bursts && !api::defence::is_off("U-01") {
            let message = format!(
                "{} bytes of the archive expanded to {} bytes, which exceeds the allowed compression ratio",
                self.taken.get(),
                self.given
            );
            return Err(over(message, RATIO_MAX));
        }
        Ok(())
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.decoder {
            Decoder::None(reader) => reader.read(buffer),
            Decoder::Gzip(reader) => reader.read(buffer),
            Decoder::Zstd(reader) => reader.read(buffer),
        };
        let count = read.map_err(|error| match self.fault.is_set() {
            true => error,
            false => self.fault.raise(broken(error)),
        })?;
        let bytes = buffer.get(..count).unwrap_or_default();
        self.meter(bytes).map_err(|error| self.fault.raise(error))?;
        Ok(count)
    }
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

impl<R: Read> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.count.set(self.count.get() + count as u64);
        self.reader.consume(count);
    }
}

impl<R: BufRead> Frames<R> {
    fn new(reader: R, fault: Fault) -> Self {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(WINDOW_BYTES_MAX);
        Self { reader, frame, open: false, fault }
    }

    /// Starts the next frame. Returns false at the end of the input.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.reader.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.frame.reset(&mut self.reader) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.reader).take(length.into()), &mut io::sink())?;
                    if skipped != u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => {
                    let message = format!("a Zstandard window of the archive is {requested} bytes");
                    return Err(self.fault.raise(over(message, WINDOW_BYTES_MAX)));
                }
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.open && !self.begin()? {
                return Ok(0);
            }
            self.open = true;
            if self.frame.can_collect() == 0 && !self.frame.is_finished() {
                self.frame
                    .decode_blocks(&mut self.reader, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| io::Error::other(error.to_string()))?;
            }
            let count = self.frame.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.open = !self.frame.is_finished();
        }
    }
}

//! Setup shared by attacks on the server's memory: held connections, memory measurement, and hand-written
//! HTTP/2.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use e2e::service::Service;

use super::ground::{address, rss_bytes};

pub(crate) const MIB: u64 = 1 << 20;
/// Timeout for sending a payload. Bytes that are not sent by then count as not accepted.
const WRITE_WITHIN: Duration = Duration::from_secs(5);

/// A measurement of a server's maximum memory, which ends when this value is dropped.
pub(crate) struct Peak {
    before: u64,
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    pub(crate) fn of(service: &Service) -> Self {
        let (pid, before) = (service.pid(), rss_bytes(service.pid()));
        let (most, stop) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
        let (seen, stopped) = (Arc::clone(&most), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                seen.fetch_max(rss_bytes(pid), Ordering::AcqRel);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { before, most, stop, thread: Some(thread) }
    }

    /// Returns the maximum memory growth so far.
    pub(crate) fn grown(&self) -> u64 {
        self.most.load(Ordering::Acquire) - self.before
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Opens a connection and sends these bytes on it. Returns the connection and the number of bytes that the
/// server accepted.
pub(crate) fn begin(service: &Service, pieces: &[&[u8]]) -> (TcpStream, usize) {
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_write_timeout(Some(WRITE_WITHIN)).unwrap();
    stream.set_read_timeout(Some(WRITE_WITHIN)).unwrap();
    let mut taken = 0;
    for piece in pieces {
        for part in piece.chunks(64 << 10) {
            if stream.write_all(part).is_err() {
                return (stream, taken);
            }
            taken += part.len();
        }
    }
    (stream, taken)
}

/// Returns an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// An HTTP/2 client that opens no flow-control window. It responds to PING and SETTINGS, but accepts no DATA.
pub(crate) struct Deaf {
    stream: TcpStream,
    /// Milliseconds until the server closed the connection, or 0 while it is still open.
    closed: Arc<AtomicU64>,
    resets: Arc<AtomicU64>,
    heads: Arc<AtomicU64>,
    began: Instant,
}

impl Deaf {
    /// Opens a connection and sends the given number of requests for this path with these headers.
    pub(crate) fn open(service: &Service, count: u32, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(address(service)).unwrap();
        stream.set_write_timeout(Some(WRITE_WITHIN)).unwrap();
        let mut block = Vec::new();
        let host = address(service);
        let own = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", host.as_str())];
        for (name, value) in own.iter().chain(headers) {
            block.extend([0, u8::try_from(name.len()).unwrap()]);
            block.extend(name.bytes());
            block.push(u8::try_from(value.len()).unwrap());
            block.extend(value.bytes());
        }
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // Set SETTINGS_INITIAL_WINDOW_SIZE to 0.
        bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
        (0..count).for_each(|number| bytes.extend(frame(1, 5, 2 * number + 1, &block)));
        let _ = stream.write_all(&bytes);
        let all: [Arc<AtomicU64>; 3] = std::array::from_fn(|_| Arc::default());
        let [closed, resets, heads] = all.clone();
        let (mut reading, began) = (stream.try_clone().unwrap(), Instant::now());
        std::thread::spawn(move || {
            while answer(&mut reading, &all).is_ok() {}
            all[0].store(began.elapsed().as_millis().max(1) as u64, Ordering::Release);
        });
        Self { stream, closed, resets, heads, began }
    }

    /// Returns the time after which the server closed the connection, or `None` if it is still open.
    pub(crate) fn closed(&self) -> Option<Duration> {
        let ms = self.closed.load(Ordering::Acquire);
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Returns the number of streams that the server has reset.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Acquire)
    }

    /// Returns the number of responses whose headers have been received.
    pub(crate) fn heads(&self) -> u64 {
        self.heads.load(Ordering::Acquire)
    }

    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Reads a frame and sends the acknowledgement that the frame requires.
fn answer(stream: &mut TcpStream, [_, resets, heads]: &[Arc<AtomicU64>; 3]) -> std::io::Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).unwrap()];
    stream.read_exact(&mut payload)?;
    match (head[3], head[4] & 1) {
        (1, _) => drop(heads.fetch_add(1, Ordering::AcqRel)),
        (3, _) => drop(resets.fetch_add(1, Ordering::AcqRel)),
        (4, 0) => stream.write_all(&frame(4, 1, 0, &[]))?,
        (6, 0) => stream.write_all(&frame(6, 1, 0, &payload))?,
        (7, _) => return Err(ErrorKind::ConnectionAborted.into()),
        _ => {}
    }
    Ok(())
}

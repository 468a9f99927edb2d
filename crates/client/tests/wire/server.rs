//! A test server whose responses are specified to the byte: it responds, disconnects or falls silent.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::output::OutputLine;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A request as the server received it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method, a space, the path and the query.
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

/// A response: the bytes that the server sends before it closes or stalls the connection.
pub struct Answer {
    bytes: Vec<u8>,
    /// True if the connection stays open after these bytes, without any further data.
    stalls: bool,
}

/// A server that runs in the test's process.
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a server. For each request, `answer` receives the request's number and content and returns the
    /// response.
    pub async fn start(answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    pub fn on(
        listener: TcpListener,
        answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (shared, answer) = (Arc::clone(&seen), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer) = (Arc::clone(&shared), Arc::clone(&answer));
                tokio::spawn(async move {
                    let _ = serve(stream, &seen, &*answer).await;
                });
            }
        });
        Self { address, seen }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests received so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Answer {
    pub fn json(status: &str, body: &impl Serialize) -> Self {
        Self::json_after(status, body, "")
    }

    /// Returns a JSON response with an additional header.
    pub fn json_after(status: &str, body: &impl Serialize, header: &str) -> Self {
        let body = serde_json::to_string(body).unwrap();
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\n{header}content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        Self { bytes: (head + &body).into_bytes(), stalls: false }
    }

    pub fn empty(status: &str) -> Self {
        let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        Self { bytes: head.into_bytes(), stalls: false }
    }

    /// Returns a complete chunked response that consists of these lines.
    pub fn lines(lines: &[OutputLine]) -> Self {
        Self::text(&text(lines))
    }

    /// Returns a chunked response with this text as its body and a proper end.
    pub fn text(text: &str) -> Self {
        let mut answer = Self::cut(text, text.len());
        answer.bytes.extend_from_slice(b"0\r\n\r\n");
        answer
    }

    /// Returns a chunked response that breaks off after this many bytes of its body.
    pub fn cut(text: &str, after: usize) -> Self {
        let mut bytes =
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        let body = &text.as_bytes()[..after.min(text.len())];
        if !body.is_empty() {
            bytes.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(body);
            bytes.extend_from_slice(b"\r\n");
        }
        Self { bytes, stalls: false }
    }

    /// Returns a response that consists of exactly these bytes.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), stalls: false }
    }

    /// Returns an empty response: the server closes the connection without sending anything.
    pub fn nothing() -> Self {
        Self { bytes: Vec::new(), stalls: false }
    }

    /// Keeps the connection open after the response, without sending any further data.
    pub fn then_silence(self) -> Self {
        Self { stalls: true, ..self }
    }
}

/// Serializes lines in their wire format.
pub fn text(lines: &[OutputLine]) -> String {
    lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect()
}

async fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &(dyn Fn(usize, &Request) -> Answer + Send + Sync),
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (line, rest) = head.split_once("\r\n").unwrap();
    let headers: HashMap<String, String> = rest
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < end + length {
        stream.read_buf(&mut bytes).await?;
    }
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    let request = Request { line, headers, body: bytes[end..].to_vec() };
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(request.clone());
        seen.len() - 1
    };
    let Answer { bytes, stalls } = answer(number, &request);
    stream.write_all(&bytes).await?;
    if stalls {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    stream.shutdown().await
}

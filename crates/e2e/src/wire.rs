//! Requests that are sent exactly once, and their raw responses. They show how a server treats clients other
//! than Bellglass's own client, which retries.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use api::exec::ExecSpec;
use api::sandbox::CreateSandbox;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// Timeout for a response. The slowest response is to a create request that waits behind many others.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// Address and credentials for requests to a server.
#[derive(Clone)]
pub struct Wire {
    address: SocketAddr,
    key: Option<String>,
    from: Ipv4Addr,
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The body, as text.
    pub body: String,
    head: String,
}

/// A response whose body is still being received.
pub struct Coming {
    /// Status code.
    pub status: u16,
    stream: BufReader<TcpStream>,
    head: String,
}

/// Returns the body of a create request.
pub fn sandbox(request: &CreateSandbox) -> Value {
    serde_json::to_value(request).unwrap()
}

/// Returns the body of a request that starts an exec.
pub fn command(spec: &ExecSpec) -> Value {
    serde_json::to_value(spec).unwrap()
}

impl Wire {
    /// Creates settings for the server at this address, with or without a key.
    pub fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self { address, key: key.map(str::to_owned), from: Ipv4Addr::LOCALHOST }
    }

    /// Returns the same settings with a different key, or without one.
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self { key: key.map(str::to_owned), ..self.clone() }
    }

    /// Returns the same settings with a different local address, because the server counts wrong keys per
    /// address.
    pub fn from(&self, from: Ipv4Addr) -> Self {
        Self { from, ..self.clone() }
    }

    /// Sends a request once and waits for the complete response.
    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.ask_with(method, path, body, &[]).await
    }

    /// Does the same as [`Wire::ask`], with additional headers.
    pub async fn ask_with(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let asking = async {
            let mut coming = self.open(method, path, body, headers).await;
            let mut bytes = Vec::new();
            coming.stream.read_to_end(&mut bytes).await.unwrap();
            let body = String::from_utf8_lossy(&bytes).into_owned();
            Answer { status: coming.status, body, head: coming.head }
        };
        let answer = tokio::time::timeout(ANSWER_WITHIN, asking).await;
        answer.unwrap_or_else(|_| panic!("no answer to {method} {path}"))
    }

    /// Sends a request once and waits for the response's headers. Dropping the result closes the connection.
    pub async fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Coming {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((self.from, 0))).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: bellglass\r\nconnection: close\r\n");
        if let Some(key) = &self.key {
            text.push_str(&format!("authorization: Bearer {key}\r\n"));
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        match body.map(ToString::to_string) {
            Some(body) => text.push_str(&format!(
                "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )),
            None => text.push_str("\r\n"),
        }
        stream.write_all(text.as_bytes()).await.unwrap();
        let (mut stream, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).await.unwrap() > 0, "{method} {path}: cut after {head:?}");
        }
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap();
        Coming { status, stream, head }
    }
}

impl Answer {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(": ").is_some_and(|(is, _)| is.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| of(line)).and_then(|line| line.split_once(": ")).map(|(_, value)| value)
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{} {:?}", self.status, self.body))
    }

    /// Returns the error code, which is empty if the body is not an error.
    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Coming {
    /// Returns the next object in a stream of JSON lines, skipping the chunk headers. Returns `None` at the
    /// end.
    pub async fn line(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            if let Ok(value @ Value::Object(_)) = serde_json::from_str(&line) {
                return Some(value);
            }
        }
    }
}

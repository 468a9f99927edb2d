//! Shared setup for the tests of ports: a server, an application in a sandbox, and functions that send
//! requests to the application.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use api::exec::ExecSpec;
use api::limits::Limits;
use api::ports::Port;
use api::sandbox::{CreateSandbox, Sandbox, Tier};
use client::{Client, Event};
use e2e::service::{Service, small};

/// Timeout for each response in these tests.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);
const APPLICATION: &str = include_str!("app.py");

/// An application in a sandbox, with the port on which it listens.
pub(crate) struct Application {
    pub(crate) client: Client,
    pub(crate) sandbox: Sandbox,
    pub(crate) port: Port,
}

/// Runs a test once per tier whose runtime is under test, each time on a new server.
pub(crate) fn on_each_tier(test: impl AsyncFn(&mut Service, Tier)) {
    e2e::service::served(async || {
        for tier in e2e::service::tiers() {
            let mut service = Service::start();
            test(&mut service, tier).await;
        }
    });
}

impl Application {
    /// Creates a sandbox, starts the application in it, and waits until the application is ready.
    pub(crate) async fn start(service: &Service, tier: Tier) -> Self {
        Self::with(service, CreateSandbox { tier, ..small() }).await
    }

    /// Does the same as [`Application::start`], in a sandbox that this request creates.
    pub(crate) async fn with(service: &Service, request: CreateSandbox) -> Self {
        let client = service.client();
        // The application uses a thread for each connection.
        let limits = Limits { memory_bytes: 512 << 20, pids: 1024, ..request.limits.over(Limits::default()) };
        let sandbox = client.create(&CreateSandbox { limits: limits.into(), ..request }).await.unwrap();
        let application = Self { port: client.port(&sandbox.id, 8000).await.unwrap(), client, sandbox };
        application.serve().await;
        application
    }

    /// Starts the application as a background process of an exec that has ended, so that no running exec
    /// keeps the sandbox from being idle.
    pub(crate) async fn left_behind(service: &Service, request: CreateSandbox) -> Self {
        let client = service.client();
        let sandbox = client.create(&request).await.unwrap();
        let line = "python3 -u -c \"$PROGRAM\" > /tmp/said 2>&1 & until grep -q serving /tmp/said; do sleep 0.1; done";
        let env = [("PROGRAM".to_owned(), APPLICATION.to_owned())].into();
        let spec = ExecSpec { env, ..e2e::lab::script(line) };
        client.exec(&sandbox.id, &spec).await.unwrap().collect().await.unwrap();
        Self { port: client.port(&sandbox.id, 8000).await.unwrap(), client, sandbox }
    }

    /// Starts the application and waits until it is ready.
    pub(crate) async fn serve(&self) {
        let argv = ["python3", "-u", "-c", APPLICATION].map(str::to_owned).to_vec();
        let spec = ExecSpec { argv, deadline_ms: None, ..ExecSpec::default() };
        let mut exec = self.client.exec(&self.sandbox.id, &spec).await.unwrap();
        let mut said = Vec::new();
        while !said.starts_with(b"serving") {
            match tokio::time::timeout(WITHIN, exec.next()).await.expect("an application").unwrap() {
                Some(Event::Data { bytes, .. }) => said.extend_from_slice(&bytes),
                other => panic!("the application: {other:?}"),
            }
        }
    }

    /// Returns the host name of a port, followed by the server's port number.
    pub(crate) fn host(&self, port: u16) -> String {
        let host = self.port.url.split_once("://").unwrap().1;
        host.replacen("8000-", &format!("{port}-"), 1)
    }

    /// Runs `curl` on a path of port 8000 with the token.
    pub(crate) fn curl(&self, path: &str, arguments: &[&str]) -> Output {
        let token = format!("bellglass-token: {}", self.port.token);
        let mut all = vec!["-H", &token];
        all.extend(arguments);
        curl(&format!("{}{path}", self.port.url), &all)
    }

    /// Returns the body of a response as text.
    pub(crate) fn text(&self, path: &str, arguments: &[&str]) -> String {
        let output = self.curl(path, arguments);
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number of connections that the application holds open.
    pub(crate) fn held(&self) -> usize {
        self.text("/held", &[]).parse().unwrap()
    }

    /// Waits until the application holds the given number of connections, and returns the time that this
    /// took.
    pub(crate) async fn until_held(&self, count: usize) -> Duration {
        let since = Instant::now();
        while self.held() != count {
            assert!(since.elapsed() < WITHIN, "{} instead of {count} connections", self.held());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        since.elapsed()
    }

    /// Opens a raw connection to port 8000 and sends this request with the token.
    pub(crate) fn open(&self, request: &str, more: &str) -> BufReader<TcpStream> {
        let host = self.host(8000);
        let stream = TcpStream::connect(format!("127.0.0.1:{}", host.rsplit_once(':').unwrap().1)).unwrap();
        stream.set_read_timeout(Some(WITHIN)).unwrap();
        let token = &self.port.token;
        let text = format!("{request} HTTP/1.1\r\nhost: {host}\r\nbellglass-token: {token}\r\n{more}\r\n");
        (&stream).write_all(text.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    /// Opens a WebSocket and completes its handshake.
    pub(crate) fn websocket(&self) -> BufReader<TcpStream> {
        let more = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let mut socket = self.open("GET /ws", more);
        let head = head(&mut socket);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // The expected accept value from the example in RFC 6455.
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        socket
    }
}

/// Runs `curl` and returns its output, regardless of its exit status.
pub(crate) fn curl(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "300"]).args(arguments).arg(url);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs `curl`, which must succeed. Returns the HTTP status and the body.
pub(crate) fn asked(url: &str, arguments: &[&str]) -> (u16, String) {
    let mut all = vec!["-w", "\n%{http_code}"];
    all.extend(arguments);
    let output = curl(url, &all);
    assert!(output.status.success(), "{url}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

/// Reads a response's status line and headers.
pub(crate) fn head(stream: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "cut after {head:?}");
    }
    head
}

/// Sends text over a WebSocket and reads a response with the same length.
pub(crate) fn exchange(socket: &mut BufReader<TcpStream>, text: &str) -> String {
    let length = u8::try_from(text.len()).unwrap();
    assert!(length < 126);
    let mut frame = vec![0x81, 0x80 | length, 1, 2, 3, 4];
    frame
        .extend(text.bytes().zip([1, 2, 3, 4].into_iter().cycle()).map(|(byte, mask): (u8, u8)| byte ^ mask));
    socket.get_mut().write_all(&frame).unwrap();
    let mut answer = vec![0; 2 + text.len()];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [0x81, length]);
    String::from_utf8(answer[2..].to_vec()).unwrap()
}

/// Returns the resident memory of a process in bytes.
pub(crate) fn rss_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

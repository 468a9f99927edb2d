//! A simulated internet: a network namespace with servers at public addresses. A veth pair connects it to a
//! second namespace, in which a test and its `bellglass serve` run. Neither namespace has a route to any
//! other network.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::service::Service;

const PROGRAM: &str = include_str!("world.py");
/// Script that creates a certificate authority, which the server trusts, and a certificate for the simulated
/// hosts.
const CERTIFICATES: &str = "
new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
openssl req -x509 $new -days 2 -subj /CN=world -addext keyUsage=critical,keyCertSign -keyout authority.key -out certificate
openssl req $new -subj /CN=hosts -keyout key -out request
names=subjectAltName=DNS:good.example,DNS:evil.example,DNS:*.good.example,DNS:github.com
printf 'basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n%s\n' $names > extensions
openssl x509 -req -in request -CA certificate -CAkey authority.key -CAcreateserial -days 2 -extfile extensions -out hosts
cat key hosts > pem
";
/// Timeout for responses of the simulated servers, which normally respond immediately.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Address of the simulated server behind `good.example`, which stands for an allowed host.
pub const GOOD: &str = "93.184.216.34";
/// Address of the simulated server behind `evil.example`, which a sandbox may reach only if its policy allows
/// it.
pub const EVIL: &str = "93.184.216.35";

/// The simulated internet, which is removed when this value is dropped.
pub struct World {
    child: Child,
    place: TempDir,
}

/// Runs a test in a separate network namespace that is connected to a simulated internet.
pub fn in_a_world(test: impl AsyncFn(&World) + Send + Sync) {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            enter_empty();
            let world = World::new();
            crate::service::served(async || test(&world).await);
        });
        if let Err(panic) = done.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Moves this thread into an empty network namespace, together with all threads and processes that it starts
/// later.
fn enter_empty() {
    let mut holder = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
    let namespace = await_namespace(holder.id());
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// Waits until a process has a network namespace of its own, and opens that namespace.
fn await_namespace(process: u32) -> std::fs::File {
    let (ours, theirs) =
        (PathBuf::from("/proc/thread-self/ns/net"), PathBuf::from(format!("/proc/{process}/ns/net")));
    let since = Instant::now();
    while std::fs::read_link(&ours).unwrap() == std::fs::read_link(&theirs).unwrap() {
        assert!(since.elapsed() < ANSWER_WITHIN, "needs root");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::File::open(theirs).unwrap()
}

impl World {
    fn new() -> Self {
        let place = tempfile::Builder::new().prefix("bellglass-world").tempdir().unwrap();
        let (program, pem) = (place.path().join("world.py"), place.path().join("pem"));
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::write(
            place.path().join("resolv.conf"),
            "nameserver 93.184.216.53\noptions timeout:1 attempts:1\n",
        )
        .unwrap();
        let made = Command::new("sh").args(["-ec", CERTIFICATES]).current_dir(place.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut child = Command::new("unshare")
            .args(["--net", "--kill-child", "python3"])
            .arg(&program)
            .arg(&pem)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = child.stdout.take().unwrap();
        let world = Self { child, place };
        // `unshare` replaces itself with Python, so both have the same pid.
        let there = world.child.id().to_string();
        await_namespace(world.child.id());
        for command in [
            "link set lo up".to_owned(),
            format!("link add out0 type veth peer name in0 netns {there}"),
            "link set out0 up".into(),
            "addr add 93.184.216.1/24 dev out0".into(),
            "-6 addr add 2606:2800:220::1/64 dev out0 nodad".into(),
            "route add default via 93.184.216.2".into(),
            "-6 route add default via 2606:2800:220::2".into(),
        ] {
            assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "ip {command}");
        }
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        world
    }

    /// Starts the server under test, which uses the simulated DNS.
    pub fn service(&self) -> Service {
        self.service_with(&[])
    }

    /// Does the same as [`World::service`], with options after `serve`.
    pub fn service_with(&self, extra: &[&str]) -> Service {
        let before = self.before();
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        Service::with(&before, extra)
    }

    /// Restarts a server with its defence against an attack disabled. This is the attack's positive control.
    pub fn undefend(&self, service: &mut Service, attack: &str) {
        crate::attack::count_control();
        let (before, switch) = (self.before(), format!("{}={attack}", api::defence::VARIABLE));
        let words = before.iter().map(String::as_str).chain(["env", switch.as_str()]);
        service.kill();
        service.run_under(&words.collect::<Vec<_>>());
        service.begin();
    }

    /// Returns a command that runs beside the server, outside all sandboxes, and uses the simulated DNS.
    pub fn command(&self, words: &[String]) -> Command {
        let before = self.before();
        let mut command = Command::new(&before[0]);
        command.args(&before[1..]).args(words).stdin(Stdio::null());
        command
    }

    /// Starts a program in the simulated internet, where it can use all addresses. Dropping the result ends
    /// the program.
    pub fn inside(&self, words: &[&str]) -> Inside {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.child.id())).arg("--").args(words);
        Inside(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Returns the path of the file with the private key and certificate of the simulated servers.
    pub fn identity(&self) -> PathBuf {
        self.place.path().join("pem")
    }

    /// Returns the command prefix that makes a program use the DNS and the certificate authority of the
    /// simulated internet.
    fn before(&self) -> [String; 6] {
        let place = self.place.path().display().to_string();
        let script = "mount --bind \"$0\"/resolv.conf /etc/resolv.conf && export SSL_CERT_FILE=\"$0\"/certificate && exec \"$@\"".to_owned();
        ["unshare".to_owned(), "--mount".into(), "sh".into(), "-c".into(), script, place]
    }

    /// Returns the path of the certificate of the authority that signs the simulated servers' certificates.
    pub fn certificate(&self) -> PathBuf {
        self.place.path().join("certificate")
    }

    /// Returns the DNS queries, requests and open connections that the simulated servers have received so
    /// far.
    pub fn seen(&self) -> serde_json::Value {
        serde_json::from_str(&self.get(GOOD, "/seen")).unwrap()
    }

    /// Returns a simulated server's response to a request from outside all sandboxes.
    pub fn get(&self, address: &str, path: &str) -> String {
        let mut stream = TcpStream::connect((address, 80)).unwrap();
        stream.set_read_timeout(Some(ANSWER_WITHIN)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

/// A program in the simulated internet.
pub struct Inside(Child);

impl Inside {
    /// Waits for the program's first line of output and returns it.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Bytes a second of one file into a sandbox and out of it, through the API, hashed at both ends: beside a plain copy of the same
//! file over a unix socket.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use api::files::FilePath;
use api::limits::Limits;
use api::sandbox::{CreateSandbox, Tier};
use e2e::service::{Service, small};

/// A usual buffer of a program that copies.
const BUFFER_BYTES: usize = 64 << 10;
/// Each way so often, in turns.
const TURNS: usize = 3;

/// What one file took, at best: what else the machine did hits the others.
pub(crate) struct Carried {
    /// How many bytes it had.
    pub bytes: u64,
    /// From a file through a unix socket into a file.
    pub plain: Duration,
    /// In and out, by runtime.
    pub ways: Vec<(String, Duration, Duration)>,
}

/// Carries a file of so many bytes.
pub(crate) async fn run(bytes: u64, runtimes: &[&str]) -> Carried {
    let service = Service::start();
    let client = service.client();
    let here = tempfile::tempdir().unwrap();
    let (source, back) = (here.path().join("source"), here.path().join("back"));
    let mut random = File::open("/dev/urandom").unwrap().take(bytes);
    std::io::copy(&mut random, &mut File::create(&source).unwrap()).unwrap();
    let mut carried = Carried { bytes, plain: Duration::MAX, ways: Vec::new() };
    let inside = FilePath::new(&b"/workspace/carried"[..]).unwrap();
    let mut sandboxes = Vec::new();
    for name in runtimes {
        let tier = if *name == "runsc" { Tier::UserKernel } else { Tier::Container };
        // The file beside the one that it replaces.
        let limits = Limits { disk_bytes: 2 * bytes + (256 << 20), ..e2e::service::small_limits() };
        sandboxes
            .push(client.create(&CreateSandbox { tier, limits: limits.into(), ..small() }).await.unwrap().id);
        carried.ways.push(((*name).into(), Duration::MAX, Duration::MAX));
    }
    for _ in 0..TURNS {
        let plain = tokio::task::block_in_place(|| copy(&source, &back));
        carried.plain = carried.plain.min(plain);
        for (id, (_, into, out)) in sandboxes.iter().zip(&mut carried.ways) {
            let files = client.files(id);
            let began = Instant::now();
            files.upload(&source, &inside, &|_| {}).await.unwrap();
            *into = began.elapsed().min(*into);
            let began = Instant::now();
            files.download(&inside, &back, &|_| {}).await.unwrap();
            *out = began.elapsed().min(*out);
        }
    }
    for id in sandboxes {
        client.stop(&id).await.unwrap();
    }
    carried
}

fn copy(from: &Path, to: &Path) -> Duration {
    let began = Instant::now();
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pass(&mut File::open(from).unwrap(), &mut near);
            near.shutdown(Shutdown::Write).unwrap();
        });
        pass(&mut far, &mut File::create(to).unwrap());
    });
    began.elapsed()
}

/// `std::io::copy` would have the kernel do it.
fn pass(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let count @ 1.. = from.read(&mut buffer).unwrap() {
        to.write_all(&buffer[..count]).unwrap();
    }
}

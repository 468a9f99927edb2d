//! Throughput of file transfers into and out of a sandbox through the API, with hashing at both ends. The
//! baseline is a plain copy of the same file over a Unix socket.

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

/// Buffer size of the plain copy, as programs that copy files typically use.
const BUFFER_BYTES: usize = 64 << 10;
/// Number of measurements in each direction. The plain copy and the transfers alternate.
const TURNS: usize = 3;

/// Shortest durations for one file. Longer durations are ignored, because other load on the machine distorts
/// them.
pub(crate) struct Carried {
    /// Size of the file.
    pub bytes: u64,
    /// Duration of a copy from one file to another through a Unix socket.
    pub plain: Duration,
    /// Name of each runtime, with the durations of an upload and a download.
    pub ways: Vec<(String, Duration, Duration)>,
}

/// Measures transfers of a file with this size.
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
        // Space for two files: an upload writes the new file completely before it replaces the old one.
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

/// Copies all data in user space, whereas `std::io::copy` would let the kernel copy it.
fn pass(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let count @ 1.. = from.read(&mut buffer).unwrap() {
        to.write_all(&buffer[..count]).unwrap();
    }
}

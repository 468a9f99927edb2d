//! Forked runs behave as independent processes. The tests cover workers, threads, native libraries and the
//! user's own packages.

use api::code::RunResult;
use api::exec::ExecSpec;
use api::files::FilePath;
use api::limits::Limits;
use bytes::Bytes;
use e2e::room::{Room, in_a_room_with, python};

/// Python code that uses threads and processes. A fork inherits no threads, so libraries must create new
/// ones, and nothing may wait for a thread that no longer exists.
const WORKERS: &str = "import multiprocessing, threading, subprocess, os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
def square(n): return n * n
with multiprocessing.Pool(3) as pool: print(pool.map(square, range(5)))
with ProcessPoolExecutor(2) as pool: print(list(pool.map(square, [6, 7])))
with ThreadPoolExecutor(8) as pool: print(sum(pool.map(square, range(100))))
shared = []
threads = [threading.Thread(target=lambda n=n: (shared.append(n), display(n))) for n in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(sorted(shared), subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout.strip())
if os.fork() == 0:
    display('never from a child'); print('from a child', flush=True); os._exit(0)
os.wait();";

/// Python code that prints the thread count of each loaded OpenBLAS library, and checks the number of threads
/// after a matrix product. Each library has its own pool of threads.
const BLAS: &str = "import ctypes, os, re, numpy as np, scipy.linalg
paths = sorted({re.search(r'/.*', line)[0] for line in open('/proc/self/maps') if 'openblas' in line})
names = [f'{before}openblas_get_num_threads{after}' for before in ('scipy_', '') for after in ('64_', '')]
def count(library): return next(getattr(library, name)() for name in names if hasattr(library, name))
counts = {count(ctypes.CDLL(path)) for path in paths}
a = np.random.rand(600, 600); a @ a; scipy.linalg.inv(a)
limit = 1 + len(paths) * (max(counts) - 1)
print(os.environ['OMP_NUM_THREADS'], counts, len(os.listdir('/proc/self/task')) <= limit)";

const POLARS: &str = "import polars as pl
frame = pl.DataFrame({'k': [n % 7 for n in range(100_000)], 'v': range(100_000)})
print(frame.lazy().group_by('k').agg(pl.col('v').sum()).sort('k').collect()['v'].sum(), pl.thread_pool_size())";

#[test]
#[ignore = "starts real sandboxes"]
fn forks_have_workers_threads_and_the_packages_of_the_user() {
    let limits = Limits { memory_bytes: 1 << 30, cpu_millis: 1000, ..Limits::default() };
    in_a_room_with(limits, &[], async |service, room| {
        let ran = room.run(WORKERS).await.well();
        let expected = "[0, 1, 4, 9, 16]\n[36, 49]\n328350\n[0, 1, 2, 3, 4, 5, 6, 7] child\nfrom a child\n";
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), (expected, ""));
        let mut shown: Vec<_> = ran.shown().iter().map(|one| one.data["text/plain"].to_string()).collect();
        shown.sort();
        shown.dedup();
        assert_eq!(shown.len(), 8, "each thread's own, and none of a child: {shown:?}");
        counts(room, 1).await;
        let twice = Limits { cpu_millis: 2000, ..limits };
        counts(&Room::with(service, room.tier, twice, &[]).await, 2).await;
        shadowed(room).await;
    });
}

/// Checks that native libraries use as many threads as the sandbox has CPUs, unless the request sets a
/// different number.
async fn counts(room: &Room, cpus: usize) {
    let ran = room.run(BLAS).await.well();
    assert_eq!(ran.stdout, format!("{cpus} {{{cpus}}} True\n"));
    assert_eq!(room.run(POLARS).await.well().stdout, format!("4999950000 {cpus}\n"));
    let env = [("OMP_NUM_THREADS".to_owned(), "3".to_owned())].into();
    let ran = room.exec(&ExecSpec { env, ..python(BLAS) }).await.well();
    assert_eq!(ran.stdout, "3 {3} True\n");
}

/// Checks that the user's own package takes precedence over the preloaded package, and that the run reports
/// this.
async fn shadowed(room: &Room) {
    assert_eq!(
        room.run("import seaborn\nprint(seaborn.__version__ != 'mine')").await.well().stdout,
        "True\n"
    );
    let path = "/home/sandbox/.local/lib/python3.13/site-packages/seaborn/__init__.py";
    let path = FilePath::new(path.as_bytes()).unwrap();
    room.client.files(&room.id).write(&path, Bytes::from("__version__ = 'mine'\n"), None).await.unwrap();
    let code = "import seaborn, pandas\nprint(seaborn.__version__)\ndisplay(1)\n1/0";
    let ran = room.run(code).await;
    assert_eq!((ran.stdout.as_str(), ran.error().frames[0].line, ran.shown().len()), ("mine\n", 4, 1));
    let plain: Vec<_> =
        ran.results.iter().filter(|line| matches!(line.result, RunResult::Plain { .. })).collect();
    let expected = RunResult::Plain { shadowed: vec!["seaborn".into()] };
    assert_eq!(plain.iter().map(|line| &line.result).collect::<Vec<_>>(), [&expected]);
    room.sh("rm -r ~/.local").await;
    let ran = room.run("import seaborn\nprint(seaborn.__version__ != 'mine')").await.well();
    assert_eq!((ran.stdout.as_str(), ran.results.len()), ("True\n", 0));
    // A file in the workspace also takes precedence, as it would for a script in the same directory.
    room.sh("echo 'me = 1' > scipy.py").await;
    let ran = room.run("import scipy\nprint(scipy.me)").await.well();
    assert_eq!((ran.stdout.as_str(), ran.results.len()), ("1\n", 1));
    room.sh("rm scipy.py").await;
}

//! The tables of measurements and goals that this program prints.

use std::path::Path;
use std::process::Command;

use crate::carry::Carried;
use crate::code::Taken;
use crate::flood::Flood;
use crate::rounds::Times;
use crate::samples::Samples;
use crate::service::{Served, Ways};
use crate::weight::Weight;

/// Goal for starting a sandbox, as a multiple of plain `runc run`.
const START_RATIO: f64 = 1.5;
/// Goal for stopping a sandbox, in milliseconds.
const STOP_MS: f64 = 25.0;
/// Goal for the median of an exec, in milliseconds above a bare process.
const EXEC_P50_MS: f64 = 1.0;
/// Goal for the 95th percentile of an exec, in milliseconds above a bare process.
const EXEC_P95_MS: f64 = 2.0;
/// Goal for the memory of an idle sandbox, in MiB.
const IDLE_MIB: f64 = 2.0;
/// Goal for operations through the API, as a multiple of their duration without a server.
const SERVED_RATIO: f64 = 1.3;
/// Goal for the resident memory of a server: a fixed part in MiB, plus the following part in KiB per sandbox.
const SERVER_MIB: f64 = 60.0;
const SERVER_KIB_EACH: f64 = 30.0;
/// Goal for a file transfer, as a multiple of a plain copy over a Unix socket.
const CARRIED_RATIO: f64 = 2.0;
/// Goal for the median of a run without a context, in milliseconds above a bare fork.
const RUN_MS: f64 = 10.0;
/// Goal for a run in a context, in milliseconds above the duration as measured by the cell.
const CELL_MS: f64 = 3.0;
/// Goal for the first run in a sandbox, as a multiple of a bare `python3` with the same imports.
const FIRST_RATIO: f64 = 1.25;
const MIB: f64 = 1_048_576.0;

/// Prints the properties of the machine that affect the measurements.
pub(crate) fn machine(rounds: usize, data: &Path) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    println!("Linux {}, {cores} cores, load {}", kernel.trim(), load.trim());
    println!("sandboxes kept on {}", file_system(&read("/proc/self/mounts"), data));
    for name in ["runc", "runsc", "bwrap"] {
        if let Ok(output) = Command::new(name).arg("--version").output() {
            println!("{}", String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or(name));
        }
    }
    println!("{rounds} rounds, every subject once in each");
}

/// Returns the type and mount options of a directory's file system. Both affect the duration of a stop: on a
/// file system that is mounted with `discard`, the stop may wait until freed blocks are discarded.
fn file_system(mounts: &str, directory: &Path) -> String {
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let fitting = words.filter_map(|words| match words.as_slice() {
        [_, target, kind, options, ..] if directory.starts_with(target) => {
            Some((target.len(), format!("{kind} ({options})")))
        }
        _ => None,
    });
    fitting
        .max_by_key(|(length, _)| *length)
        .map_or_else(|| "an unknown file system".into(), |(_, text)| text)
}

/// Prints the table of durations.
pub(crate) fn times(times: &Times) {
    println!("\n{:<58} {:>9} {:>9}   ratio of p50", "what", "p50 ms", "p95 ms");
    let line = |what: &str, samples: &Samples, ratio: Option<(&Samples, &str)>| {
        if samples.is_empty() {
            println!("{what:<58} {:>9} {:>9}", "none", "none");
            return;
        }
        let ratio =
            ratio.map_or(String::new(), |(to, name)| format!("{:.2} × {name}", samples.p50() / to.p50()));
        println!("{what:<58} {:>9.2} {:>9.2}   {ratio}", samples.p50(), samples.p95());
    };
    let (bare, runc_run) = (Some((&times.bare, "bare")), Some((&times.runc_run, "runc run")));
    line("/bin/true, bare: fork, exec, wait", &times.bare, None);
    line("bwrap --unshare-all, the layer read-only, /bin/true", &times.bwrap, bare);
    line("runc run, our config.json in our mounts, but /bin/true", &times.runc_run, bare);
    for ours in &times.ours {
        let name = &ours.name;
        line(&format!("{name}: start, posture seen outside and by an exec"), &ours.start, runc_run);
        line(&format!("{name}: start, and a first /bin/true answered"), &ours.first_exec, runc_run);
        line(&format!("{name}: stop, until nothing is left"), &ours.stop, runc_run);
        line(&format!("{name}: exec of /bin/true in a live sandbox"), &ours.exec, bare);
        let over = |of: fn(&Samples) -> f64| of(&ours.exec) - of(&times.bare);
        println!("{:<58} {:>9.2} {:>9.2}", "    over bare", over(Samples::p50), over(Samples::p95));
    }
}

/// Prints the table of memory use.
pub(crate) fn weights(weights: &[Weight]) {
    println!("\nmemory of an idle sandbox, MiB, mean of 20");
    println!(
        "{:<8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>14}",
        "", "charged", "processes", "files", "in memory", "kernel", "resident", "this process"
    );
    for weight in weights {
        let parts = [weight.charged, weight.anonymous, weight.file, weight.shared, weight.kernel];
        let [charged, anonymous, file, shared, kernel] = parts.map(mib);
        println!(
            "{:<8} {charged:>9.2} {anonymous:>9.2} {file:>9.2} {shared:>9.2} {kernel:>9.2} {:>9.2} {:>14.2}",
            weight.name,
            mib(weight.resident),
            mib(weight.node)
        );
    }
    println!("charged = processes + files + kernel; `in memory` are the files of /dev, /tmp and /dev/shm;");
    println!(
        "resident includes pages of programs that all sandboxes share; this process grew by so much for each"
    );
}

/// Prints the table of output throughput.
pub(crate) fn floods(floods: &[Flood]) {
    println!("\n{:<8} {:>7} {:>30} {:>30}", "", "MiB", "keep, nobody reads, MB/s", "block, one reader, MB/s");
    for flood in floods {
        let rate = |took: std::time::Duration| flood.bytes as f64 / 1e6 / took.as_secs_f64();
        println!(
            "{:<8} {:>7} {:>30.0} {:>30.0}",
            flood.name,
            flood.bytes >> 20,
            rate(flood.kept),
            rate(flood.read)
        );
    }
}

/// Prints the table of file transfers.
pub(crate) fn carried(carried: &Carried) {
    let rate = |took: std::time::Duration| carried.bytes as f64 / 1e6 / took.as_secs_f64();
    let plain = rate(carried.plain);
    println!(
        "\n{:<44} {:>9} {:>9}",
        format!("a file of {} MB, the best of 3", carried.bytes / 1_000_000),
        "MB/s",
        "× plain"
    );
    println!("{:<44} {plain:>9.0}", "plain: file, unix socket, file");
    for (name, into, out) in &carried.ways {
        for (what, took) in [("in", *into), ("out", *out)] {
            let rate = rate(took);
            println!(
                "{:<44} {rate:>9.0} {:>9.2}",
                format!("{name}: {what}, through the API, hashed"),
                rate / plain
            );
        }
    }
}

/// Prints the tables of operations through the API.
pub(crate) fn served(served: &Served) {
    println!(
        "\n{:<44} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "through the API on loopback", "at once", "p50 ms", "p95 ms", "× here", "× runc run"
    );
    let line = |what: &str, at_once: usize, samples: &Samples, ways: &Ways| {
        let ratio = |to: &Samples| {
            if to.is_empty() { String::new() } else { format!("{:.2}", samples.p50() / to.p50()) }
        };
        let (here, runc) = (ratio(&ways.here), ratio(&ways.runc_run));
        println!("{what:<44} {at_once:>7} {:>9.2} {:>9.2} {here:>9} {runc:>9}", samples.p50(), samples.p95());
    };
    for ways in &served.lives {
        line("runc run", ways.at_once, &ways.runc_run, ways);
        line("create, first exec, stop: in this process", ways.at_once, &ways.here, ways);
        line("create, first exec, stop: through the API", ways.at_once, &ways.served, ways);
    }
    for ways in &served.execs {
        line("exec of /bin/true: in this process", ways.at_once, &ways.here, ways);
        line("exec of /bin/true: through the API", ways.at_once, &ways.served, ways);
    }
    let [before, after] = served.resident;
    println!(
        "server: {:.1} MiB resident; with {} idle sandboxes {:.1} MiB, {:.0} KiB for each",
        mib(before),
        served.live,
        mib(after),
        per_sandbox_kib(served)
    );
}

fn per_sandbox_kib(served: &Served) -> f64 {
    let [before, after] = served.resident;
    after.saturating_sub(before) as f64 / 1024.0 / served.live as f64
}

/// Prints the table of goals.
pub(crate) fn goals(times: &Times, weights: &[Weight], served: &Served, carried: &Carried) {
    goals_head();
    if let Some(runc) = times.ours.iter().find(|ours| ours.name == "runc") {
        let start = runc.first_exec.p50() / times.runc_run.p50();
        goal("start until a first exec is answered, × runc run", START_RATIO, start);
        goal("stop, ms, p50", STOP_MS, runc.stop.p50());
        goal("exec of /bin/true over bare, ms, p50", EXEC_P50_MS, runc.exec.p50() - times.bare.p50());
        goal("exec of /bin/true over bare, ms, p95", EXEC_P95_MS, runc.exec.p95() - times.bare.p95());
    }
    if let Some(runc) = weights.iter().find(|weight| weight.name == "runc") {
        goal("idle sandbox, all that is charged, MiB", IDLE_MIB, mib(runc.charged));
    }
    for ways in &served.lives {
        let what = format!("{} lives at once through the API, × in process", ways.at_once);
        goal(&what, SERVED_RATIO, ways.served.p50() / ways.here.p50());
    }
    for ways in &served.execs {
        let what = format!("{} execs at once through the API, × in process", ways.at_once);
        goal(&what, SERVED_RATIO, ways.served.p50() / ways.here.p50());
    }
    let [_, after] = served.resident;
    let most = SERVER_MIB + SERVER_KIB_EACH * served.live as f64 / 1024.0;
    goal(&format!("the server with {} idle sandboxes, MiB", served.live), most, mib(after));
    for (_, into, out) in carried.ways.iter().filter(|(name, ..)| name == "runc") {
        for (what, took) in [("into", into), ("out of", out)] {
            let what = format!("{} MB {what} a sandbox, × a plain copy", carried.bytes / 1_000_000);
            goal(&what, CARRIED_RATIO, took.as_secs_f64() / carried.plain.as_secs_f64());
        }
    }
}

/// Prints the table of running code.
pub(crate) fn code(all: &[Taken]) {
    for taken in all {
        let name = format!("{}: running code, through the API", taken.name);
        println!("\n{name:<58} {:>9} {:>9} {:>6}   over, p50", "p50 ms", "p95 ms", "taken");
        let line = |what: &str, samples: &Samples, over: Option<(&Samples, &str)>| {
            if samples.is_empty() {
                return;
            }
            let over = over.filter(|(to, _)| !to.is_empty());
            let over =
                over.map_or(String::new(), |(to, name)| format!("{:+.2} {name}", samples.p50() - to.p50()));
            println!(
                "{what:<58} {:>9.2} {:>9.2} {:>6}   {over}",
                samples.p50(),
                samples.p95(),
                samples.len()
            );
        };
        line("python3 -c, imports and the cell", &taken.bare, None);
        line("Jupyter: a kernel until it is ready", &taken.kernel_ready, None);
        line("Jupyter: a kernel until its first cell is done", &taken.kernel_first, None);
        line("Jupyter: another cell in it", &taken.kernel_cell, None);
        line("bare fork: fork, end, wait", &taken.fork, None);
        line("bare fork: the cell in it", &taken.fork_cell, None);
        line("ours: a run of `pass`", &taken.run, Some((&taken.fork, "bare fork")));
        line("ours: a run of the cell", &taken.run_cell, Some((&taken.fork_cell, "bare fork")));
        line("    of that the cell itself, in a fork", &taken.run_own, None);
        line("ours: a cell of `pass` in a context", &taken.cell, None);
        line("ours: the cell in a context", &taken.cell_cell, Some((&taken.kernel_cell, "Jupyter")));
        line("    of that the cell itself", &taken.cell_own, None);
        line("    and what it took besides", &taken.cell_over, None);
        line("python3 -c, imports of the template", &taken.bare_ahead, None);
        line("ours: the first run in a sandbox", &taken.first, Some((&taken.bare_ahead, "python3 -c")));
    }
}

/// Prints the goals for running code.
pub(crate) fn code_goals(all: &[Taken]) {
    for runc in all.iter().filter(|taken| taken.name == "runc") {
        goal("a run of `pass` over a bare fork, ms, p50", RUN_MS, runc.run.p50() - runc.fork.p50());
        let cell = runc.run_cell.p50() - runc.fork_cell.p50();
        goal("a run of a cell over the cell in a bare fork, ms, p50", RUN_MS, cell);
        goal("a cell of `pass` in a context, ms, p50", CELL_MS, runc.cell.p50());
        goal("a cell in a context over its own time, ms, p50", CELL_MS, runc.cell_over.p50());
        let first = runc.first.p50() / runc.bare_ahead.p50();
        goal("the first run, × python3 -c with the same imports", FIRST_RATIO, first);
    }
}

/// Prints the header of the table of goals.
pub(crate) fn goals_head() {
    println!("\n{:<58} {:>9} {:>9}   met", "goal on runc", "most", "measured");
}

fn goal(what: &str, most: f64, measured: f64) {
    let met = if measured <= most { "yes" } else { "no" };
    println!("{what:<58} {most:>9.2} {measured:>9.2}   {met}");
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

//! The figures of the specification: durations and memory use, all compared within one run.
//!
//! | module | holds |
//! |---|---|
//! | [`rounds`] | durations: every subject once per round, and each round starts with a different subject |
//! | [`mod@reference`] | plain `runc run` with our own configuration and mounts |
//! | [`weight`] | the memory of idle sandboxes, and the growth of this process per sandbox |
//! | [`flood`] | throughput of one exec's output |
//! | [`carry`] | throughput of file transfers in both directions |
//! | [`service`] | durations through the public API, at several levels of concurrency |
//! | [`code`] | running code, compared with a bare interpreter, its fork and a Jupyter kernel |
//! | [`samples`] | percentiles |
//! | [`report`] | the tables and the goals |
//!
//! The program does not enforce the goals: it fails only if a measurement cannot be run. Other load on the
//! machine affects all subjects of a round alike. Ratios are therefore comparable between runs, but absolute
//! durations are not.

mod carry;
mod code;
mod flood;
mod reference;
mod report;
mod rounds;
mod samples;
mod service;
mod weight;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use e2e::Lab;
use runtime::Tier;

/// Sizes and repetition counts of the measurements.
#[derive(Clone, Copy)]
struct Effort {
    /// Number of rounds, each of which measures every subject once.
    rounds: usize,
    /// Number of output bytes of the flood in a container.
    flood_bytes: u64,
    /// Number of output bytes of the flood under a user-space kernel.
    flood_bytes_kernel: u64,
    /// Size of the file that is transferred in both directions.
    carried_bytes: u64,
    /// Number of idle sandboxes on a server.
    live: usize,
    /// Number of rounds for running code.
    code: code::Often,
}

impl Effort {
    const FULL: Self = Self {
        rounds: 200,
        flood_bytes: 1 << 30,
        flood_bytes_kernel: 256 << 20,
        carried_bytes: 1_000_000_000,
        live: 300,
        code: code::Often { rounds: 200, slow: [20, 10] },
    };
    const QUICK: Self = Self {
        rounds: 20,
        flood_bytes: 128 << 20,
        flood_bytes_kernel: 128 << 20,
        carried_bytes: 100_000_000,
        live: 50,
        code: code::Often { rounds: 12, slow: [2, 0] },
    };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (effort, only_code) = match words.as_slice() {
        [] => (Effort::FULL, false),
        ["--quick"] => (Effort::QUICK, false),
        ["code"] => (Effort::FULL, true),
        ["--quick", "code"] => (Effort::QUICK, true),
        // The runtime calls this program in place of runc, to prepare the environment of a sandbox.
        ["--root", ..] => return reference::stand_in(&words),
        ["keep", bundle, state] => return reference::keep(bundle.as_ref(), state.as_ref()),
        _ => {
            eprintln!("usage: figures [--quick] [code]");
            return ExitCode::from(2);
        }
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "The figures are taken on real sandboxes and need root: run it with `just figures`, which asks for it."
        );
        return ExitCode::FAILURE;
    }
    let mut labs = vec![Lab::new("runc")];
    if is_wanted("runsc") && is_installed("runsc") {
        labs.push(Lab::new("runsc"));
    }
    let executor =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let measured = catch_unwind(AssertUnwindSafe(|| {
        executor.block_on(async {
            if only_code { measure_code(effort, &labs).await } else { measure(effort, &labs).await }
        });
    }));
    executor.block_on(tidy(&labs));
    executor.shutdown_background();
    if measured.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn measure(effort: Effort, labs: &[Lab]) {
    let [runc, ..] = labs else { return };
    report::machine(effort.rounds, runc.data());
    let mut reference = reference::Reference::prepare(runc).await;
    let times = rounds::run(effort.rounds, &mut reference, labs).await;
    reference.end().await;
    report::times(&times);

    let mut weights = Vec::new();
    let mut floods = Vec::new();
    for lab in labs {
        weights.push(weight::weigh(lab).await);
        let bytes = match lab.runtime.tier() {
            Tier::Container => effort.flood_bytes,
            Tier::UserKernel => effort.flood_bytes_kernel,
        };
        floods.push(flood::run(lab, bytes).await);
    }
    report::weights(&weights);
    report::floods(&floods);
    let names: Vec<&str> = labs.iter().map(|lab| lab.runtime.name()).collect();
    let carried = carry::run(effort.carried_bytes, &names).await;
    report::carried(&carried);
    let served = service::run(effort, runc).await;
    report::served(&served);
    let code = code::run(effort.code, &names).await;
    report::code(&code);
    report::goals(&times, &weights, &served, &carried);
    report::code_goals(&code);
}

/// Measures running code only.
async fn measure_code(effort: Effort, labs: &[Lab]) {
    let [runc, ..] = labs else { return };
    report::machine(effort.code.rounds, runc.data());
    let names: Vec<&str> = labs.iter().map(|lab| lab.runtime.name()).collect();
    let code = code::run(effort.code, &names).await;
    report::code(&code);
    report::goals_head();
    report::code_goals(&code);
}

/// Stops the sandboxes that a failed measurement left running, because this process removes their data
/// directory when it exits.
async fn tidy(labs: &[Lab]) {
    for lab in labs {
        for listed in lab.runtime.list().await.unwrap() {
            lab.runtime.stop(&listed.id, Duration::ZERO).await.unwrap();
        }
    }
}

/// Returns true if the runtime with this name should be measured. `BELLGLASS_RUNTIMES` selects runtimes, as
/// it does for tests. The container runtime is the reference and is always measured.
fn is_wanted(name: &str) -> bool {
    std::env::var("BELLGLASS_RUNTIMES").map_or(true, |list| list.split(',').any(|one| one == name))
}

/// Returns true if the runtime with this name is usable on this machine.
fn is_installed(name: &str) -> bool {
    node::Machine::flavors().into_iter().any(|flavor| flavor.name == name && flavor.find().is_ok())
}

//! The guest: process 1 of every sandbox. Static and small. The node does everything inside a sandbox through
//! it.
//!
//! | module | holds |
//! |---|---|
//! | [`init`] | process 1: reaps, dials and redials the node, exits when its dead-man timer expires |
//! | [`dial`] | one connection: the greeting and its descriptors |
//! | [`meet`] | the channel in an engine's sandbox: process 1 listens, and the node connects through a process that the engine starts |
//! | [`serve`] | the routes of the channel, and nothing else |
//! | [`table`] | the table of execs; it owns them, and requests attach and detach |
//! | [`exec`] | one exec from its start to its outcome |
//! | [`parent`] | the interpreter that Python runs are forked from |
//! | [`code`] | runs of code, as cells or in new processes |
//! | [`context`] | long-lived interpreters and their cells |
//! | [`contexts`] | all contexts of the sandbox |
//! | [`shell`] | Bash contexts |
//! | [`said`] | messages of an interpreter on its channel |
//! | [`records`] | the socket for these messages |
//! | [`launch`] | the only code that starts processes |
//! | [`descent`] | steps of a process between fork and exec |
//! | [`belonging`] | objects that the exec's user owns from the start: pipes and terminals |
//! | [`spool`] | the bounded buffer of one output stream |
//! | [`stdin`] | the standard input of an exec |
//! | [`terminal`] | the pseudo-terminal of an exec |
//! | [`spare`] | files for spools, created before user code can use up all inodes |
//! | [`output`] | the frames that a reader of an exec receives |
//! | [`ports`] | connections to servers in the sandbox |
//! | [`egress`] | outbound connections of programs in the sandbox, forwarded to the node |
//! | [`trust`] | certificate authorities that programs in the sandbox trust |
//! | [`sweep`] | finding and killing all processes of an exec by its group |
//! | [`memory`] | detection of OOM kills, and the cleanup after them |
//! | [`files`] | the files of the sandbox; a process of the sandbox's user serves each request |
//! | [`layer`] | unpacking one layer of an image, in a sandbox only for that; packing layers |
//! | [`walls`] | setting up the walls, if no runtime does |
//! | [`watched`] | descriptors that tokio polls |
//! | [`posture`] | the observable privileges of a user process |
//!
//! Invariants: there is one thread, plus one while a layer is unpacked or packed; an exec ends when its
//! process ends; the guest trusts the node and nothing else; user code never runs in this process, and no
//! descriptor of this process reaches user code except its three streams, and one end of a channel if it runs
//! code.

mod belonging;
mod code;
mod context;
mod contexts;
mod descent;
mod dial;
mod egress;
mod exec;
mod files;
mod init;
mod launch;
mod layer;
mod meet;
mod memory;
mod output;
mod parent;
mod ports;
mod posture;
mod records;
mod said;
mod serve;
mod shell;
mod spare;
mod spool;
mod stdin;
mod sweep;
mod table;
mod terminal;
mod trust;
mod walls;
mod watched;

use std::process::ExitCode;
use std::time::Duration;

use init::ConnectMethod;
use launch::Purpose;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("init") => {
            let ttl_ms = match (arguments.next().as_deref(), arguments.next()) {
                (Some("--ttl-ms"), Some(text)) => text.parse().ok(),
                _ => None,
            };
            // A missing value means deny: without a time to live, no sandbox is started.
            let Some(ttl) = ttl_ms.map(Duration::from_millis) else { return ExitCode::from(2) };
            match arguments.next().as_deref() {
                None => init::run(ttl, Purpose::Run, ConnectMethod::Dial).into(),
                Some("--rooted") => init::run(ttl, Purpose::Rooted, ConnectMethod::Dial).into(),
                Some("--build") => init::run(ttl, Purpose::Build, ConnectMethod::Dial).into(),
                Some("--listen") => init::run(ttl, Purpose::Run, ConnectMethod::Listen).into(),
                Some("--walls") => walls::put_up(ttl),
                Some(_) => ExitCode::from(2),
            }
        }
        Some("files") => files::worker::run(),
        Some("connect") => meet::connect(),
        Some("wait") => walls::visit::wait(arguments.next().and_then(|text| text.parse().ok())),
        Some("end") => walls::visit::end(arguments.next().and_then(|text| text.parse().ok())),
        Some("usage") => walls::visit::usage(),
        Some("posture") => match arguments.next().as_deref() {
            None => posture::print(),
            Some("first") => meet::print_first(),
            Some(_) => ExitCode::from(2),
        },
        Some("empty") => memory::empty(),
        _ => ExitCode::from(2),
    }
}

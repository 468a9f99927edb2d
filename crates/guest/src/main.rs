//! The guest: a small static program that runs as process 1 of every sandbox. The node performs every
//! operation inside a sandbox through it.
//!
//! | module | holds |
//! |---|---|
//! | [`init`] | process 1: reaps children, keeps a connection to the node, exits when its dead-man timer expires |
//! | [`dial`] | one connection to the node: the greeting and the descriptors sent with it |
//! | [`meet`] | the channel in an engine's sandbox: process 1 listens, and the node connects through a process that the engine starts |
//! | [`serve`] | the HTTP routes of the channel |
//! | [`guest`] | the state of process 1, which all connections share |
//! | [`lifetime`] | the time to live of the sandbox |
//! | [`table`] | the table that owns all execs; requests attach to execs and detach from them |
//! | [`exec`] | one exec, from its start to its outcome |
//! | [`processes`] | the processes that the guest starts: their isolation, groups and owners |
//! | [`groups`] | the groups by which the guest finds the processes of an exec |
//! | [`parent`] | the parent interpreter, from which Python runs are forked |
//! | [`interpreter`] | the processes that run Python code, and the messages that they receive |
//! | [`code`] | running code, as cells or in new processes |
//! | [`context`] | long-lived interpreters and their cells |
//! | [`contexts`] | all contexts of the sandbox |
//! | [`shell`] | Bash contexts |
//! | [`said`] | messages that an interpreter sends on its channel |
//! | [`records`] | the socket that carries these messages |
//! | [`launch`] | the only code that starts processes |
//! | [`descent`] | the steps that a new process performs between fork and exec |
//! | [`belonging`] | creating pipes and terminals that the exec's user owns |
//! | [`spool`] | the bounded buffer of one output stream |
//! | [`stdin`] | the standard input of an exec |
//! | [`terminal`] | the pseudo-terminal of an exec |
//! | [`spare`] | files for spools, created before user code can use up all inodes |
//! | [`output`] | the frames that a reader of an exec's output receives |
//! | [`ports`] | connections to servers in the sandbox |
//! | [`egress`] | outbound connections of programs in the sandbox, forwarded to the node |
//! | [`trust`] | certificate authorities that programs in the sandbox trust |
//! | [`sweep`] | finding and killing all processes of an exec by its group |
//! | [`memory`] | detection of OOM kills, and the cleanup after them |
//! | [`files`] | file requests, each served by a separate process |
//! | [`layer`] | unpacking one image layer, in a sandbox that exists only for this purpose; packing layers |
//! | [`walls`] | setting up the isolation in a sandbox without a runtime that does so |
//! | [`syscall`] | results of system calls |
//! | [`watched`] | file descriptors registered with tokio |
//! | [`posture`] | the observable privileges of a user process |
//!
//! Invariants:
//!
//! - Process 1 has one thread, plus one while it unpacks or packs a layer.
//! - An exec ends when its process ends.
//! - The guest trusts the node and nothing else.
//! - User code never runs in process 1. It gets no descriptor of process 1 except its three standard streams
//!   and, if it was started as code rather than as a command, one end of its channel to process 1.

mod belonging;
mod code;
mod context;
mod contexts;
mod descent;
mod dial;
mod egress;
mod exec;
mod files;
mod groups;
mod guest;
mod init;
mod interpreter;
mod launch;
mod layer;
mod lifetime;
mod meet;
mod memory;
mod output;
mod parent;
mod ports;
mod posture;
mod processes;
mod records;
mod said;
mod serve;
mod shell;
mod spare;
mod spool;
mod stdin;
mod sweep;
mod syscall;
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
            // Fail closed: without a valid time to live, the sandbox does not start.
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

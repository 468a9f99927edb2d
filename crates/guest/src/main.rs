//! The guest: process 1 of every sandbox. Static, small, and the node's only ear and hand inside.
//!
//! | module | holds |
//! |---|---|
//! | [`init`] | process 1: reaps, dials the node and redials, ends by its dead-man timer |
//! | [`dial`] | one connection: the greeting and the descriptors that come with it |
//! | [`meet`] | the same where an engine runs the sandbox: process 1 listens, and who is brought in by the engine calls |
//! | [`serve`] | the routes of the channel, and nothing else |
//! | [`table`] | the execs there are; it owns them, requests attach and leave |
//! | [`exec`] | one exec from its start to its outcome |
//! | [`parent`] | the interpreter that runs of Python are forked from |
//! | [`code`] | runs of code that leave nothing but files |
//! | [`context`] | interpreters that stay, and their cells |
//! | [`contexts`] | those there are |
//! | [`shell`] | contexts of Bash |
//! | [`said`] | what an interpreter says on its channel |
//! | [`records`] | the socket on which it says it |
//! | [`launch`] | the one place that makes a process |
//! | [`descent`] | what a process does to itself before it becomes a program |
//! | [`belonging`] | what belongs to the exec's user from the beginning: pipes and terminals |
//! | [`spool`] | the bounded store of one output stream |
//! | [`stdin`] | the standard input of an exec |
//! | [`terminal`] | the pseudo-terminal of an exec |
//! | [`spare`] | files for spools, made before user code can take every inode |
//! | [`output`] | the frames a reader of an exec gets |
//! | [`ports`] | connections to what listens inside |
//! | [`egress`] | the way out: connections of programs inside, handed to the node |
//! | [`trust`] | whom programs inside are told to trust |
//! | [`sweep`] | finding and ending all processes of an exec by its group |
//! | [`memory`] | telling that memory was used up, and tidying after it |
//! | [`files`] | the files of the sandbox, each request served by a process of its user |
//! | [`layer`] | unpacking one layer of an image, in a sandbox made for nothing else; packing one |
//! | [`walls`] | putting up the walls, where nobody else does |
//! | [`watched`] | descriptors that tokio waits on |
//! | [`posture`] | what a user process can see of its own privileges |
//!
//! Invariants: one thread, and one more while a layer is unpacked or packed; an exec ends when its process ends; the guest
//! trusts the node and nothing else; user code never runs in this process, and no descriptor of this process reaches
//! user code except the three it is given, and one end of a channel where it runs code.

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

use init::Way;
use launch::Purpose;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("init") => {
            let ttl_ms = match (arguments.next().as_deref(), arguments.next()) {
                (Some("--ttl-ms"), Some(text)) => text.parse().ok(),
                _ => None,
            };
            // Empty means deny: without a time to live there is no sandbox.
            let Some(ttl) = ttl_ms.map(Duration::from_millis) else { return ExitCode::from(2) };
            match arguments.next().as_deref() {
                None => init::run(ttl, Purpose::Run, Way::Dial).into(),
                Some("--rooted") => init::run(ttl, Purpose::Rooted, Way::Dial).into(),
                Some("--build") => init::run(ttl, Purpose::Build, Way::Dial).into(),
                Some("--listen") => init::run(ttl, Purpose::Run, Way::Listen).into(),
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

//! The attacks of `attacks/`, each in three acts: the control shows the payload reaching past the point where its
//! defence stops it, the sandbox withstands it, and a harmless command works afterwards.
//!
//! | module | attacks |
//! |---|---|
//! | [`exhaustion`] | C: using up processes, memory, disk, files |
//! | [`kernel`], [`devices`] | K: what the kernel offers and a sandbox does not |
//! | [`supervision`], [`inheritance`] | A: the guest, its channel, and the ends of execs; what an exec gets from who starts it |
//! | [`terminals`] | A-15: too many, too large, torn and flooded |
//! | [`setup`] | R: how runtimes were broken before: root file systems that lie, planted links, sockets without a file |
//! | [`output`] | O: what a process writes, without end, without lines, without meaning |
//! | [`group`] | G: shedding the group by which an exec's processes are found |
//! | [`interpreter`] | I: the interpreter that runs of code are forked from, and its channel |
//! | [`field`] | what all of them stand on: payloads, and the host before and after |
//! | [`room`] | where controls run: plain runc in namespaces of its own, with the defences off |
//!
//! Controls run as users that own nothing on the host, on copies, and under limits. No limit is ever removed.

// A test fails by panicking, and what it prints is the table of results.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod devices;
mod engine;
mod exhaustion;
mod field;
mod group;
mod inheritance;
mod interpreter;
mod kernel;
mod output;
mod room;
mod setup;
mod supervision;
mod terminals;

//! The attacks of `attacks/`, each in three acts: the control shows the payload reaching past the point where its
//! defence stops it, the sandbox withstands it, and a harmless command works afterwards.
//!
//! | module | attacks |
//! |---|---|
//! | [`exhaustion`] | C: using up processes, memory, disk, files |
//! | [`kernel`], [`devices`] | K: what the kernel offers and a sandbox does not |
//! | [`supervision`], [`inheritance`] | A: the guest, its channel, and the ends of execs; what an exec gets from who starts it |
//! | [`tables`] | C-30 to C-37: tables of the kernel that one sandbox uses up |
//! | [`terminals`] | A-15: too many, too large, torn and flooded |
//! | [`setup`] | R: how runtimes were broken before: root file systems that lie, planted links, sockets without a file |
//! | [`output`] | O: what a process writes, without end, without lines, without meaning |
//! | [`group`] | G: shedding the group by which an exec's processes are found |
//! | [`neighbour`] | X: inodes that two sandboxes share, and names of the host |
//! | [`interpreter`] | I: the interpreter that runs of code are forked from, and its channel |
//! | [`identity`] | I-11, A-22: the image's Python as root; root that leaves its exec |
//! | [`sentry`] | I-12, A-23, C-38: what differs under a kernel in user space |
//! | [`full`] | O-20: output on a disk that is full |
//! | [`archives`] | I-10, I-13, I-14: images that engines are given, and what they put into a sandbox |
//! | [`field`] | what all of them stand on: payloads, and the host before and after |
//! | [`room`] | where controls run: plain runc in namespaces of its own, with the defences off |
//!
//! Controls run as users that own nothing on the host, on copies, and under limits. No limit is ever removed.

mod archives;
mod devices;
mod engine;
mod exhaustion;
mod field;
mod full;
mod group;
mod identity;
mod inheritance;
mod interpreter;
mod kernel;
mod neighbour;
mod output;
mod room;
mod sentry;
mod setup;
mod supervision;
mod tables;
mod terminals;

//! The attacks of `attacks/` on sandboxes. Each test has three parts. The control shows that the payload
//! works without the defence, the sandbox then withstands the payload, and finally a harmless command still
//! works.
//!
//! | module | attacks |
//! |---|---|
//! | [`exhaustion`] | C: exhaustion of processes, memory, disk and files |
//! | [`kernel`], [`devices`] | K: kernel interfaces that a sandbox must not reach |
//! | [`supervision`], [`inheritance`] | A: the guest, its channel, the end of execs, and the state that an exec inherits |
//! | [`tables`] | C-30 to C-37: kernel tables that one sandbox could exhaust |
//! | [`terminals`] | A-15: too many terminals, and oversized, disconnected and flooded terminals |
//! | [`setup`] | R: known attacks on runtimes: malicious root file systems, planted links, abstract sockets |
//! | [`output`] | O: output that is endless, has no line breaks, or is not text |
//! | [`group`] | G: leaving the group that identifies the processes of an exec |
//! | [`neighbour`] | X: inodes that two sandboxes share, and names of the host |
//! | [`interpreter`] | I: the interpreter from which runs of code are forked, and its channel |
//! | [`identity`] | I-11, A-22: the image's Python as root, and root processes that leave their exec |
//! | [`sentry`] | I-12, A-23, C-38: attacks that are specific to a user-space kernel |
//! | [`full`] | O-20: output on a full disk |
//! | [`archives`] | I-10, I-13, I-14: images that engines import, and files that engines add to a sandbox |
//! | [`rooted`] | controls of the attacks by root of a sandbox, A-21 and U-12 |
//! | [`host`] | the state of the host before and after an attack |
//! | [`said`] | output of a payload |
//! | [`field`] | setup that all of them share: payloads, sandboxes and a witness |
//! | [`room`] | environment of the controls: plain runc in separate namespaces, with the defences off |
//!
//! Controls run on copies, under limits, and as users that own nothing on the host. No control removes a
//! limit.

mod archives;
mod devices;
mod engine;
mod exhaustion;
pub(crate) mod field;
mod full;
mod group;
mod host;
mod identity;
mod inheritance;
mod interpreter;
mod kernel;
mod neighbour;
mod output;
pub(crate) mod room;
pub(crate) mod rooted;
pub(crate) mod said;
mod sentry;
mod setup;
mod supervision;
mod tables;
mod terminals;

//! One machine: sandboxes, the channels to their guests, and the templates they are made from.
//!
//! | module | holds |
//! |---|---|
//! | [`live`] | all sandboxes of this machine: admitted, found, stopped, taken over from a server that is gone |
//! | `recovery` | what a server finds when it starts, and what it does about it |
//! | [`lifecycle`] | the life of one sandbox, as a pure function |
//! | [`plan`] | what an order comes to here, and whether a sandbox is ready for it |
//! | `order` | what a runtime is to make of a sandbox, and which runtime |
//! | `driver`, `entry` | one task for each sandbox, and what everybody else sees of it |
//! | [`journal`] | what this machine was asked to keep, written before it is made |
//! | [`pool`] | sandboxes that are ready before anybody asks for one |
//! | [`admission`] | whether there is room for one more |
//! | `turns` | whose turn it is to start one |
//! | `update` | the one way to change the record of a sandbox |
//! | [`clock`] | the clock that no one can set |
//! | [`sandbox`] | one sandbox from start to stop, its posture checked before anything runs in it |
//! | [`link`] | the host end of the channel: one connection after the other, requests that outlive them |
//! | [`port`] | a connection to a port inside |
//! | [`egress`] | what leaves sandboxes, given to the broker |
//! | [`secrets`] | secrets: placeholders inside, and whom to ask for values |
//! | [`exec`] | one exec as seen from here: its output from any offset, its one outcome |
//! | [`code`] | running code: what interpreters begin with, and contexts |
//! | [`files`] | files of a sandbox, as they are asked for from here |
//! | [`artifacts`] | files of a run that are kept after its sandbox is gone |
//! | [`folder`] | what sessions keep, whatever becomes of their sandboxes |
//! | [`datasets`] | files that are put into a sandbox before anything runs in it |
//! | `objects` | bytes that are kept by their key |
//! | [`template`] | what sandboxes are made from: imported, built, kept, tidied |
//! | [`token`] | tokens of a sandbox, each kind a type of its own |
//! | [`guest`] | the guest's executable, carried inside this one |
//! | [`backend`] | which way of isolating is used, why, and why not the others |
//! | [`machine`] | this machine: where things are kept, which runtimes there are, tidying after the dead |
//! | [`error`] | why something failed, and how that is said outside |
//!
//! Invariants: every byte from a guest is hostile; every wait has a deadline; an exec is never reported as ended
//! well unless its guest said so.

#![forbid(unsafe_code)]

pub mod admission;
pub mod artifacts;
pub mod backend;
pub mod clock;
pub mod code;
mod culprit;
pub mod datasets;
mod driver;
pub mod egress;
mod entry;
pub mod error;
pub mod exec;
pub mod files;
pub mod folder;
pub mod guest;
pub mod journal;
mod ledger;
pub mod lifecycle;
pub mod link;
pub mod live;
pub mod machine;
mod objects;
mod order;
pub mod plan;
pub mod pool;
pub mod port;
pub mod ready;
mod recovery;
pub mod sandbox;
pub mod secrets;
pub mod template;
pub mod token;
mod turns;
mod update;

pub use datasets::Putting;
pub use entry::Call;
pub use error::Error;
pub use exec::{Collected, Event, Exec};
pub use files::{Files, Piece, Reading, Watching, Writing};
pub use folder::{Folder, Manifest};
pub use journal::AutoResume;
pub use live::Node;
pub use machine::Machine;
pub use objects::{Incoming, Outgoing};
pub use plan::{Order, Plan};
pub use pool::Claim;
pub use port::Port;
pub use sandbox::Sandbox;

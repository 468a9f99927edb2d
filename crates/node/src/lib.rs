//! One machine: sandboxes, the channels to their guests, and the templates they are made from.
//!
//! | module | holds |
//! |---|---|
//! | [`Node`] | all sandboxes of this machine: created, found, called, paused, stopped, recovered after a restart |
//! | `shared` | what the drivers of all sandboxes share |
//! | `driver` | one task for each sandbox, which alone changes its state |
//! | `update` | the one way to change the record of a sandbox |
//! | `order` | what a runtime is to create, and which runtime |
//! | [`pool`] | sandboxes that are ready before anybody asks for one |
//! | [`artifacts`] | files of a run that are kept after its sandbox has ended |
//! | [`Call`] | one use of a sandbox by a caller |
//! | `handle` | one sandbox as everybody but its driver sees it |
//! | `message` | messages to a driver |
//! | [`plan`] | what a request comes to on this machine |
//! | [`ready`] | what a template runs from the start, and when its sandbox is ready |
//! | [`lifecycle`] | the life of one sandbox, as a pure function |
//! | [`journal`] | the records of sandboxes, written before anything is created |
//! | `turns` | the order in which starts and launches take place |
//! | `orphan` | removal of what processes that died left here |
//! | [`egress`] | decisions about connections that leave sandboxes |
//! | [`secrets`] | placeholders of secrets inside, and where their values come from |
//! | [`folder`] | the stored files of a session |
//! | [`datasets`] | files that are put into a sandbox before anything runs in it |
//! | [`token`] | tokens of a sandbox, each kind with its own type |
//!
//! The crates below do the work on one sandbox: `host` (this machine), `guest_client` (the channel), `template`. What appears in the
//! signatures of this crate is exported again here.
//!
//! Invariants: every byte from a guest is hostile; every wait has a deadline; an exec is never reported as ended
//! well unless its guest said so.

#![forbid(unsafe_code)]

pub mod artifacts;
mod call;
pub mod datasets;
mod driver;
pub mod egress;
pub mod folder;
mod handle;
pub mod journal;
pub mod lifecycle;
mod message;
mod node;
mod order;
mod orphan;
pub mod plan;
pub mod pool;
pub mod ready;
pub mod secrets;
mod shared;
pub mod token;
mod turns;
mod update;

pub use call::Call;
pub use datasets::Putting;
pub use folder::{Folder, Manifest};
pub use guest_client::{Collected, Event, Exec, Files, Piece, Port, Reading, Sandbox, Watching, Writing};
pub use handle::not_running;
pub use host::objects::{Incoming, Outgoing};
pub use host::{Error, Machine, admission, backend, clock, error, machine};
pub use journal::AutoResume;
pub use node::Node;
pub use orphan::{remove_orphans, remove_unused_layers};
pub use plan::{Order, Plan};
pub use pool::Claim;
pub use template;

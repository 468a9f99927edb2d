//! The node: the sandboxes of one machine, the channels to their guests, and the templates from which they
//! are created.
//!
//! | module | holds |
//! |---|---|
//! | [`Node`] | all sandboxes of this machine: creation, lookup, calls, pauses, stops, and recovery after a restart |
//! | `shared` | state that the drivers of all sandboxes share |
//! | `driver` | one task for each sandbox, which alone changes its state |
//! | `update` | the only way to change the record of a sandbox |
//! | `order` | the spec of a sandbox for its runtime, and the choice of that runtime |
//! | [`pool`] | pre-warmed sandboxes, which are ready before they are requested |
//! | [`artifacts`] | files of a run that are kept after its sandbox has ended |
//! | [`Call`] | one use of a sandbox by a caller |
//! | `handle` | the handle of one sandbox, shared by its driver and all other tasks |
//! | `message` | messages to a driver |
//! | [`plan`] | the template, limits and runtime that an order resolves to on this machine |
//! | [`ready`] | the `start` and `ready` commands of a template |
//! | [`lifecycle`] | the state machine of one sandbox, as a pure function |
//! | [`journal`] | the records of sandboxes, written before anything is created |
//! | `turns` | scheduling of sandbox starts and command launches |
//! | `orphan` | removal of sandboxes and layers that dead processes left behind on this machine |
//! | [`egress`] | decisions about outgoing connections of sandboxes |
//! | [`secrets`] | placeholders of secrets, and access to the vault |
//! | [`folder`] | the stored files of a session |
//! | [`datasets`] | stored files that are copied into a sandbox before its first run |
//! | [`token`] | tokens of a sandbox, each kind with its own type |
//!
//! Three other crates do the work on a single sandbox: `host` (this machine), `guest_client` (the channel)
//! and `template`. Types from these crates that appear in public signatures are re-exported here.
//!
//! Invariants: every byte from a guest is untrusted. Every wait has a deadline. An exec is reported as
//! successful only if its guest reported it as successful.

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
pub use guest_client::{
    Collected, Event, Exec, FileDownload, FileUpload, Files, Port, ReadChunk, Sandbox, Watching,
};
pub use handle::not_running;
pub use host::objects::{Incoming, Outgoing};
pub use host::{Error, Machine, admission, backend, clock, error, machine};
pub use journal::AutoResume;
pub use node::Node;
pub use orphan::{remove_orphans, remove_unused_layers};
pub use plan::{Order, Plan};
pub use pool::Claim;
pub use template;

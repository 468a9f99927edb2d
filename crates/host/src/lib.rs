//! Manages the machine that a server runs on: its directories, runtimes and capacity, and the guest's
//! executable. This crate does not communicate with running sandboxes.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the data directory, this machine's runtimes, and the removal of sandboxes that dead processes left behind |
//! | [`backend`] | the choice of a runtime, with the reason for each rejected backend |
//! | [`guest`] | the guest's executable, which is embedded in the server's executable |
//! | [`admission`] | the decision whether there is capacity for one more sandbox |
//! | [`ledger`] | the number of bytes that each project stores |
//! | [`objects`] | an object store: bytes stored by key |
//! | [`clock`] | a clock that cannot be set |
//! | [`error`] | errors that occur on this machine, and their representation for clients |

#![forbid(unsafe_code)]

pub mod admission;
pub mod backend;
pub mod clock;
pub mod error;
pub mod guest;
pub mod ledger;
pub mod machine;
pub mod objects;

pub use error::Error;
pub use machine::Machine;

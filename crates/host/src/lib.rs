//! One machine: its directories, its runtimes, its capacity, and the guest's executable. Knows nothing of a running sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the data directory, the runtimes of this machine, removal of what dead processes left |
//! | [`backend`] | the choice of a runtime, with the reason for each one that was rejected |
//! | [`guest`] | the guest's executable, which is embedded in this one |
//! | [`admission`] | whether there is capacity for one more sandbox |
//! | [`ledger`] | the bytes that each project stores |
//! | [`objects`] | bytes that are stored by key |
//! | [`clock`] | the clock that nobody can set |
//! | [`error`] | errors of this machine, and the form in which clients see them |

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

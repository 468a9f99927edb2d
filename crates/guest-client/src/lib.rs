//! The host end of the channel to one sandbox. All input from a guest is treated as hostile.
//!
//! | module | holds |
//! |---|---|
//! | [`sandbox`] | one sandbox from start to stop; its confinement is verified before anything runs in it |
//! | [`link`] | the channel: a sequence of connections, and requests that survive a broken connection |
//! | [`exec`] | one exec: its output from any offset, and its single outcome |
//! | [`interpreter`] | the interpreter of a sandbox, and contexts |
//! | [`files`] | the files of a sandbox |
//! | [`port`] | a connection to a port inside a sandbox |
//! | [`egress`] | outbound connections of a sandbox, passed to the broker |

#![forbid(unsafe_code)]

pub mod egress;
pub mod exec;
pub mod files;
pub mod interpreter;
pub mod link;
pub mod port;
pub mod sandbox;

pub use api::output::{Collected, Event};
pub use exec::Exec;
pub use files::{FileDownload, FileUpload, Files, ReadChunk, Watching};
pub use port::Port;
pub use sandbox::Sandbox;

//! Authority over HTTP: the extractors by which a handler states its need, and the table of routes that enforces it.
//!
//! | module | contents |
//! |---|---|
//! | [`caller`] | the extractors for an API key of some role, and for none |
//! | [`table`] | routes, registered together with the need that their handler's first argument states |
//! | [`cut`] | bodies of requests and responses that end when their key is revoked or expires |
//!
//! Invariant: a handler cannot be registered unless the type of its first argument states its need.

pub mod caller;
pub mod cut;
pub mod table;

pub use caller::{Admin, Anyone, Caller, Read, Write};
pub use control::authority::{Credential, FileAct, Grant, Need, Reach};

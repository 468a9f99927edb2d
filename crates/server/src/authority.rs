//! Authorization over HTTP. The type of a handler's first argument states the handler's need, that is, the
//! credential that callers must present.
//!
//! | module | contents |
//! |---|---|
//! | [`caller`] | extractors for requests that need an API key with some role, and for requests that need none |
//! | [`table`] | the route table, which registers each handler with the need that its first argument states |
//! | [`cut`] | request and response bodies that end when their key is revoked or expires |
//!
//! Invariant: a handler cannot be registered unless the type of its first argument states its need.

pub mod caller;
pub mod cut;
pub mod table;

pub use caller::{Admin, Anyone, Caller, Read, Write};
pub use control::authority::{Credential, FileAct, Grant, Need, Reach};

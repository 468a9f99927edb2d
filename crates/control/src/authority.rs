//! Authority: what turns the credential of a request into a grant, and what every route needs.
//!
//! | module | holds |
//! |---|---|
//! | [`secret`] | API keys and tickets: how they are written, parsed, hashed |
//! | [`grant`] | the grant of a request, and the need of a route |
//! | [`caller`] | the extractors by which handlers of the API state their need: a key of some role, or nothing |
//! | [`table`] | routes, registered together with the need that their handler's first argument states |
//! | [`cut`] | bodies of requests and responses that end when their key is revoked or expires |
//! | [`lookups`] | how many keys are looked up at once |
//! | [`failures`] | how much of wrong keys is written to the audit log |
//!
//! Tokens of sandboxes are in [`node::token`], the extractors for them beside the routes that take them
//! ([`crate::e2b`], [`crate::ports`]).
//!
//! Invariants: each kind of credential is a type with a lookup of its own, and no text is looked up as two of them; a handler
//! cannot be registered unless the type of its first argument states what it needs; no credential is derived from another,
//! except E2B's file signature, which reaches one path, one act and one user until its expiry.

pub mod caller;
pub mod cut;
pub mod failures;
pub mod grant;
pub mod lookups;
pub mod secret;
pub mod table;

pub use caller::{Admin, Anyone, Caller, Read, Write};
pub use grant::{Credential, FileAct, Grant, Need, Reach};

//! Authority: the grant that a credential gives a request, and the need of a route.
//!
//! | module | contents |
//! |---|---|
//! | [`grant`] | the grant of a request, and the need of a route |
//! | [`lookups`] | the maximum number of key lookups at the same time |
//! | [`failures`] | the rate of audit log entries about wrong keys |
//!
//! Tokens of sandboxes are in [`node::token`]. The extractors that turn requests into grants are in the crates `server` and `e2b`.
//!
//! Invariants: each kind of credential is a type with a lookup of its own, and no text is looked up as two of them; no credential is
//! derived from another, except E2B's file signature, which reaches one path, one act and one user until its expiry.

pub mod failures;
pub mod grant;
pub mod lookups;

pub use grant::{Credential, FileAct, Grant, Need, Reach};

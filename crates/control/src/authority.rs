//! Authority: the grant that a request receives for its credential, and the need that a route declares.
//!
//! | module | contents |
//! |---|---|
//! | [`grant`] | the grant of a request, and the need of a route |
//! | [`lookups`] | the limit on concurrent key lookups |
//! | [`failures`] | the rate limit for audit log entries about invalid keys |
//!
//! Sandbox tokens are defined in [`node::token`]. The extractors that turn requests into grants are in the
//! crates `server` and `e2b`.
//!
//! Invariants: Each kind of credential is a separate type with its own lookup, and no text is ever looked up
//! as more than one kind. No credential is derived from another, except E2B's file signature, which permits
//! one operation on one path as one user until it expires.

pub mod failures;
pub mod grant;
pub mod lookups;

pub use grant::{Credential, FileAct, Grant, Need, Reach};

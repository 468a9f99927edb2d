//! Authorization. A route declares a need (the credential that it requires); a request receives a grant (the
//! rights that its credential gives).
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
//! Invariants: Each kind of credential is a separate type with its own lookup, and the server never looks up
//! the same text as two kinds. No credential is derived from another, except E2B's file signature, which
//! permits one operation on one path as one user until it expires.

pub mod failures;
pub mod grant;
pub mod lookups;

pub use grant::{Credential, FileAct, Grant, Need, Reach};

//! Authority: conversion of a request's credential into a grant, and the need of every route.
//!
//! | module | holds |
//! |---|---|
//! | [`secret`] | API keys and tickets: formatting, parsing, hashing |
//! | [`grant`] | grants of requests and needs of routes |
//! | [`caller`] | extractors with which API handlers state their need: a key of some role, or nothing |
//! | [`table`] | routes, registered with the need that the first argument of their handler states |
//! | [`cut`] | request and response bodies that are aborted when their key is revoked or expires |
//! | [`lookups`] | limit on concurrent key lookups |
//! | [`failures`] | rate limit for audit entries about invalid keys |
//!
//! Tokens of sandboxes are in [`node::token`]; their extractors are next to the routes that accept them
//! ([`crate::e2b`], [`crate::ports`]).
//!
//! Invariants: each kind of credential is a type with its own lookup, and no text is looked up as two kinds; a handler
//! cannot be registered unless the type of its first argument states its need; no credential is derived from another,
//! except E2B's file signature, which permits one operation on one path as one user until it expires.

pub mod caller;
pub mod cut;
pub mod failures;
pub mod grant;
pub mod lookups;
pub mod secret;
pub mod table;

pub use caller::{Admin, Anyone, Caller, Read, Write};
pub use grant::{Credential, FileAct, Grant, Need, Reach};

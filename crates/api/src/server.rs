//! What the server says of itself, and the words of its HTTP that are not bodies.

use serde::{Deserialize, Serialize};

/// The version of the public API. A request may name the one it was written for; another one is refused.
pub const API_VERSION: u32 = 1;
/// The header in which a client names the version it speaks, and a server its own.
pub const VERSION_HEADER: &str = "belljar-version";
/// The header that makes a create or an exec happen once, however often it is sent.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// The longest idempotency key.
pub const IDEMPOTENCY_BYTES_MAX: usize = 255;
/// A stream says something at least this often, so that nothing between takes it for dead.
pub const HEARTBEAT_MS: u64 = 5000;
/// The most items of one page.
pub const PAGE_MAX: u32 = 1000;
/// The items of a page, unless another number is asked for.
pub const PAGE: u32 = 100;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items, the newest first.
    pub items: Vec<T>,
    /// What to ask for as `cursor` to get the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// How the machine is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// Whether new sandboxes are refused because it is being emptied.
    pub draining: bool,
    /// Sandboxes that are starting, running or stopping.
    pub sandboxes: u32,
    /// The most there may be.
    pub sandboxes_max: u32,
    /// Memory of the machine that is free for more.
    pub memory_free_bytes: u64,
    /// Disk of the machine that is free for more.
    pub disk_free_bytes: u64,
    /// The runtimes it has, the weakest wall first.
    pub runtimes: Vec<String>,
    /// The ways to isolate that were considered when the server started.
    #[serde(default)]
    pub backends: Vec<BackendStatus>,
    /// Sandboxes that are ready before anybody asks for one.
    #[serde(default)]
    pub pool: Vec<PoolStatus>,
}

/// Sandboxes of one kind that are made ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolStatus {
    /// Their template.
    pub template: String,
    /// What isolates them.
    pub runtime: String,
    /// Their limit of memory: the others may differ, too.
    pub memory_bytes: u64,
    /// How many are ready.
    pub ready: u32,
    /// How many are being made.
    pub making: u32,
    /// How many there should be, by what was asked for in the last minutes.
    pub wanted: u32,
    /// Requests that found one ready, since the server began.
    pub warm: u64,
    /// Requests that did not.
    pub cold: u64,
}

/// A way to isolate, and whether it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BackendStatus {
    /// Its name: `oci`, `podman`, `docker`.
    pub name: String,
    /// Whether it is used.
    pub used: bool,
    /// Why, or why not.
    pub why: String,
    /// What to do to use it; empty where there is nothing to be done.
    pub fix: String,
    /// What a sandbox has elsewhere and not here, in one line each.
    pub lacks: Vec<String>,
}

/// A request to empty the machine, or to use it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Whether new sandboxes are to be refused.
    pub draining: bool,
}

/// How much of standard input has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Received {
    /// Bytes from the first on.
    pub received: u64,
}

/// How many processes got a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Signaled {
    /// Processes of the exec that were there.
    pub processes: u32,
}

/// Whether the server works: it lately started a sandbox, ran something in it and stopped it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// Whether all of it works.
    pub ok: bool,
    /// Whether the store answers.
    pub store: bool,
    /// Whether the last sandbox that was tried worked.
    pub sandbox: bool,
    /// How long ago that was, in milliseconds.
    pub tried_ms_ago: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

//! Status of the server, and headers and bounds of its HTTP API.

use serde::{Deserialize, Serialize};

/// Version of the public API. A request that names a different version is rejected.
pub const API_VERSION: u32 = 1;
/// Header with the API version, in requests and in responses.
pub const VERSION_HEADER: &str = "bellglass-version";
/// Header with the idempotency key. With it, a repeated create or exec request takes effect only once.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Maximum length of an idempotency key.
pub const IDEMPOTENCY_BYTES_MAX: usize = 255;
/// Maximum time without data on a stream, so that proxies do not close the stream as idle.
pub const HEARTBEAT_MS: u64 = 5000;
/// Maximum number of items on one page.
pub const PAGE_MAX: u32 = 1000;
/// Default number of items on one page.
pub const PAGE: u32 = 100;

/// Page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// Items of this page.
    pub items: Vec<T>,
    /// Cursor of the next page. Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Status of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// True if the machine is being drained and rejects new sandboxes.
    pub draining: bool,
    /// Number of sandboxes that are starting, running or stopping.
    pub sandboxes: u32,
    /// Maximum number of sandboxes.
    pub sandboxes_max: u32,
    /// Memory available for more sandboxes, in bytes.
    pub memory_free_bytes: u64,
    /// Disk space available for more sandboxes, in bytes.
    pub disk_free_bytes: u64,
    /// Available runtimes, weakest isolation first.
    pub runtimes: Vec<String>,
    /// Isolation backends considered when the server started.
    #[serde(default)]
    pub backends: Vec<BackendStatus>,
    /// Pools of pre-warmed sandboxes.
    #[serde(default)]
    pub pool: Vec<PoolStatus>,
}

/// Pool of pre-warmed sandboxes of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolStatus {
    /// Template of the sandboxes.
    pub template: String,
    /// Runtime of the sandboxes.
    pub runtime: String,
    /// Memory limit of the sandboxes in bytes. Pools may differ in other limits too.
    pub memory_bytes: u64,
    /// Number of sandboxes that are ready.
    pub ready: u32,
    /// Number of sandboxes that are being created.
    pub making: u32,
    /// Target number of sandboxes, based on the requests of the last minutes.
    pub wanted: u32,
    /// Number of requests since the server started that found a ready sandbox.
    pub warm: u64,
    /// Number of requests since the server started that found no ready sandbox.
    pub cold: u64,
}

/// Isolation backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BackendStatus {
    /// Backend name, such as `oci`, `podman` or `docker`.
    pub name: String,
    /// True if the server uses the backend.
    pub used: bool,
    /// Reason why the backend is used or not used.
    pub why: String,
    /// Action that makes the backend usable. Empty if there is nothing to do.
    pub fix: String,
    /// Features that sandboxes have on other backends but not on this one, one line each.
    pub lacks: Vec<String>,
}

/// Drain state of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// True to reject new sandboxes, false to accept them again.
    pub draining: bool,
}

/// Progress of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Received {
    /// Total bytes of standard input received so far.
    pub received: u64,
}

/// Result of sending a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Signaled {
    /// Number of processes of the exec that received the signal.
    pub processes: u32,
}

/// Health of the server: the result of starting a test sandbox, running something in it and stopping it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// True if everything works.
    pub ok: bool,
    /// True if the store responds.
    pub store: bool,
    /// True if the last test sandbox worked.
    pub sandbox: bool,
    /// Time since the last test, in milliseconds.
    pub tried_ms_ago: u64,
    /// Duration of the last test, in milliseconds.
    pub took_ms: u64,
}

//! Projects, their quotas and their keys.

use serde::{Deserialize, Serialize};

/// Tenant that owns keys, sandboxes and a quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Project {
    /// Project name, in the format of an ID: a lower-case letter, then up to 39 lower-case letters and digits.
    pub name: String,
    /// Resource quota.
    pub quota: Quota,
    /// Creation time, Unix time in milliseconds.
    pub created_at_ms: u64,
}

/// Resource quota of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Maximum number of live sandboxes. Default 100.
    pub sandboxes: u32,
    /// Maximum sum of the memory limits of live sandboxes, in bytes. Default 256 GiB.
    pub memory_bytes: u64,
    /// Maximum sum of the disk limits of live sandboxes, in bytes. Default 256 GiB. The same limit applies separately to all data stored on
    /// the machine: datasets, session files and artifacts, including uploads in progress.
    pub disk_bytes: u64,
    /// Requests per second that create a sandbox, with bursts of up to ten times this number after a pause. Default 20.
    pub creates_per_second: u32,
    /// Requests per second that start an exec, with bursts of up to twice this number after a pause. Default 1,000.
    pub execs_per_second: u32,
    /// Allow egress policies that set `open`. Default false.
    pub open: bool,
    /// Allow commands to run as root of the sandbox's own user namespace, if the template is a workstation. Default false.
    pub root: bool,
}

/// Settings of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutProject {
    /// Resource quota. Omitted fields are set to their defaults.
    #[serde(default)]
    pub quota: Quota,
}

/// Permissions of a key. Each role includes the permissions of the previous role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read access to the project's sandboxes.
    Read,
    /// Create, use and stop sandboxes.
    #[default]
    Write,
    /// Manage projects and keys, drain the machine, read metrics and the audit log.
    Admin,
}

/// API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Key {
    /// Key ID. It is not secret; the audit log identifies keys by their ID.
    pub id: String,
    /// Project that the key belongs to.
    pub project: String,
    /// Permissions of the key.
    pub role: Role,
    /// Label chosen at creation.
    pub label: String,
    /// Last four characters of the secret.
    pub hint: String,
    /// Creation time, Unix time in milliseconds.
    pub created_at_ms: u64,
    /// Expiry, Unix time in milliseconds. Absent if the key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Time of the last use, Unix time in milliseconds, accurate to a minute. Absent if the key was never used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at_ms: Option<u64>,
}

/// Parameters of a new key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Project that the key belongs to.
    pub project: String,
    /// Permissions of the key. Default `write`.
    #[serde(default)]
    pub role: Role,
    /// Human-readable label, at most 200 bytes.
    #[serde(default)]
    pub label: String,
    /// Lifetime in milliseconds. If absent, the key does not expire.
    #[serde(default)]
    pub valid_ms: Option<u64>,
}

/// Rotation of a key. The new key has the same project, role, label and lifetime as the old key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RotateKey {
    /// Time for which the old key stays valid, in milliseconds, so that clients can switch over. Default 0, maximum 7 days.
    pub overlap_ms: u64,
}

/// Maximum time for which both keys of a rotation are valid.
pub const OVERLAP_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Newly created key with its secret. The secret is shown only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NewKey {
    /// Key.
    pub key: Key,
    /// Secret: `bgk_` and 64 lower-case hexadecimal digits. E2B's SDKs require the prefix `e2b_`; the same digits with this prefix are the
    /// same key.
    pub secret: String,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sandboxes: 100,
            memory_bytes: 256 << 30,
            disk_bytes: 256 << 30,
            creates_per_second: 20,
            execs_per_second: 1000,
            open: false,
            root: false,
        }
    }
}

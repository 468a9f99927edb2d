//! Projects and keys: who may ask, and for how much.

use serde::{Deserialize, Serialize};

/// A tenant: owns keys, sandboxes and a quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Project {
    /// Its name, written like an id.
    pub name: String,
    /// How much it may have at once.
    pub quota: Quota,
    /// When it was made, in milliseconds since 1970.
    pub created_at_ms: u64,
}

/// How much a project may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Live sandboxes.
    pub sandboxes: u32,
    /// The memory limits of its live sandboxes, added up.
    pub memory_bytes: u64,
    /// The disks of its live sandboxes, added up.
    pub disk_bytes: u64,
    /// Requests that create a sandbox, in one second; ten times as many at once after a pause.
    pub creates_per_second: u32,
    /// Requests that start an exec, in one second; twice as many at once after a pause.
    pub execs_per_second: u32,
    /// Whether its sandboxes may have a policy that is `open`.
    pub open: bool,
    /// Whether root of the sandbox's own user namespace may run commands, where the template is a workstation.
    pub root: bool,
}

/// A request for a project, or for another quota of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutProject {
    /// How much it may have at once.
    #[serde(default)]
    pub quota: Quota,
}

/// What a key may do. Each may do what the one before it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks at the sandboxes of its project.
    Read,
    /// Creates, uses and stops them.
    #[default]
    Write,
    /// Makes projects and keys, drains, reads metrics and the audit log.
    Admin,
}

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Key {
    /// Its id: not secret, and what the audit log names.
    pub id: String,
    /// The project it acts for.
    pub project: String,
    /// What it may do.
    pub role: Role,
    /// What its maker called it.
    pub label: String,
    /// The last four characters of its secret.
    pub hint: String,
    /// When it was made, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// After this it is refused, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
}

/// A request for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// The project it is to act for.
    pub project: String,
    /// What it may do.
    #[serde(default)]
    pub role: Role,
    /// What to call it.
    #[serde(default)]
    pub label: String,
    /// For how long, in milliseconds from now; none is for good.
    #[serde(default)]
    pub valid_ms: Option<u64>,
}

/// A key that was just made. The only time its secret is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NewKey {
    /// The key.
    pub key: Key,
    /// Its secret: lower-case hexadecimal. `e2b_` in front of it names the same key.
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

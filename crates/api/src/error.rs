//! The common format of all errors that Bellglass returns.
//!
//! Programs, people and LLMs read these errors. Each error therefore states the failure (`code`, `message`),
//! where it originated (`layer`), whether anything ran (`ran`), whether a retry is safe (`retry`) and how to
//! fix it (`fix`).

use serde::{Deserialize, Serialize};

/// Error with a stable code and a suggested action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[error("{message}")]
pub struct Error {
    /// Stable error code, for programs to match on.
    pub code: ErrorCode,
    /// Description of the failure and of the resource concerned, as one sentence without a full stop.
    pub message: String,
    /// Origin of the error.
    pub layer: Layer,
    /// Indicates if the command ran.
    pub ran: Ran,
    /// Indicates if a retry is safe.
    pub retry: Retry,
    /// Suggested action, as one sentence.
    pub fix: String,
}

/// Error code. There are no other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The command could not be started: not found, not executable, bad interpreter or bad directory.
    SpawnFailed,
    /// The request is invalid. The message names the field.
    InvalidRequest,
    /// A value is above its maximum or below its minimum. The message names the limit.
    LimitExceeded,
    /// The sandbox, exec, template or other resource does not exist.
    NotFound,
    /// The resource is in a state that does not allow this, or its ID was already used for something else.
    Conflict,
    /// The path is not a regular file, so it has no content to read or replace.
    NotRegular,
    /// A limit or tier cannot be enforced on this machine.
    Unsupported,
    /// The machine has no room for another sandbox or is being drained.
    Capacity,
    /// The project has reached its quota.
    QuotaExceeded,
    /// The project sends requests faster than its quota allows.
    RateLimited,
    /// The key is missing or invalid.
    Unauthorized,
    /// The role of the key does not allow this.
    Forbidden,
    /// No runtime of this machine is as strong as the requested tier.
    TierUnavailable,
    /// The request body is too large.
    TooLarge,
    /// The client uses an API version that this server does not support.
    VersionUnsupported,
    /// The server's store does not respond. Running sandboxes and execs continue.
    StoreUnavailable,
    /// The live posture of the sandbox does not match its tier.
    PostureMismatch,
    /// The sandbox is gone.
    SandboxLost,
    /// The guest violated the protocol.
    Protocol,
    /// A wait reached its deadline.
    Deadline,
    /// Internal error. The message names the operation and the resource.
    Platform,
}

/// Origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The code that was run, or the request to run it.
    UserCode,
    /// The sandbox around the code.
    Sandbox,
    /// A rule of the operator.
    Policy,
    /// Bellglass or the machine.
    Platform,
}

/// Indicates if the command ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ran {
    /// It ran, at least in part.
    Yes,
    /// It did not run.
    No,
    /// Not known.
    Unknown,
}

/// Indicates if a retry is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// A retry may succeed and does no harm.
    Safe,
    /// A retry gives the same result.
    Useless,
    /// The first attempt may have had effects.
    Unknown,
}

impl ErrorCode {
    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::SpawnFailed => "spawn_failed",
            Self::InvalidRequest => "invalid_request",
            Self::LimitExceeded => "limit_exceeded",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::NotRegular => "not_regular",
            Self::Unsupported => "unsupported",
            Self::Capacity => "capacity",
            Self::QuotaExceeded => "quota_exceeded",
            Self::RateLimited => "rate_limited",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::TierUnavailable => "tier_unavailable",
            Self::TooLarge => "too_large",
            Self::VersionUnsupported => "version_unsupported",
            Self::StoreUnavailable => "store_unavailable",
            Self::PostureMismatch => "posture_mismatch",
            Self::SandboxLost => "sandbox_lost",
            Self::Protocol => "protocol",
            Self::Deadline => "deadline",
            Self::Platform => "platform",
        }
    }
}

impl Error {
    /// Returns an error for an invalid request. It states that nothing ran and that a retry is useless.
    pub fn invalid(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::InvalidRequest,
            message: message.into(),
            layer: Layer::UserCode,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: fix.into(),
        }
    }

    /// Returns an error for a resource that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::NotFound,
            message: message.into(),
            layer: Layer::UserCode,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "List the existing names and use one of them.".into(),
        }
    }
}

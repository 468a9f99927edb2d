//! The one shape of every error that leaves Belljar.
//!
//! A program, a person and an LLM all read these, so each says what happened (`code`, `message`), whose doing it
//! was (`layer`), whether anything ran (`ran`), whether asking again is safe (`retry`) and what to do (`fix`).

use serde::{Deserialize, Serialize};

/// An error as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[error("{message}")]
pub struct Error {
    /// The stable name; programs match on this.
    pub code: ErrorCode,
    /// What happened to which thing, as one sentence without a full stop.
    pub message: String,
    /// Whose doing it was.
    pub layer: Layer,
    /// Whether the command ran.
    pub ran: Ran,
    /// Whether asking again is safe.
    pub retry: Retry,
    /// One sentence on what to do.
    pub fix: String,
}

/// The closed set of error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The command could not be started: not found, not executable, bad interpreter, bad directory.
    SpawnFailed,
    /// The request itself is wrong; the message names the field.
    InvalidRequest,
    /// A value is above its hard maximum or below its minimum; the message names the limit.
    LimitExceeded,
    /// There is no such sandbox, exec or template.
    NotFound,
    /// The thing is not in a state in which this can be done, or the same id was used for something else.
    Conflict,
    /// What is at the path is no regular file, so it has no bytes to read or replace.
    NotRegular,
    /// A limit or a tier cannot be enforced on this machine.
    Unsupported,
    /// The machine has no room for one more, or is being emptied.
    Capacity,
    /// The project has all that its quota allows.
    QuotaExceeded,
    /// The project asks faster than its quota allows.
    RateLimited,
    /// The request carries no key, or none that is valid.
    Unauthorized,
    /// The key's role does not allow this.
    Forbidden,
    /// No runtime of this machine is as strong as was asked for.
    TierUnavailable,
    /// The body is longer than any may be.
    TooLarge,
    /// The client speaks a version of the API that this server does not.
    VersionUnsupported,
    /// The server's store does not answer; what runs goes on.
    StoreUnavailable,
    /// The live posture of the sandbox is not the expected one of its tier.
    PostureMismatch,
    /// The sandbox is gone.
    SandboxLost,
    /// The guest said something that the protocol does not allow.
    Protocol,
    /// A wait reached its deadline.
    Deadline,
    /// The platform failed; the message names the act and the thing.
    Platform,
}

/// Whose doing an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The code that was run, or the request to run it.
    UserCode,
    /// The sandbox around it.
    Sandbox,
    /// A rule of the operator's.
    Policy,
    /// Belljar or the machine.
    Platform,
}

/// Whether the command ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ran {
    /// It ran, at least in part.
    Yes,
    /// It did not run.
    No,
    /// It cannot be known.
    Unknown,
}

/// Whether asking again is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// Asking again may work and does no harm.
    Safe,
    /// Asking again gives the same answer.
    Useless,
    /// The first try may have had effects.
    Unknown,
}

impl ErrorCode {
    /// The name on the wire.
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
    /// An error that says the request is wrong: nothing ran, and the same request will fail again.
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

    /// An error that says there is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::NotFound,
            message: message.into(),
            layer: Layer::UserCode,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "List what there is and use one of those names.".into(),
        }
    }
}

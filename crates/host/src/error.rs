//! Errors that occur on this machine, and their representation for clients.

use std::time::Duration;

use api::exec::LostCause;
use api::{ErrorCode, Layer, Ran, Retry};

/// A failure on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An isolation backend failed.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// The guest returned an error.
    #[error(transparent)]
    Guest(api::Error),
    /// The request is invalid.
    #[error(transparent)]
    Request(api::Error),
    /// The sandbox has ended.
    #[error("the sandbox has ended: {}", say(*.0))]
    Lost(LostCause),
    /// The guest sent a message that the protocol does not allow.
    #[error("the guest violated the protocol: {0}")]
    Protocol(String),
    /// A wait reached its deadline.
    #[error("{what} timed out after {after:?}")]
    Deadline {
        /// The operation that did not finish in time.
        what: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The observed posture (the isolation that is in effect) differs from the promised one.
    #[error("the sandbox does not have the isolation that its tier guarantees: {}", .0.join("; "))]
    Posture(Vec<String>),
    /// A system call made by the server failed.
    #[error("cannot {act}")]
    System {
        /// The action that failed and the object it acted on, such as a path.
        act: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Returns true if the sandbox has ended.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Lost(_))
            || matches!(self, Self::Request(error) if error.code == api::ErrorCode::SandboxLost)
    }

    /// Returns true if the sandbox is unknown.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Runtime(runtime::Error::NotFound(_)))
    }

    /// Converts the error to the form that clients receive.
    pub fn to_api(&self) -> api::Error {
        let (code, layer, ran, retry, fix) = match self {
            Self::Guest(error) | Self::Request(error) => return error.clone(),
            Self::Runtime(error) => return isolation(error),
            Self::Lost(cause) => (
                ErrorCode::SandboxLost,
                Layer::Sandbox,
                Ran::Unknown,
                Retry::Unknown,
                match cause {
                    LostCause::Oom => "Create a new sandbox with a larger `memory_bytes`.",
                    LostCause::Expired => "Create a new sandbox with a longer `ttl_ms`.",
                    LostCause::KernelResource => {
                        "Create a new sandbox and hold fewer file locks at a time, or request `tier: user_kernel`, which keeps file locks in its own memory."
                    }
                    LostCause::Died | LostCause::Stopped => {
                        "Create a new sandbox, because the processes of this sandbox have ended."
                    }
                },
            ),
            Self::Protocol(_) => (
                ErrorCode::Protocol,
                Layer::Sandbox,
                Ran::Unknown,
                Retry::Unknown,
                "Stop this sandbox, do not trust its output, and create a new one.",
            ),
            Self::Deadline { .. } => (
                ErrorCode::Deadline,
                Layer::Platform,
                Ran::Unknown,
                Retry::Unknown,
                "Check the load of this machine with `bellglass doctor`, then retry.",
            ),
            Self::Posture(_) => (
                ErrorCode::PostureMismatch,
                Layer::Platform,
                Ran::No,
                Retry::Useless,
                "Run `bellglass doctor`: the runtime of this machine does not isolate sandboxes as its tier requires.",
            ),
            Self::System { .. } => (
                ErrorCode::Platform,
                Layer::Platform,
                Ran::No,
                Retry::Unknown,
                "Fix the problem named in the message, then retry.",
            ),
        };
        api::Error { code, message: chain(self), layer, ran, retry, fix: fix.into() }
    }
}

/// Replaces details that only the operator may see with a reference to the server log, which records them.
pub fn discreet(error: api::Error, act: &str) -> api::Error {
    api::Error {
        message: format!("the machine could not {act}; see the server log"),
        fix: "Retry. If the error persists, ask the operator of the machine to check the server log.".into(),
        ..error
    }
}

/// Hides operator-only details in the error for a failed start. The error still names an unavailable backend,
/// but not the backend's address.
pub fn discreet_start(error: &Error, act: &str) -> api::Error {
    let told = error.to_api();
    if let Error::Runtime(runtime::Error::Unavailable { what, fix, .. }) = error {
        return api::Error {
            message: format!("{what}, so the machine could not {act}; see the server log"),
            fix: format!("Retry later. For the operator of the machine: {fix}"),
            ..told
        };
    }
    if told.code == ErrorCode::Platform { discreet(told, act) } else { told }
}

pub use runtime::chain;

fn isolation(error: &runtime::Error) -> api::Error {
    let (code, layer, ran, retry, fix) = match error {
        runtime::Error::Unavailable { fix, .. } => {
            (ErrorCode::TierUnavailable, Layer::Platform, Ran::No, Retry::Safe, fix.as_str())
        }
        runtime::Error::Exists(_) => {
            (ErrorCode::Conflict, Layer::UserCode, Ran::No, Retry::Useless, "Choose another id.")
        }
        runtime::Error::NotFound(_) => (
            ErrorCode::NotFound,
            Layer::UserCode,
            Ran::No,
            Retry::Useless,
            "List the sandboxes (`bellglass list --all`) and use one of them.",
        ),
        runtime::Error::Unsupported { .. } => (
            ErrorCode::Unsupported,
            Layer::Platform,
            Ran::No,
            Retry::Useless,
            "Fix the problem named in the message, or request less. `bellglass doctor` shows what this machine supports.",
        ),
        runtime::Error::Capacity { .. } => (
            ErrorCode::Capacity,
            Layer::Platform,
            Ran::No,
            Retry::Safe,
            "Free the resource named in the message, request less, or retry later.",
        ),
        runtime::Error::Ended(_) => {
            (ErrorCode::SandboxLost, Layer::Sandbox, Ran::Unknown, Retry::Unknown, "Create a new sandbox.")
        }
        runtime::Error::Impostor { .. } => (
            ErrorCode::Protocol,
            Layer::Sandbox,
            Ran::Unknown,
            Retry::Unknown,
            "Stop this sandbox, do not trust its output, and create a new one.",
        ),
        runtime::Error::Deadline { .. } => (
            ErrorCode::Deadline,
            Layer::Platform,
            Ran::Unknown,
            Retry::Unknown,
            "Check the load of this machine with `bellglass doctor`, then retry.",
        ),
        runtime::Error::Command { .. } | runtime::Error::System { .. } => (
            ErrorCode::Platform,
            Layer::Platform,
            Ran::No,
            Retry::Unknown,
            "Run `bellglass doctor`, which shows what is missing on this machine and how to fix it.",
        ),
    };
    api::Error { code, message: chain(error), layer, ran, retry, fix: fix.into() }
}

fn say(cause: LostCause) -> &'static str {
    match cause {
        LostCause::Died => "its guest crashed or was killed",
        LostCause::Oom => "it ran out of memory",
        LostCause::Expired => "its time to live expired",
        LostCause::Stopped => "it was stopped",
        LostCause::KernelResource => "it used too much of a kernel resource that has no limit",
    }
}

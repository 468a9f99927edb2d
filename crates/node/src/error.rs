//! Why something failed, and how that is said outside.

use std::time::Duration;

use api::exec::LostCause;
use api::{ErrorCode, Layer, Ran, Retry};

/// Why something failed on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Isolation failed.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// The guest said no.
    #[error(transparent)]
    Guest(api::Error),
    /// The request is wrong.
    #[error(transparent)]
    Request(api::Error),
    /// The sandbox ended.
    #[error("the sandbox has ended: {}", say(*.0))]
    Lost(LostCause),
    /// The guest said something that the protocol does not allow.
    #[error("the guest broke the protocol: {0}")]
    Protocol(String),
    /// A wait reached its deadline.
    #[error("{what} took longer than {after:?}")]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The live posture is not the promised one.
    #[error("the sandbox is not sealed as its tier promises: {}", .0.join("; "))]
    Posture(Vec<String>),
    /// A system call of ours failed.
    #[error("cannot {act}")]
    System {
        /// The act and the thing.
        act: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The error in the one shape that leaves Belljar.
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
                    LostCause::Oom => "Ask for a larger `memory_bytes`, in a new sandbox.",
                    LostCause::Expired => "Ask for a longer `ttl_ms`, in a new sandbox.",
                    LostCause::Died | LostCause::Stopped => {
                        "Start a new sandbox; what ran in this one is gone."
                    }
                },
            ),
            Self::Protocol(_) => (
                ErrorCode::Protocol,
                Layer::Sandbox,
                Ran::Unknown,
                Retry::Unknown,
                "Stop this sandbox and do not trust its output; start a new one.",
            ),
            Self::Deadline { .. } => (
                ErrorCode::Deadline,
                Layer::Platform,
                Ran::Unknown,
                Retry::Unknown,
                "Look at the load of this machine with `belljar doctor`, then ask again.",
            ),
            Self::Posture(_) => (
                ErrorCode::PostureMismatch,
                Layer::Platform,
                Ran::No,
                Retry::Useless,
                "Run `belljar doctor`: the machine's runtime does not seal sandboxes as promised.",
            ),
            Self::System { .. } => (
                ErrorCode::Platform,
                Layer::Platform,
                Ran::No,
                Retry::Unknown,
                "Mend what the message names, then ask again.",
            ),
        };
        api::Error { code, message: chain(self), layer, ran, retry, fix: fix.into() }
    }
}

/// The same error without what only whoever runs the machine should see: it is in the log.
pub fn discreet(error: api::Error, act: &str) -> api::Error {
    api::Error {
        message: format!("the machine could not {act}; its log says why"),
        fix: "Ask again; if it lasts, ask whoever runs the machine to look into the server's log.".into(),
        ..error
    }
}

/// Likewise, for a start that failed: which backend is not there may be known, and where it should be may not.
pub fn discreet_start(error: &Error, act: &str) -> api::Error {
    let told = error.to_api();
    if let Error::Runtime(runtime::Error::Unavailable { what, fix, .. }) = error {
        return api::Error {
            message: format!("{what}, so the machine could not {act}; its log says more"),
            fix: format!("Ask again later. For whoever runs the machine: {fix}"),
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
            "List the sandboxes and use one of those.",
        ),
        runtime::Error::Unsupported { .. } => (
            ErrorCode::Unsupported,
            Layer::Platform,
            Ran::No,
            Retry::Useless,
            "Do what the message says, or ask for less; `belljar doctor` shows what this machine can do.",
        ),
        runtime::Error::Capacity { .. } => (
            ErrorCode::Capacity,
            Layer::Platform,
            Ran::No,
            Retry::Safe,
            "Free what the message names, ask for less, or ask again later.",
        ),
        runtime::Error::Ended(_) => {
            (ErrorCode::SandboxLost, Layer::Sandbox, Ran::Unknown, Retry::Unknown, "Start a new sandbox.")
        }
        runtime::Error::Impostor { .. } => (
            ErrorCode::Protocol,
            Layer::Sandbox,
            Ran::Unknown,
            Retry::Unknown,
            "Stop this sandbox and do not trust its output; start a new one.",
        ),
        runtime::Error::Deadline { .. } => (
            ErrorCode::Deadline,
            Layer::Platform,
            Ran::Unknown,
            Retry::Unknown,
            "Look at the load of this machine with `belljar doctor`, then ask again.",
        ),
        runtime::Error::Command { .. } | runtime::Error::System { .. } => (
            ErrorCode::Platform,
            Layer::Platform,
            Ran::No,
            Retry::Unknown,
            "Run `belljar doctor`: it names what is missing on this machine and how to mend it.",
        ),
    };
    api::Error { code, message: chain(error), layer, ran, retry, fix: fix.into() }
}

fn say(cause: LostCause) -> &'static str {
    match cause {
        LostCause::Died => "its guest died or was killed",
        LostCause::Oom => "its memory was used up",
        LostCause::Expired => "its time to live was over",
        LostCause::Stopped => "it was stopped",
    }
}

//! The processes that run Python code: their creation as forks of the parent interpreter, and the messages
//! that they receive. [`crate::said`] defines the messages that they send.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use api::code::Code;
use api::exec::{ExecSpec, Stream};
use api::{Error, ErrorCode, Layer, Ran, Retry, limits};
use rustix::process::Pid;
use serde::Serialize;

use crate::launch::{DIRECTORY, Ends, Theirs, environment, on_pipes, pipe_owner};
use crate::parent::{Fork, ForkKind, Parent};
use crate::processes::ProcessOwner;
use crate::records::Records;
use crate::watched::Watched;

/// A request to run code.
pub struct Job {
    /// The request, except for its code.
    pub spec: ExecSpec,
    /// The code.
    pub code: Code,
}

/// A process that was started to run code.
pub struct Running {
    /// Output streams of the process.
    pub streams: Vec<(Stream, Rc<Watched>)>,
    /// Channel for messages to and from the process.
    pub channel: Rc<Records>,
}

/// Message to a process that runs code.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tell<'a> {
    /// Starts the only run of the process.
    Run(RunSpec<'a>),
    /// Starts the next cell.
    Cell(CellSpec<'a>),
    /// Requests the variables.
    Variables {},
    /// Requests confirmation that no earlier interrupt is pending.
    Settle {},
}

/// Message that starts a cell.
#[derive(Serialize)]
pub struct CellSpec<'a> {
    /// Number of the cell, counted from 1.
    pub number: u64,
    /// Environment variables of this cell only.
    pub env: &'a BTreeMap<String, String>,
    /// Code and packages, as for a run.
    #[serde(flatten)]
    pub run: RunSpec<'a>,
}

/// Message that starts a run.
#[derive(Serialize)]
pub struct RunSpec<'a> {
    code: &'a str,
    requirements: &'a [String],
    install_missing: bool,
    /// Time limit for the installation of packages.
    pub install_ms: u64,
}

/// Parameters of a fork.
pub struct Birth<'a> {
    /// User of the fork.
    pub uid: u32,
    /// Exec group of the fork.
    pub group: u32,
    /// Working directory and environment variables.
    pub spec: &'a ExecSpec,
    /// Purpose of the fork.
    pub kind: ForkKind,
}

impl<'a> RunSpec<'a> {
    /// Builds the message for this code.
    pub fn of(code: &'a Code) -> Self {
        Self {
            code: &code.source,
            requirements: &code.requirements,
            install_missing: code.install_missing,
            install_ms: code.install_ms.unwrap_or(limits::INSTALL_MS),
        }
    }
}

/// Forks a process that will run code. Reports its end to `owner`.
pub async fn fork(
    parent: &Parent,
    birth: &Birth<'_>,
    owner: Rc<dyn ProcessOwner>,
) -> Result<(Running, Pid), Error> {
    let pipe_owner = pipe_owner(birth.uid, parent.processes().in_user_kernel());
    let broken = |error: std::io::Error| did_not_begin(&error.to_string());
    let (Ends { streams, .. }, Theirs { stdin, stdout, stderr }) =
        on_pipes(false, pipe_owner).map_err(broken)?;
    let (channel, theirs) = Records::pair().map_err(broken)?;
    let fork = Fork {
        run: birth.group,
        uid: birth.uid,
        group: birth.group,
        cwd: birth.spec.cwd.as_deref().unwrap_or(DIRECTORY),
        env: environment(birth.spec),
        kind: birth.kind,
    };
    let descriptors: [OwnedFd; 4] = [stdin, stdout, stderr, theirs];
    let pid = parent.fork(&fork, descriptors, owner).await?;
    Ok((Running { streams, channel: Rc::new(channel) }, pid))
}

/// Returns the error for code that could not begin, with the reason that its process reported.
pub fn cannot_begin(why: &str) -> Error {
    Error {
        code: ErrorCode::SpawnFailed,
        message: format!("cannot start the code: {why}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Check that the working directory exists and is accessible. Python contexts require `ipython` in the template.".into(),
    }
}

/// Returns the error for code that did not begin, if its process reported no reason. `why` is the guest's
/// explanation.
pub fn did_not_begin(why: &str) -> Error {
    Error {
        retry: Retry::Safe,
        fix:
            "Retry. If the error persists, check the memory and processes of the sandbox, or create another sandbox."
                .into(),
        ..cannot_begin(why)
    }
}

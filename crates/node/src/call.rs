//! A call: one use of a sandbox by a caller. While a call is held, the sandbox does not count as idle.

mod code;

use std::sync::Arc;
use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec};
use api::files::FileInfo;
use api::trace::STEP;
use api::{ExecId, SandboxId, limits};
use guest_client::{Exec, Files, Port, Sandbox};
use host::error::Error;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::artifacts::regular_files;
use crate::handle::Handle;
use crate::message::DriverMessage;

/// A call in progress. While this value is held, the sandbox does not count as idle.
pub struct Call {
    handle: Arc<Handle>,
    sandbox: Arc<Sandbox>,
    /// True if this call opens files as root.
    root_files: bool,
}

impl Call {
    /// Begins a call.
    ///
    /// # Errors
    /// The sandbox is not running, or is paused.
    pub(crate) fn begin(handle: &Arc<Handle>) -> Result<Self, Error> {
        let sandbox = handle.begin_use()?;
        Ok(Self { handle: Arc::clone(handle), sandbox, root_files: false })
    }

    /// Starts an exec with this ID, which runs a command or code. The template provides the variables and the
    /// working directory that the spec does not set. Repeating the request has no effect. This method does
    /// not keep artifacts; [`crate::Node::start_exec`] does.
    ///
    /// # Errors
    /// See [`Sandbox::start_exec`].
    pub async fn start_exec(&self, id: &ExecId, spec: ExecSpec) -> Result<ExecInfo, Error> {
        let spec = self.prepared(spec).await?;
        let info = self.sandbox.start_exec(id, &spec).await?;
        self.due(&spec);
        Ok(info)
    }

    /// Starts an exec like [`Call::start_exec`], and returns a reader that begins at the first byte of its
    /// output.
    ///
    /// # Errors
    /// See [`Call::start_exec`].
    pub async fn start_exec_and_read(&self, id: &ExecId, spec: ExecSpec) -> Result<(ExecInfo, Exec), Error> {
        let spec = self.prepared(spec).await?;
        let begun = self.sandbox.start_exec_and_read(id, &spec).await?;
        self.due(&spec);
        Ok(begun)
    }

    /// Validates a spec and completes it for the guest.
    async fn prepared(&self, spec: ExecSpec) -> Result<ExecSpec, Error> {
        let record = self.handle.record();
        spec.check().and_then(|()| spec.check_root(record.rooted)).map_err(Error::Request)?;
        let spec = if spec.uid == Some(0) { at_home(spec) } else { spec };
        let spec = match spec.code.clone() {
            Some(code) => self.coded(&record, spec, &code).await?,
            None => self.handle.dressed(&record, spec),
        };
        if !record.sandbox.policy.secrets.is_empty() {
            self.handle.trust(&self.sandbox).instrument(info_span!(target: STEP, "trust")).await?;
        }
        Ok(spec)
    }

    /// Schedules a check of the sandbox for the time by which the exec should have ended.
    fn due(&self, spec: &ExecSpec) {
        if let Some(deadline) = spec.deadline_ms {
            let whole = deadline + spec.grace_ms.unwrap_or(limits::GRACE_MS) + guest_client::exec::OVERDUE_MS;
            self.handle.due_at(Instant::now() + Duration::from_millis(whole));
            self.handle.tell(DriverMessage::Look);
        }
    }

    /// Returns the ID of the sandbox.
    pub fn id(&self) -> &SandboxId {
        self.handle.id()
    }

    /// Returns the home directory of the user who runs code in the sandbox.
    pub fn home(&self) -> String {
        let record = self.handle.record();
        record.env.get("HOME").cloned().unwrap_or_else(|| format!("/home/{}", limits::USER))
    }

    /// Returns the directory in which commands start, if the template sets one.
    pub fn directory(&self) -> Option<String> {
        self.handle.record().cwd
    }

    /// Returns true if commands may run as root of the sandbox's own user namespace.
    pub fn has_root(&self) -> bool {
        self.handle.record().rooted
    }

    /// Returns a reader for the output of an exec.
    pub fn exec_reader(&self, id: ExecId) -> Exec {
        self.sandbox.exec_reader(id)
    }

    /// Connects to a port in the sandbox. The connection counts as a call for as long as it is open.
    ///
    /// # Errors
    /// Nothing listens on the port, the sandbox has reached its maximum number of connections, or the sandbox
    /// has ended.
    pub async fn dial(self, port: u16) -> Result<Port, Error> {
        let sandbox = Arc::clone(&self.sandbox);
        sandbox.dial(port, Some(Box::new(self))).await
    }

    /// Lists the regular files below a folder of the sandbox in the order of their paths. The flag is true if
    /// the list is complete.
    ///
    /// # Errors
    /// The sandbox has ended or does not respond.
    pub async fn regular_files(&self, folder: &str) -> Result<(Vec<FileInfo>, bool), Error> {
        regular_files(&self.files(), folder).await
    }

    /// Lists all execs of the sandbox.
    ///
    /// # Errors
    /// See [`Sandbox::execs`].
    pub async fn execs(&self) -> Result<Vec<ExecInfo>, Error> {
        self.sandbox.execs().await
    }
}

impl Call {
    /// Makes this call open files as root of the sandbox's own user namespace.
    ///
    /// # Errors
    /// The sandbox does not allow root to run commands.
    pub fn with_root_files(mut self) -> Result<Self, Error> {
        let root = ExecSpec { uid: Some(0), ..ExecSpec::default() };
        root.check_root(self.has_root()).map_err(Error::Request)?;
        self.root_files = true;
        Ok(self)
    }

    /// Returns the handle of the sandbox.
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Returns the connection to the sandbox.
    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Returns access to the files of the sandbox, for as long as the call is held.
    pub fn files(&self) -> Files {
        let files = self.sandbox.files(self.handle.shown().limits.disk_bytes);
        if self.root_files { files.as_root() } else { files }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.handle.end_use();
    }
}

/// Sets root's home directory and name, because the template's variables are meant for the normal user.
fn at_home(mut spec: ExecSpec) -> ExecSpec {
    for (name, value) in [("HOME", "/root"), ("USER", "root"), ("LOGNAME", "root")] {
        spec.env.entry(name.into()).or_insert_with(|| value.into());
    }
    spec
}

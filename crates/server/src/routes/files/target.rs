//! The target of a file request: a sandbox, and the user with whose permissions the operation runs.

use api::files::{FileAnswer, FileAsk};
use node::Call;

use super::query::FilesOf;
use crate::authority::Grant;
use crate::rejection::Answer;
use control::platform::Platform;

/// The sandbox whose files a request uses, and the user with whose permissions the operation runs.
pub struct FilesTarget<'a> {
    /// ID or name of the sandbox.
    pub named: &'a str,
    /// The user.
    pub files: FilesOf,
}

impl FilesTarget<'_> {
    /// Starts a call to the sandbox.
    ///
    /// # Errors
    /// Returns an error if the sandbox does not exist or has ended, or its project does not allow root.
    pub async fn call(self, caller: &Grant, platform: &Platform) -> Answer<Call> {
        let sandbox = platform.running(caller, self.named).await?;
        let call = platform.node.call(&sandbox.id).await?;
        Ok(match self.files {
            FilesOf::User => call,
            FilesOf::Root => call.with_root_files()?,
        })
    }

    /// Performs an operation that does not change files.
    ///
    /// # Errors
    /// Returns an error if there is no such sandbox or the operation fails.
    pub async fn look(self, caller: &Grant, platform: &Platform, ask: &FileAsk) -> Answer<FileAnswer> {
        ask.check()?;
        let _place = caller.share.stream()?;
        let call = self.call(caller, platform).await?;
        Ok(call.files().ask(ask).await?)
    }
}

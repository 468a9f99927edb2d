//! Changes to files, which are recorded in the audit log.

use std::sync::Arc;

use api::files::{Counted, FileAnswer, FileAsk};
use api::{Error, Ran};
use axum::Json;
use node::Call;

use super::flow::{Coming, StreamGuard};
use super::target::FilesTarget;
use super::unlike;
use crate::authority::{Caller, Grant, Write};
use crate::rejection::Answer;
use control::audit::Act;
use control::platform::Platform;

/// A change to files, with its entry in the audit log.
pub struct Change {
    /// Action for the audit log.
    pub act: Act,
    /// Details for the audit log.
    pub detail: String,
    /// The operation.
    pub ask: FileAsk,
}

impl Change {
    /// Performs the change. The change completes even if the client disconnects.
    ///
    /// # Errors
    /// Returns an error if there is no such sandbox or the operation fails.
    pub async fn carry_out(
        self,
        caller: &Caller<Write>,
        platform: &Platform,
        target: FilesTarget<'_>,
    ) -> Answer<Json<Counted>> {
        let Self { act, detail, ask } = self;
        ask.check()?;
        let place = caller.share.stream()?;
        let call = noted(caller, platform, target, act, &detail).await?;
        let asking = tokio::spawn(async move {
            let _place = place;
            call.files().ask(&ask).await
        });
        let answered = asking
            .await
            .map_err(|source| node::Error::System { act: "change a file".into(), source: source.into() })?;
        let answer = answered?;
        let (FileAnswer::Done { count } | FileAnswer::Edited { count }) = answer else {
            return Err(unlike(&answer));
        };
        Ok(Json(Counted { count }))
    }

    /// Performs a change whose data is the request body. An incomplete body aborts the change.
    ///
    /// # Errors
    /// Returns an error if the body is incomplete, there is no such sandbox or the operation fails.
    pub async fn take_in(
        self,
        caller: &Caller<Write>,
        platform: Arc<Platform>,
        target: FilesTarget<'_>,
        mut coming: Coming,
    ) -> Answer<FileAnswer> {
        let Self { act, detail, ask } = self;
        ask.check()?;
        let place = caller.share.stream()?;
        let call = noted(caller, &platform, target, act, &detail).await?;
        let held = StreamGuard::new(platform, call, place);
        // If one of these operations fails, the data that arrived before the error remains in the sandbox.
        let lasts = matches!(ask, FileAsk::Unpack { .. } | FileAsk::Write { offset: Some(_), .. });
        let cut = |error: Error| if lasts { Error { ran: Ran::Unknown, ..error } } else { error };
        let mut writing = held.call().files().write(ask).await?;
        while let Some(bytes) = coming.next().await.map_err(cut)? {
            if let Err(error) = writing.push(bytes).await {
                return Err(coming.refuse(error).await);
            }
        }
        Ok(writing.finish().await?)
    }
}

/// Starts a call that makes a change, and records the change in the audit log.
async fn noted(
    caller: &Grant,
    platform: &Platform,
    target: FilesTarget<'_>,
    act: Act,
    detail: &str,
) -> Answer<Call> {
    let call = target.call(caller, platform).await?;
    platform.note(caller, act, |entry| entry.sandbox(call.id()).detail(detail));
    Ok(call)
}

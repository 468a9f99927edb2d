//! A failed attempt to send a request, and whether another attempt may succeed.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use api::{ErrorCode, Retry};
use reqwest::StatusCode;

use crate::error::Error;
use crate::patience::{Attempts, Trouble};

/// A failed attempt. `trouble` is set if another attempt may succeed.
pub(crate) struct FailedAttempt {
    pub error: Error,
    pub trouble: Option<Trouble>,
    pub pause: Option<Duration>,
}

impl FailedAttempt {
    /// Returns the pause before the next attempt, or the error if no further attempt is allowed.
    pub fn pause(self, attempts: &mut Attempts) -> Result<Duration, Error> {
        let Some(trouble) = self.trouble else { return Err(self.error) };
        attempts.after(trouble, self.pause, Instant::now()).ok_or(self.error)
    }
}

/// Returns the innermost cause of an error, without the errors that wrap it.
pub(crate) fn root_cause(error: &reqwest::Error) -> String {
    chain(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns true if the server failed to prove its identity, so that retries are useless. An `io::Error`
/// exposes the error that it wraps through `get_ref` but not through `source`, so this function follows both.
pub(super) fn is_distrust(error: &(dyn StdError + 'static)) -> bool {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>()
        || wrapped.is_some_and(|wrapped| is_distrust(wrapped))
        || error.source().is_some_and(is_distrust)
}

fn chain<'a>(error: &'a reqwest::Error) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |error: &&'a (dyn StdError + 'static)| {
        (*error).source()
    })
}

/// Returns the kind of temporary trouble that an error response reports, or `None` if the error is permanent.
pub(super) fn refused(status: StatusCode, error: &api::Error) -> Option<Trouble> {
    // Waiting does not help if a quota is exhausted; the caller must release resources first.
    if error.retry != Retry::Safe || error.code == ErrorCode::QuotaExceeded {
        None
    } else if matches!(error.code, ErrorCode::Capacity | ErrorCode::RateLimited) {
        Some(Trouble::Busy)
    } else if error.code == ErrorCode::StoreUnavailable || status == StatusCode::SERVICE_UNAVAILABLE {
        Some(Trouble::Connection)
    } else {
        None
    }
}

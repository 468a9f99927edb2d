//! Plain HTTP, for services that have no typed client.

use std::time::Duration;

use crate::target::TargetFailure;

/// Timeout for establishing a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Creates a client that neither follows redirects nor retries.
pub fn client() -> Result<reqwest::Client, TargetFailure> {
    // This fails harmlessly if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_WITHIN)
        .build()
        .map_err(|error| TargetFailure::new("http", error.to_string()))
}

/// Returns the failure for a request that received no response.
pub fn lost(error: &reqwest::Error) -> TargetFailure {
    let code = if error.is_timeout() { "deadline" } else { "unreachable" };
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    TargetFailure::new(code, cause.to_string())
}

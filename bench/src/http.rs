//! Plain HTTP, for what has no typed client.

use std::time::Duration;

use crate::target::Failure;

/// A connection is made within this or not at all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A client that follows nobody elsewhere and asks once.
pub fn client() -> Result<reqwest::Client, Failure> {
    // Whoever asks second finds that it was said already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_WITHIN)
        .build()
        .map_err(|error| Failure::new("http", error.to_string()))
}

/// No answer came.
pub fn lost(error: &reqwest::Error) -> Failure {
    let code = if error.is_timeout() { "deadline" } else { "unreachable" };
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Failure::new(code, cause.to_string())
}

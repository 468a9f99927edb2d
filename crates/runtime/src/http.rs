//! HTTP clients for backends, which trust the certificates that this machine trusts and never follow
//! redirects.

use std::sync::Arc;
use std::time::Duration;

use reqwest::ClientBuilder;
use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Creates a client builder, to which the caller adds the API key or the socket.
pub(crate) fn client() -> Result<ClientBuilder, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = builder.with_platform_verifier()?.with_no_client_auth();
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls).http1_only();
    // An API key must reach only the configured address, so redirects are not followed.
    Ok(builder.redirect(reqwest::redirect::Policy::none()).connect_timeout(CONNECT_WITHIN))
}

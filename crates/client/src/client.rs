//! The API client and its sandbox requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::policy::{Installed, Policy};
use api::sandbox::{CreateSandbox, Lease, Sandbox, Usage};
use api::server::{HEARTBEAT_MS, PAGE_MAX, Page};
use api::trace::Trace;
use api::{ExecId, SandboxId};
use reqwest::Method;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::link::{ApiRequest, ServerLink};
use crate::patience::Patience;

/// Default timeout for a response. Requests that start or stop a sandbox take longest, especially while the
/// machine is busy with many others.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Default time without data after which a stream counts as broken: three missed heartbeats.
const SILENCE_MAX: Duration = Duration::from_millis(3 * HEARTBEAT_MS);
/// Maximum number of pages that a list may have. A list of more than a million items means that the server
/// keeps returning the same pages.
const PAGES_MAX: usize = 1000;

/// Client for one server, authenticated with one key. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) link: Arc<ServerLink>,
}

/// Options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// PEM file with the certificates to trust instead of the operating system's certificates.
    pub ca_file: Option<PathBuf>,
    /// How long to retry requests that can safely be repeated.
    pub patience: Patience,
    /// Timeout for one response.
    pub answer_within: Duration,
    /// Maximum time without data on a stream. After that, its connection counts as broken.
    pub silence_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ca_file: None,
            patience: Patience::default(),
            answer_within: ANSWER_WITHIN,
            silence_max: SILENCE_MAX,
        }
    }
}

impl Client {
    /// Creates a client for the server at this address. Does not connect yet.
    ///
    /// # Errors
    /// Returns an error if the address or the secret is malformed.
    pub fn new(url: &str, secret: &str) -> Result<Self, Error> {
        Self::with(url, secret, Options::default())
    }

    /// Creates a client with these options. Does not connect yet.
    ///
    /// # Errors
    /// Returns an error if the address or the secret is malformed or if the certificate file cannot be used.
    pub fn with(url: &str, secret: &str, options: Options) -> Result<Self, Error> {
        Ok(Self { link: Arc::new(ServerLink::new(url, secret, options)?) })
    }

    /// Returns the server's address.
    pub fn url(&self) -> &str {
        &self.link.url
    }

    /// Creates a sandbox and waits until it is running. A retry does not create a second sandbox.
    ///
    /// # Errors
    /// Returns an error if the request is invalid, there is no capacity, or the sandbox failed to start. A
    /// failed start leaves no resources behind.
    pub async fn create(&self, request: &CreateSandbox) -> Result<Sandbox, Error> {
        request.check_asked().map_err(Error::Refused)?;
        self.link.call(&ApiRequest::new(Method::POST, "/v1/sandboxes").json(request)?.once()?).await
    }

    /// Returns a sandbox by its ID or its name.
    ///
    /// # Errors
    /// Returns an error if the sandbox does not exist.
    pub async fn sandbox(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}"))).await
    }

    /// Lists the project's live sandboxes. With `ended`, includes sandboxes that have ended.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn sandboxes(&self, ended: bool) -> Result<Vec<Sandbox>, Error> {
        self.pages(&format!("/v1/sandboxes?all={ended}")).await
    }

    /// Stops a sandbox and waits until all its resources are removed. This is idempotent.
    ///
    /// # Errors
    /// Returns an error if the sandbox does not exist.
    pub async fn stop(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&ApiRequest::new(Method::DELETE, format!("/v1/sandboxes/{sandbox}"))).await
    }

    /// Pauses a sandbox. Does nothing if the sandbox is already paused.
    ///
    /// # Errors
    /// Returns an error if the sandbox is not running or if its backend does not support pausing.
    pub async fn pause(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&ApiRequest::new(Method::POST, format!("/v1/sandboxes/{sandbox}/pause")).again()).await
    }

    /// Resumes a paused sandbox. Does nothing if the sandbox is already running.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or if its backend cannot resume it.
    pub async fn resume(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link
            .call(&ApiRequest::new(Method::POST, format!("/v1/sandboxes/{sandbox}/resume")).again())
            .await
    }

    /// Sets a new idle timeout for a sandbox, counted from now.
    ///
    /// # Errors
    /// Returns an error if the sandbox is not running or if the timeout is outside the allowed range.
    pub async fn renew(&self, sandbox: &SandboxId, lease: Lease) -> Result<Sandbox, Error> {
        lease.check().map_err(Error::Refused)?;
        self.link
            .call(&ApiRequest::new(Method::PUT, format!("/v1/sandboxes/{sandbox}/lease")).json(&lease)?)
            .await
    }

    /// Replaces the sandbox's policy. Closes open connections that the new policy does not allow.
    ///
    /// # Errors
    /// Returns an error if the sandbox is not running, or if the policy is invalid or not allowed.
    pub async fn set_policy(&self, sandbox: &SandboxId, policy: &Policy) -> Result<Sandbox, Error> {
        policy.check().map_err(Error::Refused)?;
        self.link
            .call(&ApiRequest::new(Method::PUT, format!("/v1/sandboxes/{sandbox}/policy")).json(policy)?)
            .await
    }

    /// Returns the sandbox's lock record, which lists the packages that the sandbox received.
    ///
    /// # Errors
    /// Returns an error if the sandbox does not exist.
    pub async fn packages(&self, sandbox: &SandboxId) -> Result<Vec<Installed>, Error> {
        self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/packages"))).await
    }

    /// Returns the current resource usage of a sandbox.
    ///
    /// # Errors
    /// Returns an error if the sandbox is not running.
    pub async fn usage(&self, sandbox: &SandboxId) -> Result<Usage, Error> {
        self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/usage"))).await
    }

    /// Returns the traces of the most recent requests for a sandbox, the oldest first. With `exec`, returns
    /// only the traces of requests for that exec.
    ///
    /// # Errors
    /// Returns an error if the sandbox does not exist.
    pub async fn trace(&self, sandbox: &SandboxId, exec: Option<&ExecId>) -> Result<Vec<Trace>, Error> {
        let asked = exec.map(|exec| format!("?exec={exec}")).unwrap_or_default();
        self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/trace{asked}"))).await
    }

    /// Fetches all pages of a list and returns their items.
    pub(crate) async fn pages<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Error> {
        let first = format!("{path}{}limit={PAGE_MAX}", if path.contains('?') { '&' } else { '?' });
        let (mut items, mut path) = (Vec::new(), first.clone());
        for _ in 0..PAGES_MAX {
            let page: Page<T> = self.link.call(&ApiRequest::get(path)).await?;
            items.extend(page.items);
            let Some(cursor) = page.next else { return Ok(items) };
            path = format!("{first}&cursor={}", escape(&cursor));
        }
        Err(self.link.protocol(format!("a list has more than {PAGES_MAX} pages")))
    }
}

/// Percent-encodes a string so that it forms exactly one path segment or one query value.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => escaped.push(char::from(byte)),
            // Dots are escaped as well, because `..` would refer to the parent path.
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_named_cannot_leave_its_place_in_a_path() {
        assert_eq!(escape("k_1-a"), "k_1-a");
        assert_eq!(escape("../a?b&c"), "%2E%2E%2Fa%3Fb%26c");
    }

    #[test]
    fn an_address_that_is_none_is_refused_before_anything_is_sent() {
        for url in ["", "localhost:8700", "ftp://a", "http://u:p@a", "http://a?x=1", "unix:/run/x"] {
            assert!(matches!(Client::new(url, "s"), Err(Error::Configuration { .. })), "{url}");
        }
        assert!(matches!(Client::new("http://a", "new\nline"), Err(Error::Configuration { .. })));
        assert_eq!(Client::new("http://a:1/", "s").unwrap().url(), "http://a:1");
        assert_eq!(Client::new("https://a/bellglass/", "s").unwrap().url(), "https://a/bellglass");
    }

    #[test]
    fn a_file_without_certificates_is_not_taken_for_trust_in_all() {
        let options = Options { ca_file: Some("/dev/null".into()), ..Options::default() };
        assert!(matches!(Client::with("https://a", "s", options), Err(Error::Configuration { .. })));
    }
}

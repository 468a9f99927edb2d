//! The client itself, and what it does with sandboxes.

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
use crate::link::{Ask, Link};
use crate::patience::Patience;

/// The slowest answer is that of a start or a stop on a machine that is busy with many others.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Three heartbeats that did not come.
const SILENCE_MAX: Duration = Duration::from_millis(3 * HEARTBEAT_MS);
/// A list of more than a million is a server that goes round in circles.
const PAGES_MAX: usize = 1000;

/// One server, asked with one key. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) link: Arc<Link>,
}

/// How a server is asked, where the usual will not do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Certificates to trust, in PEM, instead of those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// For how long a request is repeated that does no harm when repeated.
    pub patience: Patience,
    /// How long one answer may take.
    pub answer_within: Duration,
    /// How long a stream may be silent before its connection counts as dead.
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
    /// A client of the server at this address. Nothing is sent yet.
    ///
    /// # Errors
    /// The address or the secret cannot be one.
    pub fn new(url: &str, secret: &str) -> Result<Self, Error> {
        Self::with(url, secret, Options::default())
    }

    /// A client that asks in another way than the usual.
    ///
    /// # Errors
    /// The address, the secret or the file of certificates cannot be used.
    pub fn with(url: &str, secret: &str, options: Options) -> Result<Self, Error> {
        Ok(Self { link: Arc::new(Link::new(url, secret, options)?) })
    }

    /// The server's address.
    pub fn url(&self) -> &str {
        &self.link.url
    }

    /// Makes a sandbox and waits until it runs. However often it has to be asked, one is made.
    ///
    /// # Errors
    /// The request is wrong, there is no room, or the start failed: then nothing is left of it.
    pub async fn create(&self, request: &CreateSandbox) -> Result<Sandbox, Error> {
        request.check_asked().map_err(Error::Refused)?;
        self.link.call(&Ask::new(Method::POST, "/v1/sandboxes").json(request)?.once()?).await
    }

    /// How a sandbox is doing, by its id or its name.
    ///
    /// # Errors
    /// It is not known.
    pub async fn sandbox(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&Ask::get(format!("/v1/sandboxes/{sandbox}"))).await
    }

    /// The project's sandboxes that live; with `ended`, also those that do not any more.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn sandboxes(&self, ended: bool) -> Result<Vec<Sandbox>, Error> {
        self.pages(&format!("/v1/sandboxes?all={ended}")).await
    }

    /// Ends a sandbox and waits until nothing of it is left. Can be repeated.
    ///
    /// # Errors
    /// It is not known.
    pub async fn stop(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&Ask::new(Method::DELETE, format!("/v1/sandboxes/{sandbox}"))).await
    }

    /// Pauses a sandbox. A paused one stays paused.
    ///
    /// # Errors
    /// It does not run, or its backend cannot pause it.
    pub async fn pause(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&Ask::new(Method::POST, format!("/v1/sandboxes/{sandbox}/pause")).again()).await
    }

    /// Resumes a paused sandbox. A running one is left as it is.
    ///
    /// # Errors
    /// It has ended, or its backend cannot resume it.
    pub async fn resume(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.link.call(&Ask::new(Method::POST, format!("/v1/sandboxes/{sandbox}/resume")).again()).await
    }

    /// Gives a sandbox another idle time, counted from now.
    ///
    /// # Errors
    /// It does not run, or the time is too short or too long.
    pub async fn renew(&self, sandbox: &SandboxId, lease: Lease) -> Result<Sandbox, Error> {
        lease.check().map_err(Error::Refused)?;
        self.link.call(&Ask::new(Method::PUT, format!("/v1/sandboxes/{sandbox}/lease")).json(&lease)?).await
    }

    /// Gives a sandbox another policy. What is under way and no longer allowed is cut.
    ///
    /// # Errors
    /// It does not run, or the policy is none, or not for this project.
    pub async fn set_policy(&self, sandbox: &SandboxId, policy: &Policy) -> Result<Sandbox, Error> {
        policy.check().map_err(Error::Refused)?;
        self.link.call(&Ask::new(Method::PUT, format!("/v1/sandboxes/{sandbox}/policy")).json(policy)?).await
    }

    /// The packages that a sandbox was given: its lock record.
    ///
    /// # Errors
    /// It is not known.
    pub async fn packages(&self, sandbox: &SandboxId) -> Result<Vec<Installed>, Error> {
        self.link.call(&Ask::get(format!("/v1/sandboxes/{sandbox}/packages"))).await
    }

    /// What a sandbox uses now.
    ///
    /// # Errors
    /// It does not run.
    pub async fn usage(&self, sandbox: &SandboxId) -> Result<Usage, Error> {
        self.link.call(&Ask::get(format!("/v1/sandboxes/{sandbox}/usage"))).await
    }

    /// Where the time of the last requests for a sandbox went, the oldest first; of those for one exec, if one is named.
    ///
    /// # Errors
    /// It is not known.
    pub async fn trace(&self, sandbox: &SandboxId, exec: Option<&ExecId>) -> Result<Vec<Trace>, Error> {
        let asked = exec.map(|exec| format!("?exec={exec}")).unwrap_or_default();
        self.link.call(&Ask::get(format!("/v1/sandboxes/{sandbox}/trace{asked}"))).await
    }

    /// All pages of a list.
    pub(crate) async fn pages<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Error> {
        let first = format!("{path}{}limit={PAGE_MAX}", if path.contains('?') { '&' } else { '?' });
        let (mut items, mut path) = (Vec::new(), first.clone());
        for _ in 0..PAGES_MAX {
            let page: Page<T> = self.link.call(&Ask::get(path)).await?;
            items.extend(page.items);
            let Some(cursor) = page.next else { return Ok(items) };
            path = format!("{first}&cursor={}", escape(&cursor));
        }
        Err(self.link.protocol(format!("a list has more than {PAGES_MAX} pages")))
    }
}

/// A text as one piece of a path or a query, whatever is in it.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => escaped.push(char::from(byte)),
            // A dot is escaped as well: two of them alone would be a step up.
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

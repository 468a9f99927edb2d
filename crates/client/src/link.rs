//! API requests, retried over new connections when that is safe.
//!
//! A request is repeated if it failed before anything was sent, or if repeating it has no additional effect.
//! This is the case if the request only reads data, replaces something, or carries an idempotency key. Any
//! other request that fails after it was sent returns an error with `ran: unknown`.

mod failure;
mod request;

use std::time::Duration;

use api::server::{API_VERSION, VERSION_HEADER};
use api::{Ran, limits};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::BytesMut;
use reqwest::header::{
    AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Response, StatusCode, Upgraded, Url};
use serde::de::DeserializeOwned;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::client::Options;
use crate::error::Error;
use crate::patience::{Attempts, Trouble};
use crate::tls;
use failure::{is_distrust, refused};

pub(crate) use failure::{FailedAttempt, root_cause};
pub(crate) use request::ApiRequest;

/// Timeout for establishing a connection. Even a connection around the world takes only a tenth of this.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Idle time before the first TCP keepalive probe, and interval between probes. With `KEEPALIVE_PROBES`, a
/// dead connection is detected after 15 s, which is also the default of `Options::silence_max`.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 2;
/// Maximum size of an error response. The server's error responses are smaller.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of characters that an error message quotes from a response of a non-Bellglass server.
const FOREIGN_SHOWN: usize = 200;

/// A server's address and the HTTP client for it.
pub(crate) struct ServerLink {
    http: reqwest::Client,
    pub url: String,
    pub options: Options,
}

impl ServerLink {
    pub fn new(url: &str, secret: &str, options: Options) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Configuration {
            what: format!("the server's address {url:?}"),
            why: why.into(),
        };
        if !url.contains("://") {
            return Err(wrong("the address does not begin with http:// or https://"));
        }
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        let encrypted = match parsed.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(wrong("the address does not begin with http:// or https://")),
        };
        if parsed.query().is_some() || parsed.fragment().is_some() || !parsed.username().is_empty() {
            return Err(wrong("only a scheme, a host, a port and a path are allowed"));
        }
        let tls = tls::config(encrypted, options.ca_file.as_deref())?;
        let builder = reqwest::Client::builder();
        // Without encryption, a proxy that the environment configures could read the key.
        let may_use_proxy = encrypted || api::defence::is_off("N-40");
        let builder = if may_use_proxy { builder } else { builder.no_proxy() };
        let http = builder
            .tls_backend_preconfigured(tls)
            .default_headers(headers(secret)?)
            .http1_only()
            // A redirect could send the key to a different server, and this module implements retries itself.
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_WITHIN)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(KEEPALIVE_PROBES)
            .build()
            .map_err(|error| wrong(&root_cause(&error)))?;
        Ok(Self { http, url: parsed.as_str().trim_end_matches('/').to_owned(), options })
    }

    /// Sends a request, with retries, and parses the response.
    pub async fn call<T: DeserializeOwned>(&self, ask: &ApiRequest) -> Result<T, Error> {
        let mut attempts = self.attempts();
        loop {
            match self.try_call(ask).await {
                Ok(body) => {
                    return serde_json::from_slice(&body).map_err(|error| {
                        self.protocol(format!("malformed response to {}: {error}", ask.path))
                    });
                }
                Err(failure) => self.pause(&mut attempts, failure).await?,
            }
        }
    }

    /// Sends a request, with retries, and discards the response body.
    pub async fn done(&self, ask: &ApiRequest) -> Result<(), Error> {
        let mut attempts = self.attempts();
        loop {
            match self.try_call(ask).await {
                Ok(_) => return Ok(()),
                Err(failure) => self.pause(&mut attempts, failure).await?,
            }
        }
    }

    /// Sends a request once. Returns the response, with its body unread, if its status indicates success.
    pub async fn open(&self, ask: &ApiRequest) -> Result<Response, FailedAttempt> {
        let response = self.send(ask).await?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(ask, response).await) }
    }

    /// Sends a WebSocket handshake once.
    pub async fn socket(&self, ask: &ApiRequest) -> Result<Upgraded, FailedAttempt> {
        let key = random_key().map_err(|error| FailedAttempt { error, trouble: None, pause: None })?;
        let mut ask = ask.clone();
        for (name, value) in [
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (UPGRADE, HeaderValue::from_static("websocket")),
            (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
            (SEC_WEBSOCKET_KEY, key.clone()),
        ] {
            ask.headers.insert(name, value);
        }
        let response = self.send(&ask).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.refusal(&ask, response).await);
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
        if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            let error = self.protocol("the response to the WebSocket handshake has the wrong key".into());
            return Err(FailedAttempt { error, trouble: None, pause: None });
        }
        response.upgrade().await.map_err(|error| self.lost(&ask, &error))
    }

    /// Sends a request once, with a streamed body. Returns the response if its status indicates success. Has
    /// no timeout, because the caller that streams the body enforces one.
    pub async fn open_with(&self, ask: &ApiRequest, body: reqwest::Body) -> Result<Response, FailedAttempt> {
        let response = self.request(ask).body(body).send().await.map_err(|error| self.lost(ask, &error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(ask, response).await) }
    }

    fn request(&self, ask: &ApiRequest) -> reqwest::RequestBuilder {
        let url = format!("{}{}", self.url, ask.path);
        self.http.request(ask.method.clone(), url).headers(ask.headers.clone())
    }

    /// Sends a request once and returns the response, regardless of its status.
    pub async fn send(&self, ask: &ApiRequest) -> Result<Response, FailedAttempt> {
        let request = self.request(ask).body(ask.body.clone());
        match tokio::time::timeout(self.within(ask), request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.lost(ask, &error)),
            Err(_) => Err(self.silent(ask)),
        }
    }

    /// Waits before the next attempt, or returns the last attempt's error if no further attempt is allowed.
    pub async fn pause(&self, attempts: &mut Attempts, failure: FailedAttempt) -> Result<(), Error> {
        tokio::time::sleep(failure.pause(attempts)?).await;
        Ok(())
    }

    pub fn attempts(&self) -> Attempts {
        Attempts::new(self.options.patience)
    }

    /// Returns the failure for a connection that broke after the server may have started to process the
    /// request.
    pub fn cut(&self, why: String) -> FailedAttempt {
        let error = Error::Unreachable { url: self.url.clone(), why, ran: Ran::Unknown };
        FailedAttempt { error, trouble: Some(Trouble::Connection), pause: None }
    }

    pub fn protocol(&self, what: String) -> Error {
        Error::Protocol { url: self.url.clone(), what }
    }

    /// Reads a body of at most `most` bytes.
    pub async fn body(
        &self,
        ask: &ApiRequest,
        mut response: Response,
        most: usize,
    ) -> Result<BytesMut, FailedAttempt> {
        let mut body = BytesMut::new();
        let reading = async {
            while let Some(bytes) = response.chunk().await.map_err(|error| self.lost(ask, &error))? {
                if body.len() + bytes.len() > most {
                    let error =
                        self.protocol(format!("the response to {} has more than {most} bytes", ask.path));
                    return Err(FailedAttempt { error, trouble: None, pause: None });
                }
                body.extend_from_slice(&bytes);
            }
            Ok(())
        };
        match tokio::time::timeout(self.within(ask), reading).await {
            Ok(read) => read.map(|()| body),
            Err(_) => Err(self.silent(ask)),
        }
    }

    async fn try_call(&self, ask: &ApiRequest) -> Result<BytesMut, FailedAttempt> {
        let response = self.open(ask).await?;
        self.body(ask, response, limits::BODY_BYTES_MAX).await
    }

    /// Converts an error response into a failed attempt, and determines whether another attempt may succeed.
    pub async fn refusal(&self, ask: &ApiRequest, response: Response) -> FailedAttempt {
        let status = response.status();
        let pause = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let pause = pause.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let body = match self.body(ask, response, ERROR_BYTES_MAX).await {
            Ok(body) => body,
            Err(failure) => return failure,
        };
        match serde_json::from_slice::<api::Error>(&body) {
            Ok(error) => {
                FailedAttempt { trouble: refused(status, &error), error: Error::Refused(error), pause }
            }
            Err(_) => self.foreign(ask, status, &body, pause),
        }
    }

    /// Converts an error response that a different kind of server sent, such as a proxy.
    fn foreign(
        &self,
        ask: &ApiRequest,
        status: StatusCode,
        body: &[u8],
        pause: Option<Duration>,
    ) -> FailedAttempt {
        let gateway = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        if gateway.contains(&status) {
            let failure = self.cut(format!("it returned {status}"));
            return FailedAttempt { trouble: failure.trouble.filter(|_| ask.repeatable), pause, ..failure };
        }
        let shown: String = String::from_utf8_lossy(body).chars().take(FOREIGN_SHOWN).collect();
        let error = self.protocol(format!("unexpected response {status} to {}: {shown:?}", ask.path));
        FailedAttempt { error, trouble: None, pause: None }
    }

    fn lost(&self, ask: &ApiRequest, error: &reqwest::Error) -> FailedAttempt {
        let (url, why) = (self.url.clone(), root_cause(error));
        if is_distrust(error) {
            return FailedAttempt { error: Error::Distrusted { url, why }, trouble: None, pause: None };
        }
        let ran = if error.is_connect() { Ran::No } else { Ran::Unknown };
        let repeat = !error.is_builder() && (ask.repeatable || ran == Ran::No);
        let error = Error::Unreachable { url, why, ran };
        FailedAttempt { error, trouble: repeat.then_some(Trouble::Connection), pause: None }
    }

    fn silent(&self, ask: &ApiRequest) -> FailedAttempt {
        let failure = self.cut(format!("no response for {:?}", self.within(ask)));
        FailedAttempt { trouble: failure.trouble.filter(|_| ask.repeatable), ..failure }
    }

    fn within(&self, ask: &ApiRequest) -> Duration {
        ask.within.unwrap_or(self.options.answer_within)
    }
}

fn random(what: &str) -> Result<[u8; 16], Error> {
    let mut random = [0; 16];
    match getrandom::fill(&mut random) {
        Ok(()) => Ok(random),
        Err(error) => Err(Error::Configuration { what: what.into(), why: error.to_string() }),
    }
}

/// Returns a random WebSocket key. The server's handshake response must contain a value derived from it.
fn random_key() -> Result<HeaderValue, Error> {
    let what = "a WebSocket key";
    HeaderValue::from_str(&BASE64_STANDARD.encode(random(what)?))
        .map_err(|error| Error::Configuration { what: what.into(), why: error.to_string() })
}

fn headers(secret: &str) -> Result<HeaderMap, Error> {
    let mut key =
        HeaderValue::from_str(&format!("Bearer {}", secret.trim())).map_err(|_| Error::Configuration {
            what: "the key".into(),
            why: "the key contains characters that are not allowed".into(),
        })?;
    key.set_sensitive(true);
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, key);
    headers.insert(VERSION_HEADER, HeaderValue::from(API_VERSION));
    Ok(headers)
}

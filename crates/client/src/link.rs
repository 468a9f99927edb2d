//! One request over as many connections as it takes.
//!
//! A request is sent again when it failed before anything was sent, or when it can be repeated without a further effect:
//! it asks or replaces, or carries an idempotency key. Everything else fails with `ran: unknown` once it was sent.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use api::server::{API_VERSION, IDEMPOTENCY_HEADER, VERSION_HEADER};
use api::{ErrorCode, Ran, Retry, limits};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Method, Response, StatusCode, Upgraded, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::client::Options;
use crate::error::Error;
use crate::patience::{Attempts, Trouble};
use crate::tls;

/// A connection is made within this or not at all: even around the world it takes a tenth.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// After so long without a byte, the operating system asks whether the other side is still there; at the third missing
/// answer the connection counts as broken. The same 15 s that a stream may be silent.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 2;
/// An error says what it has to say in less.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// What is shown of an answer that is not one of ours.
const FOREIGN_SHOWN: usize = 200;

/// A server, and how it is asked.
pub(crate) struct Link {
    http: reqwest::Client,
    pub url: String,
    pub options: Options,
}

/// A request.
#[derive(Clone)]
pub(crate) struct Ask {
    method: Method,
    path: String,
    body: Bytes,
    headers: HeaderMap,
    within: Option<Duration>,
    repeatable: bool,
}

/// A try that failed, and whether another may do better.
pub(crate) struct Failure {
    pub error: Error,
    pub trouble: Option<Trouble>,
    pub pause: Option<Duration>,
}

impl Ask {
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let repeatable = method != Method::POST;
        let (path, body, headers) = (path.into(), Bytes::new(), HeaderMap::new());
        Self { method, path, body, headers, within: None, repeatable }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub fn json(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::Configuration { what: "the request".into(), why: error.to_string() })?;
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { body: body.into(), ..self })
    }

    pub fn raw(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// Marks it with a fresh key, under which the server does it once, however often it is sent.
    pub fn once(mut self) -> Result<Self, Error> {
        let random = random("an idempotency key")?;
        let key = format!("{:032x}", u128::from_be_bytes(random));
        let key = HeaderValue::from_str(&key).map_err(|error| Error::Configuration {
            what: "an idempotency key".into(),
            why: error.to_string(),
        })?;
        self.headers.insert(IDEMPOTENCY_HEADER, key);
        Ok(Self { repeatable: true, ..self })
    }

    /// Marks it as one that does no harm when repeated.
    pub fn again(self) -> Self {
        Self { repeatable: true, ..self }
    }

    pub fn accept(mut self, kind: &'static str) -> Self {
        self.headers.insert(ACCEPT, HeaderValue::from_static(kind));
        self
    }

    /// With one more header, whose value is one.
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Waits so long for the answer, instead of as long as the options say.
    pub fn within(self, within: Duration) -> Self {
        Self { within: Some(within), ..self }
    }
}

impl Failure {
    /// How long to wait before the next try; the error, if there is none to be made.
    pub fn pause(self, attempts: &mut Attempts) -> Result<Duration, Error> {
        let Some(trouble) = self.trouble else { return Err(self.error) };
        attempts.after(trouble, self.pause, Instant::now()).ok_or(self.error)
    }
}

impl Link {
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
        // Without encryption a proxy of the environment would read the key.
        let may_use_proxy = encrypted || api::defence::is_off("N-40");
        let builder = if may_use_proxy { builder } else { builder.no_proxy() };
        let http = builder
            .tls_backend_preconfigured(tls)
            .default_headers(headers(secret)?)
            .http1_only()
            // The key goes to the server that was named and to no other, and what is repeated is decided here.
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

    /// Asks, and understands the answer.
    pub async fn call<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Error> {
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

    /// Asks for something that is answered by its being done.
    pub async fn done(&self, ask: &Ask) -> Result<(), Error> {
        let mut attempts = self.attempts();
        loop {
            match self.try_call(ask).await {
                Ok(_) => return Ok(()),
                Err(failure) => self.pause(&mut attempts, failure).await?,
            }
        }
    }

    /// Sends a request once; the answer is one of success, its body still to come.
    pub async fn open(&self, ask: &Ask) -> Result<Response, Failure> {
        let response = self.send(ask).await?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(ask, response).await) }
    }

    /// Asks once for a connection that becomes a WebSocket.
    pub async fn socket(&self, ask: &Ask) -> Result<Upgraded, Failure> {
        let key = random_key().map_err(|error| Failure { error, trouble: None, pause: None })?;
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
            return Err(Failure { error, trouble: None, pause: None });
        }
        response.upgrade().await.map_err(|error| self.lost(&ask, &error))
    }

    /// Sends a request once, with a body that is made while it is sent; the answer is one of success. How long that may take is
    /// for whoever makes the body to say.
    pub async fn open_with(&self, ask: &Ask, body: reqwest::Body) -> Result<Response, Failure> {
        let response = self.request(ask).body(body).send().await.map_err(|error| self.lost(ask, &error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(ask, response).await) }
    }

    fn request(&self, ask: &Ask) -> reqwest::RequestBuilder {
        let url = format!("{}{}", self.url, ask.path);
        self.http.request(ask.method.clone(), url).headers(ask.headers.clone())
    }

    /// Sends a request once; the answer is whatever came.
    pub async fn send(&self, ask: &Ask) -> Result<Response, Failure> {
        let request = self.request(ask).body(ask.body.clone());
        match tokio::time::timeout(self.within(ask), request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.lost(ask, &error)),
            Err(_) => Err(self.silent(ask)),
        }
    }

    /// Waits before the next try, or gives up with what the last one came to.
    pub async fn pause(&self, attempts: &mut Attempts, failure: Failure) -> Result<(), Error> {
        tokio::time::sleep(failure.pause(attempts)?).await;
        Ok(())
    }

    pub fn attempts(&self) -> Attempts {
        Attempts::new(self.options.patience)
    }

    /// A connection that broke after the answer began: what was asked for has begun, too.
    pub fn cut(&self, why: String) -> Failure {
        let error = Error::Unreachable { url: self.url.clone(), why, ran: Ran::Unknown };
        Failure { error, trouble: Some(Trouble::Connection), pause: None }
    }

    pub fn protocol(&self, what: String) -> Error {
        Error::Protocol { url: self.url.clone(), what }
    }

    /// Reads a body of at most so many bytes.
    pub async fn body(&self, ask: &Ask, mut response: Response, most: usize) -> Result<BytesMut, Failure> {
        let mut body = BytesMut::new();
        let reading = async {
            while let Some(bytes) = response.chunk().await.map_err(|error| self.lost(ask, &error))? {
                if body.len() + bytes.len() > most {
                    let error =
                        self.protocol(format!("the response to {} has more than {most} bytes", ask.path));
                    return Err(Failure { error, trouble: None, pause: None });
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

    async fn try_call(&self, ask: &Ask) -> Result<BytesMut, Failure> {
        let response = self.open(ask).await?;
        self.body(ask, response, limits::BODY_BYTES_MAX).await
    }

    /// What an answer that is none of success means for another try.
    pub async fn refusal(&self, ask: &Ask, response: Response) -> Failure {
        let status = response.status();
        let pause = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let pause = pause.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let body = match self.body(ask, response, ERROR_BYTES_MAX).await {
            Ok(body) => body,
            Err(failure) => return failure,
        };
        match serde_json::from_slice::<api::Error>(&body) {
            Ok(error) => Failure { trouble: refused(status, &error), error: Error::Refused(error), pause },
            Err(_) => self.foreign(ask, status, &body, pause),
        }
    }

    /// An answer of something between us and the server, or of another server.
    fn foreign(&self, ask: &Ask, status: StatusCode, body: &[u8], pause: Option<Duration>) -> Failure {
        let gateway = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        if gateway.contains(&status) {
            let failure = self.cut(format!("it returned {status}"));
            return Failure { trouble: failure.trouble.filter(|_| ask.repeatable), pause, ..failure };
        }
        let shown: String = String::from_utf8_lossy(body).chars().take(FOREIGN_SHOWN).collect();
        let error = self.protocol(format!("unexpected response {status} to {}: {shown:?}", ask.path));
        Failure { error, trouble: None, pause: None }
    }

    fn lost(&self, ask: &Ask, error: &reqwest::Error) -> Failure {
        let (url, why) = (self.url.clone(), root_cause(error));
        if is_distrust(error) {
            return Failure { error: Error::Distrusted { url, why }, trouble: None, pause: None };
        }
        let ran = if error.is_connect() { Ran::No } else { Ran::Unknown };
        let repeat = !error.is_builder() && (ask.repeatable || ran == Ran::No);
        let error = Error::Unreachable { url, why, ran };
        Failure { error, trouble: repeat.then_some(Trouble::Connection), pause: None }
    }

    fn silent(&self, ask: &Ask) -> Failure {
        let failure = self.cut(format!("no response for {:?}", self.within(ask)));
        Failure { trouble: failure.trouble.filter(|_| ask.repeatable), ..failure }
    }

    fn within(&self, ask: &Ask) -> Duration {
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

/// By which a server shows that it answers this request and no other.
fn random_key() -> Result<HeaderValue, Error> {
    let what = "a WebSocket key";
    HeaderValue::from_str(&BASE64_STANDARD.encode(random(what)?))
        .map_err(|error| Error::Configuration { what: what.into(), why: error.to_string() })
}

/// What really happened, without the layers that only say that something did.
pub(crate) fn root_cause(error: &reqwest::Error) -> String {
    chain(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether the server is not who it should be: asking again changes nothing. An error of I/O names what it wraps not as its
/// source but as its content, so both are followed.
fn is_distrust(error: &(dyn StdError + 'static)) -> bool {
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

/// Whether the server's no is one for now, and of which kind.
fn refused(status: StatusCode, error: &api::Error) -> Option<Trouble> {
    // A quota is waited for by whoever can free some of it.
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

//! A request to the API, with its body, its headers, and whether repeating it has an additional effect.

use std::time::Duration;

use api::server::IDEMPOTENCY_HEADER;
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;

use super::random;
use crate::error::Error;

/// A request to the API.
#[derive(Clone)]
pub(crate) struct ApiRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
    pub(super) headers: HeaderMap,
    pub(super) within: Option<Duration>,
    pub(super) repeatable: bool,
}

impl ApiRequest {
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

    /// Adds a fresh idempotency key, which makes the server perform the request only once despite retries.
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

    /// Marks the request as safe to repeat.
    pub fn again(self) -> Self {
        Self { repeatable: true, ..self }
    }

    pub fn accept(mut self, kind: &'static str) -> Self {
        self.headers.insert(ACCEPT, HeaderValue::from_static(kind));
        self
    }

    /// Adds a header. Ignores values that headers cannot contain.
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Replaces the default timeout for the response.
    pub fn within(self, within: Duration) -> Self {
        Self { within: Some(within), ..self }
    }
}

//! What a request brings: who asks, under which idempotency key, and with which body.
//!
//! Who asks is decided on the headers, before a byte of the body is read.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use api::account::Role;
use api::server::{IDEMPOTENCY_BYTES_MAX, IDEMPOTENCY_HEADER};
use api::trace::STEP;
use api::{ContextId, Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::{HeaderMap, header, request::Parts};
use bytes::Bytes;
use node::clock;
use node::machine::random;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument as _, info_span};

use crate::account::Account;
use crate::audit::{Act, Entry};
use crate::fault::{Answer, Fault};
use crate::listen::Known;
use crate::platform::Platform;

/// A body that takes longer is not coming.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// Whoever asks, with a key that is valid.
pub struct Caller {
    /// Whose key it is.
    pub account: Arc<Account>,
    platform: Arc<Platform>,
}

/// The idempotency key of a request, if it has one.
pub struct Idempotency(pub Option<String>);

/// A body of JSON.
pub struct Sent<T>(pub T);

/// A body that was read, and the room it takes for as long as it is held.
pub struct Whole {
    /// The body.
    pub bytes: Bytes,
    /// Its room among the bodies of its project.
    pub room: Option<OwnedSemaphorePermit>,
}

/// What the path names.
pub struct At<T>(pub T);

/// What stands behind the question mark.
pub struct Asked<T>(pub T);

impl Deref for Caller {
    type Target = Account;

    fn deref(&self) -> &Account {
        &self.account
    }
}

impl Caller {
    /// Somebody who is known by something else than a key.
    pub fn of(account: Arc<Account>, platform: &Arc<Platform>) -> Self {
        Self { account, platform: Arc::clone(platform) }
    }

    /// Refuses a key whose role is less than this, and writes that down.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn require(&self, role: Role) -> Answer<()> {
        self.account
            .require(role)
            .inspect_err(|_| self.platform.note(&self.account, Act::Forbidden, |entry| entry))
    }
}

impl FromRequestParts<Arc<Platform>> for Caller {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Answer<Self> {
        let from = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        let secret = secret(&parts.headers);
        let known = platform.accounts.authenticate(&platform.store, secret, from, clock::wall_ms());
        match known.instrument(info_span!(target: STEP, "key")).await {
            Ok(account) => {
                if let Some(known) = parts.extensions.get::<Known>() {
                    known.now();
                }
                // Its body is counted against its project.
                parts.extensions.insert(Arc::clone(&account));
                Ok(Self { account, platform: Arc::clone(platform) })
            }
            Err(fault) => {
                if fault.error().code == ErrorCode::Unauthorized {
                    let from = from.as_ref().map(IpAddr::to_string).unwrap_or_default();
                    platform
                        .audit
                        .record(Entry::new(clock::wall_ms(), Act::AuthenticateFailed).detail(&from));
                }
                Err(fault)
            }
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_HEADER).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return match parts.headers.contains_key(IDEMPOTENCY_HEADER) {
                false => Ok(Self(None)),
                true => Err(Error::invalid("there are two idempotency keys", "Send one.").into()),
            };
        };
        let text = value.to_str().unwrap_or_default();
        if text.is_empty() || text.len() > IDEMPOTENCY_BYTES_MAX {
            return Err(Error::invalid(
                "the idempotency key is empty, too long or not text",
                format!("Use 1 to {IDEMPOTENCY_BYTES_MAX} printable ASCII characters."),
            )
            .into());
        }
        Ok(Self(Some(text.to_owned())))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for At<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(Error::invalid(error.body_text(), "Mend the path.").into()),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(Error::invalid(error.body_text(), "Mend the query.").into()),
        }
    }
}

impl Idempotency {
    /// The id of an exec: always the same for the same key, and a fresh one without a key.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn exec_id(&self) -> Answer<ExecId> {
        Ok(ExecId::from_random(self.bytes()?))
    }

    /// The id of a context, likewise.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn context_id(&self) -> Answer<ContextId> {
        Ok(ContextId::from_random(self.bytes()?))
    }

    fn bytes(&self) -> Answer<[u8; 16]> {
        Ok(match &self.0 {
            Some(key) => Sha256::digest(key).first_chunk::<16>().copied().unwrap_or_default(),
            None => random()?,
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        if kind != Some("application/json") {
            return Err(
                Error::invalid("the body is not JSON", "Send `content-type: application/json`.").into()
            );
        }
        let Whole { bytes, room: _room } = whole(request, limits::BODY_BYTES_MAX).await?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            Error::invalid(
                format!("the body is not what was expected: {error}"),
                "Mend what the message names; the fields are in the API description.",
            )
        })?;
        Ok(Self(value))
    }
}

/// A whole body of at most so many bytes, for which its project has room.
///
/// # Errors
/// It is longer, packed, or does not come; or the project has no room for it now.
pub async fn whole(request: Request, most: usize) -> Answer<Whole> {
    if request.headers().contains_key(header::CONTENT_ENCODING) {
        return Err(Error::invalid("the body is packed", "Send it without content-encoding.").into());
    }
    let length = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large(most).into());
    }
    // Without a length it may be as long as any. Every route knows its caller before it reads a body.
    let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(most);
    let account = request.extensions().get::<Arc<Account>>();
    let room = account.map(|account| account.share.room(length)).transpose()?;
    let body: Body = request.into_body();
    match tokio::time::timeout(BODY_WITHIN, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(Whole { bytes, room }),
        Ok(Err(error)) if is_too_long(&error) => Err(too_large(most).into()),
        Ok(Err(_)) => Err(Error::invalid("the body broke off", "Send the request again.").into()),
        Err(_) => Err(Error {
            retry: Retry::Safe,
            ..Error::invalid(format!("the body did not come within {BODY_WITHIN:?}"), "Send it faster.")
        }
        .into()),
    }
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit") {
            return true;
        }
        cause = error.source();
    }
    false
}

fn too_large(most: usize) -> Error {
    Error {
        code: ErrorCode::TooLarge,
        message: format!("the body is longer than {most} bytes"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Send less; large input goes through standard input in pieces.".into(),
    }
}

/// The one secret that a request shows. Two are none.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let mut bearer = headers.get_all(header::AUTHORIZATION).iter();
    let mut named = headers.get_all("x-api-key").iter();
    match (bearer.next(), named.next(), bearer.next(), named.next()) {
        (Some(value), None, None, None) => {
            let text = value.to_str().ok()?;
            let (scheme, secret) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
        }
        (None, Some(value), None, None) => value.to_str().ok(),
        _ => None,
    }
}

//! Extractors for the idempotency key, the path and the query. The credential has its own extractors in
//! [`crate::authority`], and the body in [`crate::body`].

use api::server::{IDEMPOTENCY_BYTES_MAX, IDEMPOTENCY_HEADER};
use api::{ContextId, Error, ExecId};
use axum::extract::{FromRequestParts, Path as AxumPath, Query as AxumQuery};
use axum::http::request::Parts;
use node::machine::random;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::rejection::{Answer, Rejection};

/// A request's idempotency key, if it has one.
pub struct Idempotency(pub Option<String>);

/// Path parameters. Like axum's extractor, but rejects invalid parameters with an API error.
pub struct Path<T>(pub T);

/// Path of the routes of one sandbox.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SandboxPath {
    /// Sandbox ID or name
    pub sandbox: String,
}

/// Query parameters. Like axum's extractor, but rejects invalid parameters with an API error.
pub struct Query<T>(pub T);

impl<S: Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_HEADER).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return match parts.headers.contains_key(IDEMPOTENCY_HEADER) {
                false => Ok(Self(None)),
                true => Err(Error::invalid(
                    "the request has more than one idempotency key",
                    "Send one idempotency key.",
                )
                .into()),
            };
        };
        let text = value.to_str().unwrap_or_default();
        if text.is_empty() || text.len() > IDEMPOTENCY_BYTES_MAX {
            return Err(Error::invalid(
                "the idempotency key is empty, too long or not printable ASCII",
                format!("Use 1 to {IDEMPOTENCY_BYTES_MAX} printable ASCII characters."),
            )
            .into());
        }
        Ok(Self(Some(text.to_owned())))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match AxumPath::from_request_parts(parts, state).await {
            Ok(AxumPath(value)) => Ok(Self(value)),
            Err(error) => Err(Error::invalid(error.body_text(), "Correct the path.").into()),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match AxumQuery::from_request_parts(parts, state).await {
            Ok(AxumQuery(value)) => Ok(Self(value)),
            Err(error) => Err(Error::invalid(error.body_text(), "Correct the query.").into()),
        }
    }
}

impl Idempotency {
    /// Returns an exec ID. The same key always yields the same ID; without a key, the ID is random.
    ///
    /// # Errors
    /// Returns an error if the kernel's random number generator is unavailable.
    pub fn exec_id(&self) -> Answer<ExecId> {
        Ok(ExecId::from_random(self.bytes()?))
    }

    /// Returns a context ID. The same key always yields the same ID; without a key, the ID is random.
    ///
    /// # Errors
    /// Returns an error if the kernel's random number generator is unavailable.
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

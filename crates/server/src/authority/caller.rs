//! The API caller as the first argument of a handler. A [`Caller<Write>`] exists only if the request has a
//! key with at least the role `write`.
//!
//! Authentication uses only the headers, before any byte of the body is read.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use api::ErrorCode;
use api::account::Role;
use api::trace::STEP;
use axum::extract::{ConnectInfo, FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use node::clock;
use tracing::{Instrument as _, info_span};

use super::cut::Slot;
use crate::listen::AuthenticationHandle;
use crate::rejection::{Answer, Rejection};
use control::audit::{Act, Entry};
use control::authority::grant::{Grant, Need, States};
use control::fault::Fault;
use control::platform::Platform;

/// A caller with a valid API key of at least the role `R`.
pub struct Caller<R> {
    grant: Grant,
    role: PhantomData<R>,
}

/// First argument of handlers of open routes, whose callers need no credential.
pub struct Anyone;

/// The role that allows reading.
pub struct Read;
/// The role that allows changes.
pub struct Write;
/// The role that allows administration.
pub struct Admin;

/// A role as a type.
pub trait Minimum {
    /// The role that this type represents.
    const ROLE: Role;
}

impl Minimum for Read {
    const ROLE: Role = Role::Read;
}

impl Minimum for Write {
    const ROLE: Role = Role::Write;
}

impl Minimum for Admin {
    const ROLE: Role = Role::Admin;
}

impl<R: Minimum> States for Caller<R> {
    const NEED: Need = Need::Key(R::ROLE);
}

impl States for Anyone {
    const NEED: Need = Need::Nothing;
}

impl<R> Deref for Caller<R> {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl<S: Sync> FromRequestParts<S> for Anyone {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self)
    }
}

impl<R, S> FromRequestParts<S> for Caller<R>
where
    R: Minimum,
    S: Send + Sync,
    Arc<Platform>: FromRef<S>,
{
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let platform = &<Arc<Platform>>::from_ref(state);
        let from = peer(parts);
        let secret = shown(&parts.headers);
        let known = platform.accounts.authenticate(&platform.store, secret, from, clock::wall_ms());
        let account = known
            .instrument(info_span!(target: STEP, "key"))
            .await
            .inspect_err(|fault| note_failure(platform, fault, from))?;
        let grant = Grant::of_key(account);
        remember(parts, &grant)?;
        grant.require(R::ROLE).inspect_err(|_| platform.note(&grant, Act::Forbidden, |entry| entry))?;
        Ok(Self { grant, role: PhantomData })
    }
}

/// Attaches the grant to the connection and the request. The connection may then stay open, the body counts
/// against the project's memory budget, and the response is aborted when the key is revoked or expires.
///
/// # Errors
/// Returns `rate_limited` if the project has reached its limit of concurrent requests.
pub fn remember(parts: &mut Parts, grant: &Grant) -> Answer<()> {
    if let Some(known) = parts.extensions.get::<AuthenticationHandle>() {
        known.show(&grant.account)?;
    }
    if let Some(slot) = parts.extensions.get::<Slot>() {
        slot.fill(grant);
    }
    parts.extensions.insert(Arc::clone(&grant.account));
    Ok(())
}

/// Returns the client's IP address.
pub fn peer(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

fn note_failure(platform: &Platform, fault: &Fault, from: Option<IpAddr>) {
    if fault.error().code != ErrorCode::Unauthorized {
        return;
    }
    // Limit the number of these entries. Otherwise, a client with many addresses could displace all other
    // entries from the log.
    let Some(unsaid) = platform.accounts.failures.say() else { return };
    let from = from.as_ref().map(IpAddr::to_string).unwrap_or_default();
    let detail = if unsaid == 0 { from } else { format!("{from}, after {unsaid} unrecorded failures") };
    platform.audit.record(Entry::new(clock::wall_ms(), Act::AuthenticateFailed).detail(&detail));
}

/// Returns the secret that a request presents, or `None` if the request presents no secret or more than one.
fn shown(headers: &HeaderMap) -> Option<&str> {
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

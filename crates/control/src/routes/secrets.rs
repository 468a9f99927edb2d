//! Secrets: set, list, remove. None of them tells a value.

use std::sync::Arc;

use api::Error;
use api::account::Role;
use api::secret::{PutSecret, Secret, VALUE_BYTES, check_name};
use api::server::Page;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};

use crate::audit::Act;
use crate::caller::{At, Caller, whole};
use crate::fault::Answer;
use crate::platform::Platform;

/// A value, each byte of it escaped.
const BODY_BYTES_MAX: usize = *VALUE_BYTES.end() * 6 + 1024;

/// Keeps a value under a name, in the place of the one before: from the next request of a sandbox on. It cannot be read back.
#[utoipa::path(put, path = "/v1/secrets/{name}", params(("name" = String, Path)), request_body = PutSecret, security(("key" = [])), responses((status = 200, body = Secret), (status = "default", body = Error)))]
pub async fn put(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(name): At<String>,
    request: Request,
) -> Answer<Json<Secret>> {
    caller.require(Role::Write)?;
    check_name(&name)?;
    let put = sent(request).await?;
    put.check()?;
    platform.note(&caller, Act::SecretSet, |entry| entry.detail(&name));
    Ok(Json(platform.vault.put(&caller.key.project, &name, put).await?))
}

/// The project's secrets, by name, without their values.
#[utoipa::path(get, path = "/v1/secrets", security(("key" = [])), responses((status = 200, body = Page<Secret>), (status = "default", body = Error)))]
pub async fn list(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<Json<Page<Secret>>> {
    caller.require(Role::Read)?;
    Ok(Json(Page { items: platform.store.secrets(&caller.key.project).await?, next: None }))
}

/// Removes a secret: requests that use it are refused from now on. One that is not there is fine.
#[utoipa::path(delete, path = "/v1/secrets/{name}", params(("name" = String, Path)), security(("key" = [])), responses((status = 204), (status = "default", body = Error)))]
pub async fn remove(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(name): At<String>,
) -> Answer<StatusCode> {
    caller.require(Role::Write)?;
    check_name(&name)?;
    platform.note(&caller, Act::SecretRemove, |entry| entry.detail(&name));
    platform.store.remove_secret(&caller.key.project, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The body, of which no word is told when it is not what it should be: the reason of a parser would quote it.
async fn sent(request: Request) -> Answer<PutSecret> {
    let wrong = || Error::invalid("the body is no secret", r#"Send JSON: {"value": "…"}."#);
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if kind.and_then(|kind| kind.split(';').next()).map(str::trim) != Some("application/json") {
        return Err(wrong().into());
    }
    let body = whole(request, BODY_BYTES_MAX).await?;
    Ok(serde_json::from_slice(&body.bytes).map_err(|_| wrong())?)
}

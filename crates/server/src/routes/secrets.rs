//! Secrets: set, list, and remove. No route returns a secret's value.

use std::sync::Arc;

use api::Error;
use api::secret::{PutSecret, Secret, VALUE_BYTES, check_name};
use api::server::Page;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};

use crate::authority::{Caller, Read, Write};
use crate::body;
use crate::extract::Path;
use crate::rejection::Answer;
use control::audit::Act;
use control::platform::Platform;

/// Maximum size of a request body: a value of maximum length with every byte escaped, plus some overhead.
const BODY_BYTES_MAX: usize = *VALUE_BYTES.end() * 6 + 1024;

/// Set a secret
///
/// Stores a new secret, or replaces the value of an existing secret. A new value is used from the next request of a sandbox on. The value
/// cannot be read back.
#[utoipa::path(
    put,
    path = "/v1/secrets/{name}",
    operation_id = "setSecret",
    tag = "secrets",
    params(
        (
            "name" = String, Path,
            description = "Secret name: up to 64 characters of `A` to `Z`, `0` to `9` and `_`, beginning with a letter"
        ),
    ),
    request_body = PutSecret,
    security(("key" = [])),
    responses((status = 200, body = Secret), (status = "default", body = Error))
)]
pub async fn put(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<Json<Secret>> {
    check_name(&name)?;
    let put = sent(request).await?;
    put.check()?;
    platform.note(&caller, Act::SecretSet, |entry| entry.detail(&name));
    Ok(Json(platform.vault.put(&caller.key.project, &name, put).await?))
}

/// List secrets
///
/// Lists the secrets of the project without their values, sorted by name.
#[utoipa::path(
    get,
    path = "/v1/secrets",
    operation_id = "listSecrets",
    tag = "secrets",
    security(("key" = [])),
    responses((status = 200, body = Page<Secret>), (status = "default", body = Error))
)]
pub async fn list(caller: Caller<Read>, State(platform): State<Arc<Platform>>) -> Answer<Json<Page<Secret>>> {
    Ok(Json(Page { items: platform.store.secrets(&caller.key.project).await?, next: None }))
}

/// Delete a secret
///
/// Requests that use the secret are rejected from now on. Succeeds even if the secret does not exist.
#[utoipa::path(
    delete,
    path = "/v1/secrets/{name}",
    operation_id = "deleteSecret",
    tag = "secrets",
    params(("name" = String, Path, description = "Secret name")),
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn remove(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    check_name(&name)?;
    platform.note(&caller, Act::SecretRemove, |entry| entry.detail(&name));
    platform.store.remove_secret(&caller.key.project, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parses the body. Errors contain no details, because a parser's error message could quote the value.
async fn sent(request: Request) -> Answer<PutSecret> {
    let wrong = || Error::invalid("the request body is not a valid secret", r#"Send JSON: {"value": "…"}."#);
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if kind.and_then(|kind| kind.split(';').next()).map(str::trim) != Some("application/json") {
        return Err(wrong().into());
    }
    let body = body::message(request, BODY_BYTES_MAX).await?;
    Ok(serde_json::from_slice(&body).map_err(|_| wrong())?)
}

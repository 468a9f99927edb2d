//! Lists a project's sandboxes, filtered by labels, in pages.

use std::sync::Arc;

use api::sandbox::{Sandbox, SandboxState};
use api::server::PAGE_MAX;
use api::{Error, ErrorCode};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;

use control::platform::Platform;
use server::authority::{Caller, Grant, Read};

use super::fault::{By, E2bResult};
use super::shown::{self, ours};

/// Maximum number of sandboxes on one page.
const PAGE: usize = 100;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SandboxFilterQuery {
    state: Option<String>,
    metadata: Option<String>,
    order: Option<String>,
    template: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// Lists the project's sandboxes, newest first unless the request specifies another order.
pub async fn page(
    By(caller): By<Caller<Read>>,
    State(platform): State<Arc<Platform>>,
    Query(ask): Query<SandboxFilterQuery>,
) -> E2bResult<Response> {
    let wanted = filters(ask.metadata.as_deref().unwrap_or_default())?;
    let states = ask.state.as_deref().unwrap_or("running,paused");
    let mut all = living(&platform, &caller).await?;
    all.retain(|sandbox| {
        let template = ask.template.as_deref().is_none_or(|name| ours(name) == sandbox.template);
        let state = states.split(',').any(|state| state == shown::state(sandbox));
        let labels = wanted.iter().all(|(name, value)| sandbox.labels.get(name) == Some(value));
        template && state && labels
    });
    let place = |sandbox: &Sandbox| (sandbox.created_at_ms, sandbox.id.as_str().to_owned());
    all.sort_by_key(place);
    let rises = ask.order.as_deref() == Some("asc");
    if !rises {
        all.reverse();
    }
    if let Some(token) = &ask.next_token {
        let after = after(token)?;
        all.retain(|sandbox| if rises { place(sandbox) > after } else { place(sandbox) < after });
    }
    let limit = ask.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let more = all.len() > limit;
    all.truncate(limit);
    let items: Vec<_> = all.iter().map(|sandbox| shown::listed(&platform, sandbox)).collect();
    let mut response = Json(items).into_response();
    let next = all.last().filter(|_| more).map(|last| format!("{}-{}", last.created_at_ms, last.id));
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

/// Lists all sandboxes of the project on one page, for the oldest clients.
pub async fn all(
    By(caller): By<Caller<Read>>,
    State(platform): State<Arc<Platform>>,
) -> E2bResult<Json<Value>> {
    let all = living(&platform, &caller).await?;
    Ok(Json(all.iter().map(|sandbox| shown::listed(&platform, sandbox)).collect()))
}

/// Returns all sandboxes of a project that have not ended, in their current state on the node.
async fn living(platform: &Platform, caller: &Grant) -> E2bResult<Vec<Sandbox>> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page = platform.store.sandboxes(&caller.key.project, true, PAGE_MAX, cursor.as_deref()).await?;
        all.extend(page.items.into_iter().map(|stored| platform.node.find(&stored.id).unwrap_or(stored)));
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    all.retain(|sandbox| {
        [SandboxState::Starting, SandboxState::Running, SandboxState::Paused].contains(&sandbox.state)
    });
    Ok(all)
}

/// Parses the labels to filter by. The SDKs send the labels as a URL-encoded form inside one query parameter,
/// and encode each part of this form twice.
fn filters(text: &str) -> E2bResult<Vec<(String, String)>> {
    let wrong =
        || Error::invalid("the metadata filter is invalid", "Send `name=value` pairs separated by `&`.");
    let mut pairs = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        let plain = |part: &str| decoded(&decoded(&part.replace('+', " "))?);
        pairs.push((plain(name).ok_or_else(wrong)?, plain(value).ok_or_else(wrong)?));
    }
    Ok(pairs)
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// Parses a page token, which is the sort key of the last sandbox on the previous page.
fn after(token: &str) -> E2bResult<(u64, String)> {
    let wrong = || Error {
        code: ErrorCode::InvalidRequest,
        ..Error::invalid("nextToken is invalid", "Use the token of the previous page unchanged.")
    };
    let (at, id) = token.split_once('-').ok_or_else(wrong)?;
    Ok((at.parse().map_err(|_| wrong())?, id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_encoded_as_the_sdks_do() {
        // The query parameter has already been decoded. The SDKs encode each part of the form inside it
        // twice.
        let pairs = filters("user=abc&na%2520me=a%252Fb%2520%25C3%25B6").unwrap();
        assert_eq!(pairs, [("user".into(), "abc".into()), ("na me".into(), "a/b ö".into())]);
        assert!(filters("x").is_err() && filters("a=%zz").is_err());
        assert!(filters("").unwrap().is_empty());
    }

    #[test]
    fn a_token_of_a_page_is_a_place() {
        assert_eq!(after("7-sabc").unwrap(), (7, "sabc".into()));
        assert!(after("x").is_err() && after("x-y").is_err());
    }
}

//! Lists a project's sandboxes, filtered by labels, in pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::sandbox::{Sandbox, SandboxState};
use api::server::PAGE_MAX;
use api::{Error, ErrorCode};
use axum::extract::{Query, State};
use axum::http::HeaderValue;
use axum::response::Response;
use serde::Deserialize;

use control::platform::Platform;
use server::authority::{Caller, Grant, Read};
use server::list::Listing;

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
    let after = ask.next_token.as_deref().map(after).transpose()?;
    let rises = ask.order.as_deref() == Some("asc");
    let limit = ask.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let reading = Listing::begin(&caller.share).await?;
    // Keep only the items of this page, and one more to detect whether another page follows.
    let mut page = BTreeMap::new();
    for_each_living(&platform, &caller, |sandbox| {
        let place = (sandbox.created_at_ms, sandbox.id.as_str().to_owned());
        let template = ask.template.as_deref().is_none_or(|name| ours(name) == sandbox.template);
        let state = states.split(',').any(|state| state == shown::state(sandbox));
        let labels = wanted.iter().all(|(name, value)| sandbox.labels.get(name) == Some(value));
        let follows = after.as_ref().is_none_or(|after| if rises { place > *after } else { place < *after });
        if template && state && labels && follows {
            page.insert(place, shown::listed(&platform, sandbox));
        }
        if page.len() > limit + 1 {
            let _ = if rises { page.pop_last() } else { page.pop_first() };
        }
    })
    .await?;
    let more = page.len() > limit;
    let mut items: Vec<_> = page.into_iter().collect();
    if !rises {
        items.reverse();
    }
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|((at, id), _)| format!("{at}-{id}"));
    let mut response = reading.respond(items.into_iter().map(|(_, item)| item).collect::<Vec<_>>())?;
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

/// Lists all sandboxes of the project on one page, for the oldest clients.
pub async fn all(By(caller): By<Caller<Read>>, State(platform): State<Arc<Platform>>) -> E2bResult<Response> {
    let reading = Listing::begin(&caller.share).await?;
    let mut items = Vec::new();
    for_each_living(&platform, &caller, |sandbox| items.push(shown::listed(&platform, sandbox))).await?;
    Ok(reading.respond(items)?)
}

/// Visits all sandboxes of a project that have not ended, in their current state on the node. Only one page of
/// them is in memory at a time.
async fn for_each_living(
    platform: &Platform,
    caller: &Grant,
    mut visit: impl FnMut(&Sandbox),
) -> E2bResult<()> {
    const LIVING: [SandboxState; 3] = [SandboxState::Starting, SandboxState::Running, SandboxState::Paused];
    let mut cursor = None;
    loop {
        let page = platform.store.sandboxes(&caller.key.project, true, PAGE_MAX, cursor.as_deref()).await?;
        let items = page.items.into_iter().map(|stored| platform.node.find(&stored.id).unwrap_or(stored));
        items.filter(|sandbox| LIVING.contains(&sandbox.state)).for_each(|sandbox| visit(&sandbox));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
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

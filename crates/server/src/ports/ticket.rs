//! Tokens for ports. A client sends a token in a header, or once in a URL and then in a cookie.
//!
//! A browser sends the token in the URL once. The server redirects it to the same URL without the token and
//! sets a cookie for this one host. The cookie counts only in requests that a page of this host sends or that
//! result from the user's navigation to this host. A page of a different sandbox in the same domain cannot
//! use it.

use api::ports::{TOKEN_HEADER, TOKEN_QUERY};
use api::{Error, ErrorCode, Layer, Ran, Retry};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use node::journal::Ports as Gate;

use super::pass::Outside;
use crate::rejection::{Answer, Rejection};

/// Header in which E2B's SDKs send the token for a sandbox's ports.
pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
/// Name of the cookie over HTTPS. Its prefix ensures that no other host, no other path and no plain HTTP
/// connection can set the cookie.
const COOKIE_ENCRYPTED: &str = "__Host-bellglass";
/// Name of the cookie over plain HTTP.
const COOKIE_PLAIN: &str = "bellglass";

/// Result of checking whether a request is admitted.
pub enum Admitted {
    /// The request is forwarded. Its URL no longer contains a token.
    Yes {
        /// True if the request presents the token. False if it is admitted only because the port is public.
        by_token: bool,
    },
    /// The client is redirected to the same URL without the token, and receives a cookie.
    Redirect(Response),
}

/// Admits a request if its port is public or if the request presents the token. Removes the token from the
/// URL.
pub fn admit(parts: &mut Parts, outside: &Outside, gate: &Gate, port: u16) -> Answer<Admitted> {
    let in_address = address_token(&parts.uri);
    let by_address = in_address.as_deref().is_some_and(|token| gate.token.is(token));
    let by_cookie = || cookies(&parts.headers).any(|token| gate.token.is(token)) && is_own(parts, outside);
    let by_token = shown(parts, gate) || by_address || by_cookie();
    if !gate.is_public(port) && !by_token {
        return Err(refused());
    }
    if in_address.is_some() {
        parts.uri = without_token(&parts.uri);
    }
    if by_address && (parts.method == Method::GET || parts.method == Method::HEAD) {
        return Ok(Admitted::Redirect(redirect(&parts.uri, outside, gate)));
    }
    Ok(Admitted::Yes { by_token })
}

/// Returns true if the token is sent exactly once, either in Bellglass's header or in that of E2B's SDKs.
pub fn shown(parts: &Parts, gate: &Gate) -> bool {
    let [mut ours, mut theirs] = [TOKEN_HEADER, TRAFFIC_TOKEN].map(|name| parts.headers.get_all(name).iter());
    match (ours.next(), theirs.next(), ours.next(), theirs.next()) {
        (Some(value), None, None, None) => value.to_str().is_ok_and(|shown| gate.token.is(shown)),
        (None, Some(value), None, None) => value.to_str().is_ok_and(|shown| gate.traffic.is(shown)),
        _ => false,
    }
}

/// Returns the error for a missing or wrong token. It is the same error as for a missing sandbox, so that it
/// does not reveal which sandboxes exist.
pub fn refused() -> Rejection {
    Error {
        code: ErrorCode::Unauthorized,
        message: "this port is private and the request has no valid token of its sandbox, or there is no such sandbox"
            .into(),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: format!(
            "Send the token in the header `{TOKEN_HEADER}`, or open the address that `bellglass forward --url SANDBOX PORT` shows."
        ),
    }
    .into()
}

/// Removes Bellglass's cookies, and a referrer that contains the token. Keeps all other cookies. Cookies are
/// treated as bytes, because browsers send whatever pages have set, even if it is not ASCII.
pub fn forget_cookies(headers: &mut HeaderMap) {
    let others: Vec<HeaderValue> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| {
            if api::defence::is_off("N-33") && value.to_str().is_err() {
                return Some(value.clone());
            }
            let kept: Vec<&[u8]> = pairs(value).filter(|pair| ours(pair).is_none()).collect();
            if kept.is_empty() { None } else { HeaderValue::from_bytes(&kept.join(&b"; "[..])).ok() }
        })
        .collect();
    headers.remove(header::COOKIE);
    for value in others {
        headers.append(header::COOKIE, value);
    }
    let from_token = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(TOKEN_QUERY));
    if headers.get_all(header::REFERER).iter().any(from_token) && !api::defence::is_off("N-35") {
        headers.remove(header::REFERER);
    }
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(header::COOKIE).iter();
    let values = values.filter(|value| !api::defence::is_off("N-33") || value.to_str().is_ok());
    values.flat_map(pairs).filter_map(ours)
}

/// Returns the cookies of one header, each as `name=value`.
fn pairs(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii)
}

/// Returns the value of a cookie with one of Bellglass's names. Ignores case and spaces, because applications
/// may ignore them as well.
fn ours(pair: &[u8]) -> Option<&[u8]> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (pair.get(..at)?.trim_ascii(), pair.get(at + 1..)?.trim_ascii());
    [COOKIE_ENCRYPTED, COOKIE_PLAIN]
        .iter()
        .any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
        .then_some(value)
}

/// Returns true if the browser reports that a page of this host or the user's navigation caused the request.
/// Also returns true for clients other than browsers, which report nothing.
fn is_own(parts: &Parts, outside: &Outside) -> bool {
    let said = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let same = |origin: &str| {
        origin.split_once("://").is_some_and(|(_, host)| outside.host.as_deref() == Some(host))
    };
    if said("origin").is_some_and(|origin| !same(origin)) {
        return false;
    }
    match said("sec-fetch-site") {
        None | Some("same-origin" | "none") => true,
        Some(_) => {
            let looks = parts.method == Method::GET || parts.method == Method::HEAD;
            looks && said("sec-fetch-mode") == Some("navigate") && said("sec-fetch-dest") == Some("document")
        }
    }
}

fn address_token(uri: &Uri) -> Option<String> {
    uri.query()?.split('&').find_map(is_token).map(str::to_owned)
}

fn is_token(pair: &str) -> Option<&str> {
    pair.strip_prefix(TOKEN_QUERY)?.strip_prefix('=')
}

fn without_token(uri: &Uri) -> Uri {
    let kept: Vec<&str> =
        uri.query().unwrap_or_default().split('&').filter(|pair| is_token(pair).is_none()).collect();
    let query = kept.join("&");
    let path = uri.path();
    let text = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = PathAndQuery::try_from(text).ok();
    Uri::from_parts(parts).unwrap_or_default()
}

fn redirect(clean: &Uri, outside: &Outside, gate: &Gate) -> Response {
    let target = clean.path_and_query().map_or("/", PathAndQuery::as_str);
    // A target with two leading slashes would refer to a different host.
    let target = format!("/{}", target.trim_start_matches(['/', '\\']));
    let (name, secure) = if outside.encrypted { (COOKIE_ENCRYPTED, "; Secure") } else { (COOKIE_PLAIN, "") };
    let cookie = format!("{name}={}; Path=/; HttpOnly; SameSite=Lax{secure}", gate.token.reveal());
    let headers = [
        (header::LOCATION, target),
        (header::SET_COOKIE, cookie),
        (header::CACHE_CONTROL, "no-store".into()),
        (header::REFERRER_POLICY, "no-referrer".into()),
    ];
    (StatusCode::SEE_OTHER, headers).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn gate() -> Gate {
        let record = serde_json::json!({ "token": "a".repeat(64), "public": [9000] });
        serde_json::from_value(record).unwrap()
    }

    fn outside(encrypted: bool) -> Outside {
        Outside { host: Some("8000-s.a.b".into()), encrypted, peer: None }
    }

    fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn passes(headers: &[(&str, &str)], port: u16) -> bool {
        admit(&mut parts("GET", "/", headers), &outside(false), &gate(), port).is_ok()
    }

    #[test]
    fn the_token_opens_and_nothing_else_does() {
        let (right, wrong) = ("a".repeat(64), "b".repeat(64));
        assert!(passes(&[("bellglass-token", &right)], 8000));
        for headers in [
            vec![],
            vec![("bellglass-token", wrong.as_str())],
            vec![("bellglass-token", "")],
            vec![("bellglass-token", &right), ("bellglass-token", &right)],
            vec![("authorization", &right)],
            vec![("cookie", "bellglass=")],
        ] {
            assert!(!passes(&headers, 8000), "{headers:?}");
            assert!(passes(&headers, 9000), "a public port asks for nothing");
        }
        let empty = Gate::default();
        let nothing =
            parts("GET", "/?bellglass_token=", &[("bellglass-token", ""), ("cookie", "bellglass=")]);
        assert!(
            admit(&mut nothing.clone(), &outside(false), &empty, 8000).is_err(),
            "no token opens nothing"
        );
    }

    #[test]
    fn a_token_in_an_address_becomes_a_cookie_of_this_host() {
        let uri = format!("//evil.example/x?a=1&bellglass_token={}&b=2", "a".repeat(64));
        let uri = Uri::builder().path_and_query(uri).build().unwrap();
        let mut asked = parts("GET", "/", &[]);
        asked.uri = uri;
        let Admitted::Redirect(response) = admit(&mut asked, &outside(true), &gate(), 8000).unwrap() else {
            panic!("it went on")
        };
        let said = |name: header::HeaderName| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(said(header::LOCATION), "/evil.example/x?a=1&b=2");
        let cookie = said(header::SET_COOKIE);
        assert!(cookie.starts_with("__Host-bellglass=aaa"), "{cookie}");
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax; Secure"), "{cookie}");
        let mut posted = parts("POST", &format!("/x?bellglass_token={}", "a".repeat(64)), &[]);
        assert!(matches!(admit(&mut posted, &outside(false), &gate(), 8000), Ok(Admitted::Yes { .. })));
        assert_eq!(posted.uri, "/x");
    }

    #[test]
    fn a_cookie_counts_only_for_the_host_itself() {
        // Attack N-17: a page of a different sandbox sends requests to the port with the user's cookie.
        let cookie = format!("x=1; bellglass={}", "a".repeat(64));
        let with = |more: &[(&str, &str)]| {
            let mut headers = vec![("cookie", cookie.as_str())];
            headers.extend(more);
            passes(&headers, 8000)
        };
        assert!(with(&[]));
        assert!(with(&[("sec-fetch-site", "same-origin"), ("origin", "http://8000-s.a.b")]));
        let going = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert!(with(&[going[0], going[1], ("sec-fetch-dest", "document")]));
        assert!(!with(&[going[0], going[1], ("sec-fetch-dest", "iframe")]));
        assert!(!with(&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]));
        assert!(!with(&[("origin", "http://8000-other.a.b")]));
        assert!(!with(&[("origin", "null")]));
    }

    #[test]
    fn a_cookie_that_is_not_ascii_neither_carries_the_token_in_nor_locks_a_viewer_out() {
        // Attack N-33: a port token is sent alongside a non-ASCII cookie.
        let token = "a".repeat(64);
        for value in [
            format!("bellglass={token}; theme=\u{e9}"),
            format!("theme=\u{e9}; bellglass={token}"),
            format!("theme=\u{e9};bellglass ={token}"),
            format!("\u{ff}\u{fe}; __Host-bellglass={token} ; \u{e9}"),
        ] {
            let mut asked = parts("GET", "/", &[]);
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            asked.headers.insert(header::COOKIE, value.clone());
            assert!(admit(&mut asked, &outside(false), &gate(), 8000).is_ok(), "{value:?}");
            forget_cookies(&mut asked.headers);
            let left = asked.headers[header::COOKIE].as_bytes();
            assert!(!left.windows(64).any(|window| window == token.as_bytes()), "{left:?}");
            assert!(left.windows(2).any(|window| window == "\u{e9}".as_bytes()), "{left:?}");
        }
    }

    #[test]
    fn our_cookies_are_forgotten_and_others_are_not() {
        let mut headers =
            parts("GET", "/", &[("cookie", "a=1; bellglass=x;__Host-bellglass=y; b=2")]).headers;
        forget_cookies(&mut headers);
        assert_eq!(headers["cookie"], "a=1; b=2");
        let mut headers = parts("GET", "/", &[("cookie", "bellglass=x")]).headers;
        forget_cookies(&mut headers);
        assert!(headers.is_empty());
    }
}

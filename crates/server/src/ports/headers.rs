//! Headers that forwarding removes from requests and responses, or adds to them.

use axum::http::header::{
    self, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use super::pass::{Address, Outside};
use super::ticket;

/// Headers that apply to a single connection.
const HOP: [HeaderName; 8] =
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];
/// Further headers that apply to a single connection. The `http` crate has no constants for them.
const HOP_TOO: [&str; 2] = ["keep-alive", "proxy-connection"];
/// Headers that describe the client. Only a proxy may set them.
const FORWARDED: [&str; 2] = ["forwarded", "x-real-ip"];

/// Response headers that affect a whole origin or the caches in front of it. On the API's address,
/// applications must not set them.
const OF_AN_ADDRESS: [&str; 22] = [
    "accept-ch",
    "age",
    "alt-svc",
    "clear-site-data",
    "critical-ch",
    "expect-ct",
    "expires",
    "nel",
    "origin-agent-cluster",
    "pragma",
    "public-key-pins",
    "report-to",
    "reporting-endpoints",
    "sec-session-registration",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "set-login",
    "strict-transport-security",
    "surrogate-control",
    "use-as-dictionary",
    "www-authenticate",
];
/// Response headers that a proxy in front of this server would obey. Applications must not set them at any
/// address, because only the operator configures the proxy.
const TO_A_PROXY: [&str; 2] = ["edge-control", "x-sendfile"];
/// Value of `vary` for responses of private ports: the request headers on which such a response depends. All
/// ports of a domain share the browser's cache. If a page of a different port wants a cached response, this
/// value makes the browser send the request again, and the server then rejects it.
const PRIVATE_BY: &str = "sec-fetch-site, origin, cookie";
/// Value of `vary` on the API's address: the request headers that select the application or authorize the
/// request.
const CHOSEN_BY: &str = "bellglass-sandbox, bellglass-port, bellglass-token, authorization, x-api-key";

/// Returns the protocol that `upgrade` names, if `connection` lists the header `upgrade`.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let listed = named(headers).any(|name| name.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| listed).cloned()
}

/// Rewrites a request's headers for the connection into the sandbox.
pub fn inwards(headers: &mut HeaderMap, outside: &Outside, host: HeaderValue) {
    remove_hop(headers);
    ticket::forget_cookies(headers);
    let ours: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            name.starts_with("bellglass-")
                || name.starts_with("e2b-")
                || name.starts_with("x-forwarded-")
                || FORWARDED.contains(&name)
        })
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
    // Remove the length: the HTTP client derives it from the body and sends it exactly once.
    headers.remove(CONTENT_LENGTH);
    let scheme = if outside.encrypted { "https" } else { "http" };
    headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
    if let Some(peer) = super::shown(outside.peer) {
        headers.insert("x-forwarded-for", peer);
    }
    let outer = outside.host.as_deref().and_then(|host| HeaderValue::from_str(host).ok());
    if let Some(outer) = outer {
        headers.insert("x-forwarded-host", outer);
    }
    headers.insert(HOST, host);
}

/// Rewrites a response's headers for the connection to the client. On the API's own address, removes headers
/// that affect the whole origin, and forbids caches and browsers to store the response. Restricts a private
/// port's response to pages of that port.
pub fn outwards(headers: &mut HeaderMap, address: Address) {
    remove_hop(headers);
    let not_its_own = |name: &str| {
        name.starts_with("bellglass-")
            || name.starts_with("x-accel-")
            || name.ends_with("cdn-cache-control")
            || TO_A_PROXY.contains(&name)
    };
    let others: Vec<HeaderName> = headers.keys().filter(|name| not_its_own(name.as_str())).cloned().collect();
    for name in others {
        headers.remove(name);
    }
    match address {
        _ if api::defence::is_off("N-36") => {}
        Address::Api => {
            for name in OF_AN_ADDRESS {
                headers.remove(name);
            }
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.append(header::VARY, HeaderValue::from_static(CHOSEN_BY));
        }
        Address::Private => {
            headers.append(header::VARY, HeaderValue::from_static(PRIVATE_BY));
            let own = HeaderValue::from_static("same-origin");
            headers.entry("cross-origin-resource-policy").or_insert(own);
        }
        Address::Public => {}
    }
    if let Some(length) = headers.get(header::CONTENT_LENGTH).cloned() {
        headers.insert(header::CONTENT_LENGTH, length);
    }
}

fn remove_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = named(headers).filter_map(|name| name.parse().ok()).collect();
    for name in listed.into_iter().chain(HOP) {
        headers.remove(name);
    }
    for name in HOP_TOO {
        headers.remove(name);
    }
}

/// Returns the header names that `connection` lists.
fn named(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|text| text.split(',')).map(str::trim).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_is_ours_or_of_one_connection_does_not_go_in() {
        let mut headers = of(&[
            ("connection", "keep-alive, x-secret"),
            ("x-secret", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("proxy-authorization", "x"),
            ("bellglass-token", "x"),
            ("bellglass-sandbox", "x"),
            ("bellglass-version", "1"),
            ("e2b-traffic-access-token", "x"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-prefix", "/"),
            ("forwarded", "for=6.6.6.6"),
            ("authorization", "Bearer of the application"),
            ("cookie", "bellglass=t; mine=1"),
        ]);
        let outside = Outside {
            host: Some("8000-s.a.b:7070".into()),
            encrypted: true,
            peer: Some("::ffff:10.0.0.9".parse().unwrap()),
        };
        inwards(&mut headers, &outside, "8000-s.a.b:7070".parse().unwrap());
        let mut left: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        left.sort();
        assert_eq!(
            left,
            [
                "authorization: Bearer of the application",
                "cookie: mine=1",
                "host: 8000-s.a.b:7070",
                "x-forwarded-for: 10.0.0.9",
                "x-forwarded-host: 8000-s.a.b:7070",
                "x-forwarded-proto: https",
            ]
        );
    }

    #[test]
    fn an_application_cannot_say_that_an_answer_is_ours() {
        let mut headers = of(&[
            ("bellglass-error", "not_found"),
            ("connection", "x-a"),
            ("x-a", "1"),
            ("content-length", "3"),
            ("content-length", "3"),
            ("set-cookie", "a=1"),
        ]);
        outwards(&mut headers, Address::Public);
        assert_eq!(headers, of(&[("content-length", "3"), ("set-cookie", "a=1")]));
    }

    #[test]
    fn an_answer_of_a_private_port_is_for_its_own_pages() {
        let mut headers = of(&[("x-accel-redirect", "/etc"), ("fastly-cdn-cache-control", "public")]);
        outwards(&mut headers, Address::Private);
        assert_eq!(headers, of(&[("vary", PRIVATE_BY), ("cross-origin-resource-policy", "same-origin")]));
        let mut headers = of(&[("cross-origin-resource-policy", "cross-origin")]);
        outwards(&mut headers, Address::Private);
        assert_eq!(headers["cross-origin-resource-policy"], "cross-origin", "the application has said it");
    }

    #[test]
    fn an_upgrade_is_one_only_if_the_connection_says_so() {
        assert_eq!(
            upgrade(&of(&[("connection", "Upgrade"), ("upgrade", "websocket")])).unwrap(),
            "websocket"
        );
        assert_eq!(upgrade(&of(&[("upgrade", "h2c")])), None);
        assert_eq!(upgrade(&of(&[("connection", "upgrade")])), None);
    }
}

//! Fuzz targets: host names, tokens and headers of requests to ports.

use axum::http::header::{CONNECTION, COOKIE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::headers;
use super::name::{Domain, Named, authority};
use super::pass::Outside;

#[test]
fn a_host_name_of_a_port_has_one_meaning() {
    let domain: Domain = "https://ports.example.com".parse().unwrap();
    bolero::check!().with_iterations(1000).for_each(move |input: &[u8]| {
        let Ok(value) = HeaderValue::from_bytes(input) else { return };
        let Ok(request) = Request::builder().uri("/").header(HOST, value).body(()) else { return };
        let Ok(Some(text)) = authority(&request.into_parts().0) else { return };
        assert_eq!(text, text.to_ascii_lowercase());
        assert!(!text.contains(['@', '/', ' ']));
        let named = domain.named(&text);
        assert_eq!(domain.named(&text.to_ascii_uppercase()), named);
        if let Named::Port { port, sandbox } = &named {
            let url = domain.url(*port, sandbox, &text, true);
            assert_eq!(domain.named(url.strip_prefix("https://").unwrap()), named);
        }
    });
}

#[test]
fn a_forwarded_request_has_no_header_or_cookie_of_bellglass() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let mut headers = HeaderMap::new();
        for line in input.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let name = HeaderName::from_bytes(&line[..colon]);
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        let outside = Outside { host: Some("a.b".into()), encrypted: true, peer: None };
        headers::inwards(&mut headers, &outside, HeaderValue::from_static("a.b"));
        assert_eq!(headers.get_all(HOST).iter().count(), 1);
        for name in headers.keys() {
            let name = name.as_str();
            assert!(!name.starts_with("bellglass-") && !name.starts_with("e2b-"), "{name}");
            assert!(
                !["content-length", "transfer-encoding", "te", "upgrade", "forwarded"].contains(&name),
                "{name}"
            );
        }
        assert!(!headers.contains_key(CONNECTION));
        for cookie in headers.get_all(COOKIE) {
            let cookie = String::from_utf8_lossy(cookie.as_bytes()).to_ascii_lowercase();
            let names = cookie
                .split(';')
                .filter_map(|pair| Some(pair.split_once('=')?.0.trim_matches([' ', '\t']).to_owned()));
            for name in names {
                assert!(!["bellglass", "__host-bellglass"].contains(&name.as_str()), "{cookie:?}");
            }
        }
    });
}

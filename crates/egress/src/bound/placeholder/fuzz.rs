//! Fuzz target: requests that contain the placeholder of a secret.

use super::*;

const PLACEHOLDER: &str = "bellglass-secret-KEY-0011";
const VALUE: &str = "real-value";

/// Resolves a path as the most lenient server does: decodes it until nothing changes, and treats `\\` as `/`
/// and `;` as the end of a segment.
fn resolved(path: &str) -> Vec<String> {
    let mut bytes = path.as_bytes().to_vec();
    loop {
        let mut next = Vec::new();
        let mut rest = bytes.as_slice();
        while let Some((first, after)) = rest.split_first() {
            let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            let byte =
                digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
            next.push(byte.unwrap_or(*first));
            rest = if byte.is_some() { &after[2..] } else { after };
        }
        if next == bytes {
            break;
        }
        bytes = next;
    }
    let text = String::from_utf8_lossy(&bytes).replace('\\', "/");
    let mut parts = Vec::new();
    for part in text.split(['?', '#']).next().unwrap().split('/').map(|part| part.split(';').next().unwrap())
    {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.to_owned()),
        }
    }
    parts
}

#[test]
fn a_value_is_sent_only_below_its_path_however_the_path_is_written() {
    let bound = |word: &str| Bound {
        binding: word.parse().unwrap(),
        placeholder: PLACEHOLDER.into(),
        value: Some(SecretValue::new(VALUE.into())),
    };
    let (anywhere, below) = (bound("secret:KEY=a.org"), [bound("secret:KEY=a.org/v1")]);
    let anywhere = [anywhere];
    bolero::check!().with_iterations(1000).for_each(move |input: &[u8]| {
        let mut lines = input.splitn(2, |byte| *byte == b'\n');
        let (path, value) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let (Ok(uri), Ok(value)) = (hyper::Uri::try_from(path), HeaderValue::from_bytes(value)) else {
            return;
        };
        let sent = |bound: &[Bound]| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.clone());
            put_in(&mut headers, uri.path(), bound).map(|used| (headers[AUTHORIZATION].clone(), used))
        };
        if let Ok((header, used)) = sent(&below) {
            assert_eq!(used.is_empty(), header == value);
            assert!(
                used.is_empty() || resolved(uri.path()).first().is_some_and(|first| first == "v1"),
                "{uri}"
            );
        }
        if let Ok((header, used)) = sent(&anywhere) {
            assert_eq!(used.is_empty(), header == value);
            assert!(!contains(header.as_bytes(), PLACEHOLDER));
            assert!(header.len() <= value.len() * 2 + ADDED_BYTES_MAX * 2);
        }
    });
}

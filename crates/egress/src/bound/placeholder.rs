//! Placeholders of secrets in a request, and their replacement with the values.
//!
//! A placeholder is replaced only in the header to which its secret is bound, and only if the path of the
//! request is at or below the bound path.

use api::secret::SecretBinding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, Entry, HeaderMap, HeaderName, HeaderValue};

use super::denied;
use crate::Refusal;
use crate::secret::SecretValue;

/// Maximum number of bytes that secret values may add to a request head. Without this limit, a head with a
/// thousand placeholders could grow enormously.
const ADDED_BYTES_MAX: usize = 32 << 10;
/// The beginning of an `Authorization` header that contains a user name and a password.
const BASIC: &str = "basic ";

/// A secret that is bound to the destination, with its value if one is set.
pub(super) struct Bound {
    pub(super) binding: SecretBinding,
    pub(super) placeholder: String,
    pub(super) value: Option<SecretValue>,
}

/// A header value that contains a placeholder.
enum PlaceholderHeader {
    /// The header value as sent, which contains the placeholder.
    Plain(Vec<u8>),
    /// The decoded user name and password, which contain the placeholder. They are sent as base64.
    Basic(Vec<u8>),
}

impl PlaceholderHeader {
    fn find(header: &HeaderValue, placeholder: &str, basic: bool) -> Option<Self> {
        let bytes = header.as_bytes();
        if contains(bytes, placeholder) {
            return Some(Self::Plain(bytes.to_vec()));
        }
        let (scheme, rest) = bytes.split_at_checked(BASIC.len()).filter(|_| basic)?;
        let login =
            scheme.eq_ignore_ascii_case(BASIC.as_bytes()).then(|| STANDARD.decode(rest.trim_ascii()))?;
        login.ok().filter(|login| contains(login, placeholder)).map(Self::Basic)
    }

    fn count(&self, placeholder: &str) -> usize {
        let (Self::Plain(bytes) | Self::Basic(bytes)) = self;
        bytes.windows(placeholder.len()).filter(|window| *window == placeholder.as_bytes()).count()
    }

    fn put(
        self,
        placeholder: &str,
        value: &SecretValue,
    ) -> Result<HeaderValue, hyper::header::InvalidHeaderValue> {
        match self {
            Self::Plain(bytes) => HeaderValue::from_bytes(&replaced(&bytes, placeholder, value)),
            Self::Basic(login) => {
                let login = STANDARD.encode(replaced(&login, placeholder, value));
                HeaderValue::from_bytes(format!("Basic {login}").as_bytes())
            }
        }
    }
}

/// Replaces placeholders with values in the headers that the secrets are bound to. Returns the names of the
/// secrets that were used.
pub(super) fn put_in(headers: &mut HeaderMap, path: &str, bound: &[Bound]) -> Result<Vec<String>, Refusal> {
    let mut used = Vec::new();
    let mut room = ADDED_BYTES_MAX;
    for Bound { binding, placeholder, value } in bound {
        let Ok(name) = binding.header.parse::<HeaderName>() else { continue };
        let basic = name == AUTHORIZATION;
        let Entry::Occupied(mut there) = headers.entry(name) else { continue };
        for header in there.iter_mut() {
            let Some(place) = PlaceholderHeader::find(header, placeholder, basic) else { continue };
            if binding.path != "/" && !is_canonical(path) {
                return Err(denied(format!(
                    "the secret {} is bound to {}, but the path of the request is ambiguous",
                    binding.name, binding.path
                )));
            }
            if !is_below(path, &binding.path) {
                continue;
            }
            let value = value
                .as_ref()
                .ok_or_else(|| denied(format!("the secret {} is no longer set", binding.name)))?;
            let added = place.count(placeholder).saturating_mul(value.expose().len());
            room = room.checked_sub(added).ok_or_else(|| {
                denied(format!("the secret {} occurs too often in the request", binding.name))
            })?;
            let mut with = place
                .put(placeholder, value)
                .map_err(|_| denied(format!("the secret {} is not a valid header value", binding.name)))?;
            with.set_sensitive(true);
            *header = with;
            if !used.contains(&binding.name) {
                used.push(binding.name.clone());
            }
        }
    }
    Ok(used)
}

fn contains(bytes: &[u8], placeholder: &str) -> bool {
    bytes.windows(placeholder.len()).any(|window| window == placeholder.as_bytes())
}

fn replaced(mut bytes: &[u8], placeholder: &str, value: &SecretValue) -> Vec<u8> {
    let mut with = Vec::with_capacity(bytes.len());
    while let Some((first, rest)) = bytes.split_first() {
        match bytes.strip_prefix(placeholder.as_bytes()) {
            Some(after) => {
                with.extend_from_slice(value.expose().as_bytes());
                bytes = after;
            }
            None => {
                with.push(*first);
                bytes = rest;
            }
        }
    }
    with
}

/// Returns true if `path` equals `above` or is below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || above.ends_with('/') || rest.starts_with('/'))
}

/// Returns true if every server interprets the path in the same way: it has no `.` or `..` segments, and no
/// encoded characters that affect its structure.
fn is_canonical(path: &str) -> bool {
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let sound = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let decoded = digit(rest.next()).zip(digit(rest.next())).map(|(high, low)| high * 16 + low);
                let decoded = decoded.and_then(|byte| u8::try_from(byte).ok());
                decoded.is_some_and(|byte| !byte.is_ascii_control() && !b"./\\%;?#".contains(&byte))
            }
            _ => byte.is_ascii_graphic() && !b"\\;?#".contains(&byte),
        };
        if !sound {
            return false;
        }
    }
    !path.contains("//") && !path.split('/').any(|part| part == "." || part == "..")
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    const PLACEHOLDER: &str = "bellglass-secret-KEY-0011";

    fn bound(word: &str, value: Option<&str>) -> Bound {
        let value = value.map(|value| SecretValue::new(value.into()));
        Bound { binding: word.parse().unwrap(), placeholder: PLACEHOLDER.into(), value }
    }

    fn sent(word: &str, path: &str, name: &'static str, text: &str) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(text).unwrap());
        put_in(&mut headers, path, &[bound(word, Some("real-value"))]).map_err(|refusal| refusal.why)?;
        Ok(String::from_utf8_lossy(headers[name].as_bytes()).into_owned())
    }

    #[test]
    fn a_value_goes_into_its_header_below_its_path_and_nowhere_else() {
        // Covers attack S-02.
        let bearer = format!("Bearer {PLACEHOLDER}");
        let whole = "secret:KEY=a.org";
        assert_eq!(sent(whole, "/x%2f..//y", "authorization", &bearer).unwrap(), "Bearer real-value");
        assert_eq!(sent(whole, "/", "x-api-key", &bearer).unwrap(), bearer);
        assert_eq!(sent("secret:KEY@x-api-key=a.org", "/", "x-api-key", PLACEHOLDER).unwrap(), "real-value");
        let below = "secret:KEY=a.org/v1";
        for path in ["/v1", "/v1/", "/v1/a%20b", "/v1/a:b,c"] {
            assert_eq!(sent(below, path, "authorization", &bearer).unwrap(), "Bearer real-value", "{path}");
        }
        for path in ["/", "/v10", "/v2/v1", "/V1", "/x/v1"] {
            assert_eq!(sent(below, path, "authorization", &bearer).unwrap(), bearer, "{path}");
        }
        for path in [
            "/v1/../v2",
            "/v1/%2e%2e/v2",
            "/v1/.%2E/x",
            "/v1/..%2fv2",
            "/v1%2f..%2fv2",
            "/v1//x",
            "/v1/\\..\\x",
            "/v1/..;/x",
            "/v1/%252e%252e/x",
            "/v1/%zz",
            "/v1/%",
            "/v1/.",
            "/v1/%5c..",
        ] {
            assert!(sent(below, path, "authorization", &bearer).is_err(), "{path}");
            // Without a placeholder, the path does not matter.
            assert_eq!(sent(below, path, "authorization", "Bearer x").unwrap(), "Bearer x", "{path}");
        }
    }

    #[test]
    fn a_user_and_a_password_are_looked_into() {
        let login = format!("bAsIc {}", STANDARD.encode(format!("user:{PLACEHOLDER}")));
        let with = sent("secret:KEY=a.org", "/", "authorization", &login).unwrap();
        assert_eq!(with, format!("Basic {}", STANDARD.encode("user:real-value")));
        let other = sent("secret:KEY@x-login=a.org", "/", "x-login", &login).unwrap();
        assert_eq!(other, login);
    }

    #[test]
    fn a_secret_that_was_removed_is_refused_by_name_where_it_is_used() {
        let gone = [bound("secret:KEY=a.org", None)];
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        assert!(put_in(&mut headers, "/", &gone).unwrap().is_empty());
        headers.insert(AUTHORIZATION, HeaderValue::from_static(PLACEHOLDER));
        let refusal = put_in(&mut headers, "/", &gone).unwrap_err();
        assert_eq!(refusal.why, "the secret KEY is no longer set");
    }

    #[test]
    fn many_placeholders_make_no_large_request() {
        let large = "x".repeat(8 << 10);
        let often = [PLACEHOLDER; 4].join(" ");
        for (text, fits) in [(often.clone(), true), (format!("{often} {PLACEHOLDER}"), false)] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&text).unwrap());
            assert_eq!(put_in(&mut headers, "/", &[bound("secret:KEY=a.org", Some(&large))]).is_ok(), fits);
        }
    }

    #[test]
    fn what_was_put_in_is_not_shown() {
        // Covers attack S-06.
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(PLACEHOLDER));
        let used = put_in(&mut headers, "/", &[bound("secret:KEY=a.org", Some("real-value"))]).unwrap();
        assert_eq!(used, ["KEY"]);
        assert_eq!(headers[AUTHORIZATION], "real-value");
        assert!(!format!("{headers:?}").contains("real-value"), "{headers:?}");
    }
}

//! Artifacts as MCP resources. Their URIs consist of `bellglass://artifacts/` and the percent-encoded name.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rmcp::model::{Resource, ResourceContents};

use super::{Artifact, Content};

const PREFIX: &str = "bellglass://artifacts/";
/// Characters to percent-encode. Slashes are included, so that a name is always one segment of the URI, even
/// if its file is in a subdirectory.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the description of an artifact for a list or a link.
pub(super) fn described(artifact: &Artifact) -> Resource {
    Resource::new(uri(&artifact.name), artifact.name.clone())
        .with_mime_type(artifact.mime.clone())
        .with_size(artifact.size_bytes)
}

/// Returns the name of the artifact that a URI refers to, or `None` if the URI is invalid.
pub(super) fn name(uri: &str) -> Option<String> {
    let encoded = uri.strip_prefix(PREFIX).filter(|encoded| !encoded.is_empty())?;
    percent_decode_str(encoded).decode_utf8().ok().map(Into::into)
}

/// Returns the content of an artifact, as text if possible and otherwise in base64.
pub(super) fn contents(uri: String, content: &Content) -> ResourceContents {
    let text = is_text(&content.mime).then(|| std::str::from_utf8(&content.bytes).ok()).flatten();
    let contents = match text {
        Some(text) => ResourceContents::text(text, uri),
        None => ResourceContents::blob(STANDARD.encode(&content.bytes), uri),
    };
    contents.with_mime_type(content.mime.clone())
}

fn uri(name: &str) -> String {
    format!("{PREFIX}{}", utf8_percent_encode(name, ENCODED))
}

fn is_text(mime: &str) -> bool {
    let kind = mime.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/") || kind == "application/json" || kind.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_its_uri() {
        for plain in ["plot.png", "a b/ü%2F?#.csv", "..", "日本"] {
            assert_eq!(name(&uri(plain)).as_deref(), Some(plain));
        }
        assert_eq!(uri("out/a b.csv"), "bellglass://artifacts/out%2Fa%20b.csv");
    }

    #[test]
    fn other_uris_stand_for_nothing() {
        for other in [
            "file:///etc/passwd",
            "bellglass://artifacts/",
            "bellglass://artifacts",
            "bellglass://artifacts/%FF",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn only_text_is_read_as_text() {
        let read = |mime: &str, bytes: &'static [u8]| {
            let content = Content { mime: mime.into(), bytes: bytes.into() };
            serde_json::to_value(contents("u".into(), &content)).unwrap()
        };
        assert_eq!(read("text/csv; charset=utf-8", b"a,b")["text"], "a,b");
        assert_eq!(read("application/json", b"{}")["text"], "{}");
        assert_eq!(read("application/vnd.vega.v5+json", b"{}")["text"], "{}");
        assert_eq!(read("image/png", b"abc")["blob"], "YWJj");
        assert_eq!(read("text/plain", b"\xff")["blob"], "/w==");
        assert_eq!(read("text/plain", b"\xff")["mimeType"], "text/plain");
    }
}

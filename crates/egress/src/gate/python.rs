//! Proxy for Python's package index. The gate parses the simple API as JSON (PEP 691) or HTML (PEP 503), and
//! serves it as HTML.

use std::fmt::Write as _;
use std::sync::Arc;

use api::policy::Policy;
use hyper::Response;
use reqwest::Url;
use serde_json::Value;
use tokio::sync::watch;

use super::age::is_old_enough;
use super::index::{Hash, Index, IndexEntry, IndexRequest};
use super::request::PackageRequest;
use super::{Gate, Recipient, document, is_plain};
use crate::Refusal;
use crate::body::Body;
use crate::party::Party;

const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.5";

/// Returns the normalized name of the package that a path belongs to.
pub fn package(rest: &str) -> Option<String> {
    let mut parts = rest.split('/');
    let named = match (parts.next()?, parts.next()?, parts.next(), parts.next()) {
        ("simple", name, Some("") | None, None) => name,
        ("files", name, Some(file), None) if is_plain(file) => name,
        _ => return None,
    };
    let normal = normal(named);
    (is_plain(named) && is_plain(&normal)).then_some(normal)
}

/// Normalizes a package name (PEP 503).
pub fn normal(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        let separates = matches!(c, '-' | '_' | '.');
        if !separates {
            normal.push(c);
        } else if !normal.ends_with('-') {
            normal.push('-');
        }
    }
    normal
}

impl Gate {
    pub(super) async fn python(
        &self,
        wanted: &PackageRequest<'_>,
        party: &Arc<Party>,
        policy: watch::Receiver<Policy>,
    ) -> Result<Response<Body>, Refusal> {
        let asking = IndexRequest {
            kind: wanted.kind,
            package: wanted.package.clone(),
            minimum_age_ms: policy.borrow().packages.minimum_age_ms,
            url: format!("{}/{}/", self.upstreams.python.trim_end_matches('/'), wanted.package),
            accept: ACCEPT,
            parse,
        };
        let index = self.index(asking, party).await?;
        let Some(file) = wanted.rest.strip_prefix("files/").and_then(|rest| rest.split('/').nth(1)) else {
            return Ok(document("text/html; charset=utf-8", &index.page, party, &policy));
        };
        let (kind, package, upstream) = (wanted.kind, wanted.package.clone(), self.upstreams.python.as_str());
        let to = Recipient { party, policy, kind, package, upstream };
        self.give(index.file(file)?, to).await
    }
}

/// One file as listed in an index.
#[derive(Debug, PartialEq, Eq)]
struct IndexedFile {
    name: String,
    url: String,
    sha256: String,
    published: Option<String>,
    requires: Option<String>,
    yanked: bool,
}

/// Parses an index, and builds the page for sandboxes.
fn parse(asking: &IndexRequest, kind: &str, at: &str, body: &[u8]) -> Option<Index> {
    let listed = listed(kind, at, body)?;
    let is_young = |file: &IndexedFile| !is_old_enough(file.published.as_deref(), asking.minimum_age_ms);
    let page = page(&asking.package, listed.iter().filter(|file| !is_young(file)));
    let files = listed.into_iter().map(|file| IndexEntry {
        is_young: is_young(&file),
        name: file.name,
        url: file.url,
        hash: Hash::Sha256(file.sha256),
    });
    Some(Index { files: files.collect(), page: page.into() })
}

fn listed(kind: &str, at: &str, body: &[u8]) -> Option<Vec<IndexedFile>> {
    let base = Url::parse(at).ok()?;
    if kind.contains("json") {
        from_json(&base, body)
    } else {
        Some(from_html(&base, std::str::from_utf8(body).ok()?))
    }
}

fn from_json(base: &Url, body: &[u8]) -> Option<Vec<IndexedFile>> {
    let page: Value = serde_json::from_slice(body).ok()?;
    let entry = |file: &Value| {
        let text = |name: &str| file.get(name).and_then(Value::as_str).map(str::to_owned);
        let sha256 = file.get("hashes")?.get("sha256")?.as_str()?.to_owned();
        let yanked = file.get("yanked").is_some_and(|yanked| yanked.as_bool() != Some(false));
        let file = IndexedFile {
            name: text("filename")?,
            url: text("url")?,
            sha256,
            published: text("upload-time"),
            requires: text("requires-python"),
            yanked,
        };
        checked(base, file)
    };
    Some(page.get("files")?.as_array()?.iter().filter_map(entry).collect())
}

/// Returns the files that a page's anchors link to. Other content is ignored.
fn from_html(base: &Url, text: &str) -> Vec<IndexedFile> {
    let mut files = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("<a ") {
        rest = rest.get(at + 3..).unwrap_or_default();
        let Some((attributes, after)) = rest.split_once('>') else { break };
        let Some((name, _)) = after.split_once("</a>") else { break };
        let attribute = |wanted: &str| {
            let (_, from) = attributes.split_once(&format!("{wanted}=\""))?;
            Some(unescaped(from.split_once('"')?.0))
        };
        // Every second part is the value of an attribute.
        let yanked = attributes.split('"').step_by(2).any(|names| names.contains("data-yanked"));
        let found = attribute("href").and_then(|href| {
            let (url, hash) = href.split_once("#sha256=")?;
            let file = IndexedFile {
                name: unescaped(name.trim()),
                url: url.to_owned(),
                sha256: hash.to_owned(),
                published: attribute("data-upload-time"),
                requires: attribute("data-requires-python"),
                yanked,
            };
            checked(base, file)
        });
        files.extend(found);
    }
    files
}

/// Returns the file with an absolute URL if it can be served: its name needs no escaping, and it has a hash
/// to verify.
fn checked(base: &Url, file: IndexedFile) -> Option<IndexedFile> {
    let url = base.join(&file.url).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let is_hash = file.sha256.len() == 64 && file.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let sha256 = file.sha256.to_ascii_lowercase();
    (is_plain(&file.name) && is_hash).then(|| IndexedFile { url: url.into(), sha256, ..file })
}

fn page<'a>(name: &str, files: impl Iterator<Item = &'a IndexedFile>) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.0\"><title>{name}</title></head><body>\n"
    );
    for IndexedFile { name: file, sha256, requires, yanked, .. } in files {
        let _ = write!(text, "<a href=\"../../files/{name}/{file}#sha256={sha256}\"");
        if let Some(requires) = requires {
            let _ = write!(text, " data-requires-python=\"{}\"", escaped(requires));
        }
        if *yanked {
            text.push_str(" data-yanked=\"\"");
        }
        let _ = writeln!(text, ">{file}</a><br>");
    }
    text + "</body></html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn unescaped(text: &str) -> String {
    let replaced =
        text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#x27;", "'");
    replaced.replace("&#39;", "'").replace("&#43;", "+").replace("&amp;", "&")
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "https://index.example/simple/demo/";
    const HASH: &str = "93bf7695c179ff8c93ea5cb1d0d4a895c30c6756087da8cb1deb4165f4fc8c24";

    #[test]
    fn a_file_whose_requirement_mentions_yanking_is_not_yanked() {
        let html =
            format!("<a href=\"x#sha256={HASH}\" data-requires-python=\"data-yanked\">demo-1.0.tar.gz</a>");
        assert!(!listed("text/html", AT, html.as_bytes()).unwrap()[0].yanked);
    }

    #[test]
    fn both_forms_of_an_index_say_the_same() {
        let html = format!(
            "<html><a href=\"../../files/demo-1.0.tar.gz#sha256={HASH}\" data-requires-python=\"&gt;=3.8\" data-upload-time=\"2020-01-01T00:00:00Z\">demo-1.0.tar.gz</a>\
             <a href=\"https://files.example/demo-2.0.tar.gz#sha256={HASH}\" data-yanked=\"bad\">demo-2.0.tar.gz</a>\
             <a href=\"https://files.example/no-hash.tar.gz\">no-hash.tar.gz</a><a href=\"file:///etc/passwd#sha256={HASH}\">passwd</a>\
             <a href=\"x#sha256={HASH}\">../../up</a></html>"
        );
        let json = format!(
            r#"{{"files":[{{"filename":"demo-1.0.tar.gz","url":"../../files/demo-1.0.tar.gz","hashes":{{"sha256":"{HASH}"}},"requires-python":">=3.8","upload-time":"2020-01-01T00:00:00Z","yanked":false}},
            {{"filename":"demo-2.0.tar.gz","url":"https://files.example/demo-2.0.tar.gz","hashes":{{"sha256":"{HASH}"}},"yanked":"bad"}},
            {{"filename":"no-hash.tar.gz","url":"https://files.example/no-hash.tar.gz","hashes":{{}}}}]}}"#
        );
        let from_html = listed("text/html", AT, html.as_bytes()).unwrap();
        let from_json = listed("application/vnd.pypi.simple.v1+json", AT, json.as_bytes()).unwrap();
        assert_eq!(from_html, from_json);
        assert_eq!(from_html.len(), 2);
        assert_eq!(from_html[0].url, "https://index.example/files/demo-1.0.tar.gz");
        let page = page("demo", from_html.iter());
        assert!(page.contains("data-requires-python=\"&gt;=3.8\"") && page.contains("data-yanked"), "{page}");
        let again = listed("text/html", "http://packages.bellglass/python/simple/demo/", page.as_bytes());
        assert_eq!(again.unwrap().len(), 2);
    }
}

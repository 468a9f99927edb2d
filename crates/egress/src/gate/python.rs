//! Python's index: the simple API as JSON (PEP 691) or HTML (PEP 503), written anew as HTML.

use std::fmt::Write as _;
use std::sync::Arc;

use api::policy::Policy;
use bytes::Bytes;
use hyper::Response;
use reqwest::Url;
use serde_json::Value;
use tokio::sync::watch;

use super::{
    Entry, Gate, Hash, Index, Recipient, Wanted, document, is_old_enough, is_plain, nothing, too_young,
};
use crate::Refusal;
use crate::http::Body;
use crate::party::Party;

const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.5";

/// The package of a path, in its normal form.
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

/// A name in its normal form (PEP 503).
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
        wanted: &Wanted<'_>,
        party: &Arc<Party>,
        policy: watch::Receiver<Policy>,
    ) -> Result<Response<Body>, Refusal> {
        let name = &wanted.package;
        let url = format!("{}/{name}/", self.upstreams.python.trim_end_matches('/'));
        let index = self.index(&format!("python {name}"), &url, ACCEPT, parse).await?;
        let age = policy.borrow().packages.minimum_age_ms;
        let Some(file) = wanted.rest.strip_prefix("files/").and_then(|rest| rest.split('/').nth(1)) else {
            let files = index.files.iter().filter(|file| is_old_enough(file.published.as_deref(), age));
            return Ok(document("text/html; charset=utf-8", page(name, files)));
        };
        let entry = index.files.iter().find(|entry| entry.name == file).ok_or_else(|| nothing(file))?;
        if !is_old_enough(entry.published.as_deref(), age) {
            return Err(too_young(wanted, file));
        }
        let to = Recipient { party, policy, kind: wanted.kind, package: name.clone() };
        self.give(entry, to).await
    }
}

/// What an index says.
fn parse(kind: &str, at: &str, body: Bytes) -> Option<Index> {
    let base = Url::parse(at).ok()?;
    let files = if kind.contains("json") {
        from_json(&base, &body)?
    } else {
        from_html(&base, std::str::from_utf8(&body).ok()?)
    };
    Some(Index { files, body: Bytes::new() })
}

fn from_json(base: &Url, body: &[u8]) -> Option<Vec<Entry>> {
    let page: Value = serde_json::from_slice(body).ok()?;
    let entry = |file: &Value| {
        let text = |name: &str| file.get(name).and_then(Value::as_str).map(str::to_owned);
        let sha256 = file.get("hashes")?.get("sha256")?.as_str()?.to_owned();
        let yanked = file.get("yanked").is_some_and(|yanked| yanked.as_bool() != Some(false));
        entry(
            base,
            &text("url")?,
            text("filename")?,
            sha256,
            (text("upload-time"), text("requires-python"), yanked),
        )
    };
    Some(page.get("files")?.as_array()?.iter().filter_map(entry).collect())
}

/// The anchors of a page. Whatever else is on it is not looked at.
fn from_html(base: &Url, text: &str) -> Vec<Entry> {
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
        let yanked = attributes.contains("data-yanked");
        let found = attribute("href").and_then(|href| {
            let (url, hash) = href.split_once("#sha256=")?;
            let told = (attribute("data-upload-time"), attribute("data-requires-python"), yanked);
            entry(base, url, unescaped(name.trim()), hash.to_owned(), told)
        });
        files.extend(found);
    }
    files
}

/// A file that can be given: by a plain name, with a hash to compare.
fn entry(
    base: &Url,
    url: &str,
    name: String,
    sha256: String,
    (published, requires, yanked): (Option<String>, Option<String>, bool),
) -> Option<Entry> {
    let url = base.join(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_plain(&name) && is_hash).then(|| Entry {
        version: String::new(),
        name,
        url: url.into(),
        hash: Hash::Sha256(sha256.to_ascii_lowercase()),
        published,
        requires,
        yanked,
    })
}

fn page<'a>(name: &str, files: impl Iterator<Item = &'a Entry>) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.0\"><title>{name}</title></head><body>\n"
    );
    for Entry { name: file, hash, requires, yanked, .. } in files {
        let Hash::Sha256(sha256) = hash else { continue };
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
mod tests {
    use super::*;

    const AT: &str = "https://index.example/simple/demo/";
    const HASH: &str = "93bf7695c179ff8c93ea5cb1d0d4a895c30c6756087da8cb1deb4165f4fc8c24";

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
        let from_html = parse("text/html", AT, html.into()).unwrap().files;
        let from_json = parse("application/vnd.pypi.simple.v1+json", AT, json.into()).unwrap().files;
        assert_eq!(from_html, from_json);
        assert_eq!(from_html.len(), 2);
        assert_eq!(from_html[0].url, "https://index.example/files/demo-1.0.tar.gz");
        let page = page("demo", from_html.iter());
        assert!(page.contains("data-requires-python=\"&gt;=3.8\"") && page.contains("data-yanked"), "{page}");
        assert_eq!(
            parse("text/html", "http://packages.belljar/python/simple/demo/", page.clone().into())
                .unwrap()
                .files
                .len(),
            2
        );
    }
}

//! Proxy for npm's registry. The gate removes the versions that the policy does not allow from the metadata,
//! and replaces the URLs in it with its own.

use std::sync::Arc;

use api::policy::Policy;
use hyper::Response;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::age::is_old_enough;
use super::index::{Hash, Index, IndexEntry, IndexRequest};
use super::request::PackageRequest;
use super::{Gate, HOST, Recipient, document, is_plain};
use crate::Refusal;
use crate::body::Body;
use crate::party::Party;

const SHORT: &str = "application/vnd.npm.install-v1+json, application/json;q=0.8";
const LONG: &str = "application/json";

/// Returns the name of the package that a path belongs to.
pub fn package(rest: &str) -> Option<String> {
    let decoded = rest.replace("%2f", "/").replace("%2F", "/");
    let (named, file) = match decoded.split_once("/-/") {
        Some((named, file)) => (named, Some(file)),
        None => (decoded.as_str(), None),
    };
    let sound = match named.split_once('/') {
        Some((scope, name)) => scope.strip_prefix('@').is_some_and(is_plain) && is_plain(name),
        None => is_plain(named) && !named.starts_with('-'),
    };
    (sound && file.is_none_or(is_plain)).then(|| named.to_owned())
}

impl Gate {
    pub(super) async fn npm(
        &self,
        wanted: &PackageRequest<'_>,
        party: &Arc<Party>,
        policy: watch::Receiver<Policy>,
    ) -> Result<Response<Body>, Refusal> {
        let minimum_age_ms = policy.borrow().packages.minimum_age_ms;
        let package = wanted.package.clone();
        let asking = IndexRequest {
            kind: wanted.kind,
            url: format!("{}/{}", self.upstreams.node.trim_end_matches('/'), package.replace('/', "%2f")),
            package,
            minimum_age_ms,
            // Only the long format contains the publication times of versions.
            accept: if minimum_age_ms == 0 { SHORT } else { LONG },
            parse,
        };
        let index = self.index(asking, party).await?;
        let Some((_, file)) = wanted.rest.split_once("/-/") else {
            return Ok(document("application/json", &index.page, party, &policy));
        };
        let (kind, package, upstream) = (wanted.kind, wanted.package.clone(), self.upstreams.node.as_str());
        let to = Recipient { party, policy, kind, package, upstream };
        self.give(index.file(file)?, to).await
    }
}

/// Parses a package's metadata, and builds the page for sandboxes. The page contains only the fields needed
/// to install the package.
fn parse(asking: &IndexRequest, _: &str, _: &str, body: &[u8]) -> Option<Index> {
    let mut told: Value = serde_json::from_slice(body).ok()?;
    let Value::Object(versions) = told.get_mut("versions").map(Value::take)? else { return None };
    let published =
        |version: &str| told.get("time").and_then(|times| times.get(version)).and_then(Value::as_str);
    let (mut files, mut kept) = (Vec::new(), Map::new());
    let mut newest: Option<(&str, String)> = None;
    for (version, mut about) in versions {
        let Some((name, url, sha512)) = file(&about).filter(|_| is_plain(&version)) else { continue };
        let at = published(&version);
        let is_young = !is_old_enough(at, asking.minimum_age_ms);
        if !is_young {
            if let Some(dist) = about.get_mut("dist").and_then(Value::as_object_mut) {
                dist.insert(
                    "tarball".into(),
                    format!("http://{HOST}/npm/{}/-/{name}", asking.package).into(),
                );
            }
            let at = at.unwrap_or_default();
            if !version.contains('-') && newest.as_ref().is_none_or(|(newest, _)| *newest < at) {
                newest = Some((at, version.clone()));
            }
            kept.insert(version, about);
        }
        files.push(IndexEntry { name, url, hash: Hash::Sha512(sha512), is_young });
    }
    let newest = newest.map(|(_, version)| version);
    let mut tags = told.get("dist-tags").cloned().unwrap_or_default();
    if let Some(tags) = tags.as_object_mut() {
        tags.retain(|_, version| version.as_str().is_some_and(|version| kept.contains_key(version)));
        if let Some(newest) = newest
            && !tags.contains_key("latest")
        {
            tags.insert("latest".into(), newest.into());
        }
    }
    let page = json!({ "name": asking.package, "dist-tags": tags, "versions": kept });
    Some(Index { files, page: page.to_string().into() })
}

/// Returns the file name, URL and SHA-512 hash of a version's file. Returns `None` if the file has no SHA-512
/// hash, or if its name or URL cannot be served.
fn file(version: &Value) -> Option<(String, String, String)> {
    let dist = version.get("dist")?;
    let url = dist.get("tarball")?.as_str()?;
    let name = url.rsplit('/').next()?.to_owned();
    let integrity = dist.get("integrity")?.as_str()?;
    let sha512 = integrity.split_whitespace().find_map(|one| one.strip_prefix("sha512-"))?.to_owned();
    let web = url.starts_with("https://") || url.starts_with("http://");
    (web && is_plain(&name)).then(|| (name, url.to_owned(), sha512))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use api::policy::Preset;

    #[test]
    fn versions_that_are_too_young_or_have_no_hash_are_not_shown_and_tags_follow() {
        let body = r#"{"name":"demo","dist-tags":{"latest":"2.0.0","old":"1.0.0"},
            "time":{"1.0.0":"2015-01-01T00:00:00.000Z","1.1.0":"2016-01-01T00:00:00.000Z","2.0.0":"2999-01-01T00:00:00.000Z"},
            "versions":{"1.0.0":{"dist":{"tarball":"https://r.example/demo/-/demo-1.0.0.tgz","integrity":"sha512-abc="}},
            "1.1.0":{"dist":{"tarball":"https://r.example/demo/-/demo-1.1.0.tgz","integrity":"sha512-abd="}},
            "1.2.0":{"dist":{"tarball":"https://r.example/demo/-/demo-1.2.0.tgz","shasum":"00"}},
            "2.0.0":{"dist":{"tarball":"https://r.example/demo/-/demo-2.0.0.tgz","integrity":"sha512-abe="}}}}"#;
        let told = |minimum_age_ms| {
            let (url, accept) = (String::new(), LONG);
            let asking = IndexRequest {
                kind: Preset::NodePackages,
                package: "demo".into(),
                minimum_age_ms,
                url,
                accept,
                parse,
            };
            let index = parse(&asking, "", "", body.as_bytes()).unwrap();
            let young: Vec<String> =
                index.files.iter().filter(|file| file.is_young).map(|file| file.name.clone()).collect();
            (serde_json::from_slice::<Value>(&index.page).unwrap(), young)
        };
        let (all, young) = told(0);
        assert_eq!((all["versions"].as_object().unwrap().len(), young.len()), (3, 0));
        assert_eq!(all["dist-tags"]["latest"], "2.0.0");
        let (old, young) = told(86_400_000);
        assert_eq!(old["versions"].as_object().unwrap().keys().collect::<Vec<_>>(), ["1.0.0", "1.1.0"]);
        assert_eq!(young, ["demo-2.0.0.tgz"]);
        assert_eq!(old["dist-tags"]["latest"], "1.1.0");
        let tarball = &old["versions"]["1.1.0"]["dist"]["tarball"];
        assert_eq!(tarball, "http://packages.bellglass/npm/demo/-/demo-1.1.0.tgz");
    }
}

//! npm's registry: what it says of a package is passed on, without versions that are not let in and with addresses of the gate's own.

use std::sync::Arc;

use api::policy::Policy;
use bytes::Bytes;
use hyper::Response;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::{
    Entry, Gate, HOST, Hash, Index, Recipient, Wanted, document, is_old_enough, is_plain, nothing, too_young,
};
use crate::Refusal;
use crate::http::Body;
use crate::party::Party;

const SHORT: &str = "application/vnd.npm.install-v1+json, application/json;q=0.8";
const LONG: &str = "application/json";

/// The package of a path.
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
        wanted: &Wanted<'_>,
        party: &Arc<Party>,
        policy: watch::Receiver<Policy>,
    ) -> Result<Response<Body>, Refusal> {
        let name = &wanted.package;
        let url = format!("{}/{}", self.upstreams.node.trim_end_matches('/'), name.replace('/', "%2f"));
        let age = policy.borrow().packages.minimum_age_ms;
        // Only the long form says when a version was published.
        let (form, accept) = if age == 0 { ("short", SHORT) } else { ("long", LONG) };
        let index = self.index(&format!("npm {form} {name}"), &url, accept, parse).await?;
        let Some((_, file)) = wanted.rest.split_once("/-/") else {
            let shown = shown(name, &index, age).ok_or_else(|| nothing(name))?;
            return Ok(document("application/json", shown.to_string()));
        };
        let entry = index.files.iter().find(|entry| entry.name == file).ok_or_else(|| nothing(file))?;
        if !is_old_enough(entry.published.as_deref(), age) {
            return Err(too_young(wanted, file));
        }
        let to = Recipient { party, policy, kind: wanted.kind, package: name.clone() };
        self.give(entry, to).await
    }
}

fn parse(_: &str, _: &str, body: Bytes) -> Option<Index> {
    let rest: Value = serde_json::from_slice(&body).ok()?;
    let times = rest.get("time");
    let entry = |(version, told): (&String, &Value)| {
        let dist = told.get("dist")?;
        let url = dist.get("tarball")?.as_str()?;
        let name = url.rsplit('/').next()?.to_owned();
        let integrity = dist.get("integrity")?.as_str()?;
        let sha512 = integrity.split_whitespace().find_map(|one| one.strip_prefix("sha512-"))?.to_owned();
        let published = times.and_then(|times| times.get(version)).and_then(Value::as_str).map(str::to_owned);
        let web = url.starts_with("https://") || url.starts_with("http://");
        (web && is_plain(&name) && is_plain(version)).then(|| Entry {
            name,
            version: version.clone(),
            url: url.to_owned(),
            hash: Hash::Sha512(sha512),
            published,
            requires: None,
            yanked: false,
        })
    };
    let files = rest.get("versions")?.as_object()?.iter().filter_map(entry).collect();
    Some(Index { files, body })
}

/// What a sandbox is told of a package: what is needed to install it.
fn shown(name: &str, index: &Index, minimum_age_ms: u64) -> Option<Value> {
    let mut told: Value = serde_json::from_slice(&index.body).ok()?;
    let mut all = told.get_mut("versions").map(Value::take)?;
    let mut kept = Map::new();
    let mut newest: Option<&Entry> = None;
    for entry in index.files.iter().filter(|entry| is_old_enough(entry.published.as_deref(), minimum_age_ms))
    {
        let Some(mut version) = all.get_mut(&entry.version).map(Value::take) else { continue };
        if let Some(dist) = version.get_mut("dist").and_then(Value::as_object_mut) {
            dist.insert("tarball".into(), format!("http://{HOST}/npm/{name}/-/{}", entry.name).into());
        }
        kept.insert(entry.version.clone(), version);
        let is_release = !entry.version.contains('-');
        if is_release && newest.is_none_or(|newest| newest.published < entry.published) {
            newest = Some(entry);
        }
    }
    let mut tags = told.get_mut("dist-tags").map(Value::take).unwrap_or_default();
    if let Some(tags) = tags.as_object_mut() {
        tags.retain(|_, version| version.as_str().is_some_and(|version| kept.contains_key(version)));
        if let Some(newest) = newest
            && !tags.contains_key("latest")
        {
            tags.insert("latest".into(), newest.version.clone().into());
        }
    }
    Some(json!({ "name": name, "dist-tags": tags, "versions": kept }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_too_young_or_have_no_hash_are_not_shown_and_tags_follow() {
        let body = r#"{"name":"demo","dist-tags":{"latest":"2.0.0","old":"1.0.0"},
            "time":{"1.0.0":"2015-01-01T00:00:00.000Z","1.1.0":"2016-01-01T00:00:00.000Z","2.0.0":"2999-01-01T00:00:00.000Z"},
            "versions":{"1.0.0":{"dist":{"tarball":"https://r.example/demo/-/demo-1.0.0.tgz","integrity":"sha512-abc="}},
            "1.1.0":{"dist":{"tarball":"https://r.example/demo/-/demo-1.1.0.tgz","integrity":"sha512-abd="}},
            "1.2.0":{"dist":{"tarball":"https://r.example/demo/-/demo-1.2.0.tgz","shasum":"00"}},
            "2.0.0":{"dist":{"tarball":"https://r.example/demo/-/demo-2.0.0.tgz","integrity":"sha512-abe="}}}}"#;
        let index = parse("", "", body.into()).unwrap();
        let all = shown("demo", &index, 0).unwrap();
        assert_eq!(all["versions"].as_object().unwrap().len(), 3);
        assert_eq!(all["dist-tags"]["latest"], "2.0.0");
        let old = shown("demo", &index, 86_400_000).unwrap();
        assert_eq!(old["versions"].as_object().unwrap().keys().collect::<Vec<_>>(), ["1.0.0", "1.1.0"]);
        assert_eq!(old["dist-tags"]["latest"], "1.1.0");
        assert_eq!(
            old["versions"]["1.1.0"]["dist"]["tarball"],
            "http://packages.belljar/npm/demo/-/demo-1.1.0.tgz"
        );
    }
}

//! Validates the keys in an image's JSON documents, as strictly as all readers of these documents combined.
//!
//! Engines are written in Go, whose JSON reader ignores the case of keys and uses the last of several equal
//! keys. Bellglass's reader requires exact keys. A key `repoTags` next to `RepoTags` would therefore mean one
//! thing to Bellglass and another to the engine. For this reason, a document is rejected if it contains a key
//! twice, or a key that differs only in case from a known key.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The keys of an object that a reader interprets, each with the shape of its value. The shape of a list is
/// the shape of its elements.
pub(super) struct Shape(&'static [(&'static str, Option<&'static Shape>)]);

/// `manifest.json` of a `docker save` archive.
pub(super) const SAVED: Shape = Shape(&[("Config", None), ("RepoTags", None), ("Layers", None)]);
/// `index.json` of an OCI layout, and indexes inside it.
pub(super) const INDEX: Shape =
    Shape(&[("schemaVersion", None), ("mediaType", None), ("manifests", Some(&DESCRIPTOR))]);
/// A manifest.
pub(super) const MANIFEST: Shape = Shape(&[
    ("schemaVersion", None),
    ("mediaType", None),
    ("config", Some(&DESCRIPTOR)),
    ("layers", Some(&DESCRIPTOR)),
]);
/// The configuration of an image.
pub(super) const CONFIGURATION: Shape = Shape(&[
    ("architecture", None),
    ("os", None),
    ("config", Some(&WISHES)),
    ("rootfs", Some(&ROOT)),
    ("history", None),
]);

const DESCRIPTOR: Shape = Shape(&[
    ("mediaType", None),
    ("digest", None),
    ("size", None),
    ("platform", Some(&PLATFORM)),
    ("annotations", None),
]);
const PLATFORM: Shape = Shape(&[("architecture", None), ("os", None)]);
const WISHES: Shape =
    Shape(&[("Env", None), ("WorkingDir", None), ("Labels", None), ("Volumes", None), ("User", None)]);
const ROOT: Shape = Shape(&[("type", None), ("diff_ids", None)]);

/// Rejects a document that two readers could interpret differently. The error names the key.
pub(super) fn check(text: &[u8], shape: &'static Shape) -> Result<(), serde_json::Error> {
    // Go replaces bytes that are not UTF-8. `serde_json` accepts them in values that it ignores.
    let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    Check(Some(shape)).deserialize(&mut reader)?;
    reader.end()
}

/// Folds a key as Go does when it compares keys: `K` (the Kelvin sign) equals `k`, and `ſ` equals `s`.
fn folded(key: &str) -> String {
    key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

struct Check(Option<&'static Shape>);

impl<'de> DeserializeSeed<'de> for Check {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        match self.0 {
            Some(_) => reader.deserialize_any(self),
            None => reader.deserialize_ignored_any(IgnoredAny).map(drop),
        }
    }
}

impl<'de> Visitor<'de> for Check {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an image document")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let known = self.0.map_or(&[][..], |shape| shape.0);
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let exact = known.iter().find(|(name, _)| *name == key);
            let alike = known.iter().any(|(name, _)| folded(name) == folded(&key));
            if exact.is_none() && alike {
                return Err(A::Error::custom(format!(
                    "the key {key:?} differs from a known key only in case"
                )));
            }
            map.next_value_seed(Check(exact.and_then(|(_, shape)| *shape)))?;
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("duplicate key {key:?}")));
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Check(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_go_would_obey_and_we_would_not_see_is_refused() {
        for text in [
            r#"[{"Config":"a","RepoTags":null,"Layers":[],"repoTags":["x"]}]"#,
            r#"[{"Config":"a","repotags":["x"],"Layers":[]}]"#,
            r#"[{"Config":"a","Layers":[],"Layers":["b"]}]"#,
            r#"[{"Config":"a","Layers":[],"config":"b"}]"#,
            "[{\"Config\":\"a\",\"Layers\":[],\"Layer\u{17f}\":[\"b\"]}]",
        ] {
            check(text.as_bytes(), &SAVED).unwrap_err();
        }
        for text in [
            r#"{"manifests":[{"digest":"a","Digest":"b"}]}"#,
            r#"{"manifests":[],"Manifests":[]}"#,
            r#"{"manifests":[{"platform":{"os":"linux","OS":"x"}}]}"#,
        ] {
            check(text.as_bytes(), &INDEX).unwrap_err();
        }
        check(br#"{"config":{"Env":[],"env":["PATH=/x"]}}"#, &CONFIGURATION).unwrap_err();
    }

    #[test]
    fn a_document_that_is_not_utf8_is_refused_even_if_the_value_is_ignored() {
        check(b"{\"config\":{\"x\":\"\xcf\"}}", &CONFIGURATION).unwrap_err();
    }

    #[test]
    fn what_tools_write_is_read() {
        check(
            br#"[{"Config":"a","RepoTags":["x:1"],"Layers":["b"],"LayerSources":{"s":{"size":1}}}]"#,
            &SAVED,
        )
        .unwrap();
        check(
            br#"{"architecture":"amd64","config":{"Hostname":"","Env":["A=b"],"Labels":{"a":"1","A":"2"},"Volumes":{"/A":{},"/a":{}},
                "OnBuild":null},"container_config":{"Env":null},"created":"x","os":"linux","rootfs":{"type":"layers","diff_ids":[]},"x":1.5}"#,
            &CONFIGURATION,
        )
        .unwrap();
    }
}

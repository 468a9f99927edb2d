//! Fuzz target: metadata of an npm registry.

use api::policy::Preset;

use super::*;

#[test]
fn metadata_for_sandboxes_names_only_files_of_the_gate() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        for minimum_age_ms in [0, 86_400_000] {
            let asking = IndexRequest {
                kind: Preset::NodePackages,
                package: "demo".into(),
                minimum_age_ms,
                url: String::new(),
                accept: LONG,
                parse,
            };
            let Some(index) = parse(&asking, "", "", input) else { continue };
            for file in &index.files {
                assert!(is_plain(&file.name), "{file:?}");
                assert!(file.url.starts_with("https://") || file.url.starts_with("http://"), "{file:?}");
            }
            let page: Value = serde_json::from_slice(&index.page).unwrap();
            let versions = page["versions"].as_object().unwrap();
            assert!(versions.len() <= index.files.len());
            for (version, about) in versions {
                let tarball = about["dist"]["tarball"].as_str().unwrap();
                let name = tarball.strip_prefix("http://packages.bellglass/npm/demo/-/").unwrap();
                assert!(is_plain(version) && index.files.iter().any(|file| file.name == name), "{tarball}");
            }
            for version in page["dist-tags"].as_object().into_iter().flat_map(Map::values) {
                assert!(versions.contains_key(version.as_str().unwrap()), "{version}");
            }
        }
    });
}

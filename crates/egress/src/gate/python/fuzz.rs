//! Fuzz target: Python indexes of an upstream.

use api::policy::Preset;

use super::*;

const AT: &str = "https://index.example/simple/demo/";
const HOST_AT: &str = "http://packages.bellglass/python/simple/demo/";

#[test]
fn the_page_of_an_index_lists_the_files_of_the_index() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        for kind in ["application/vnd.pypi.simple.v1+json", "text/html"] {
            let Some(listed) = listed(kind, AT, input) else { continue };
            for file in &listed {
                let url = Url::parse(&file.url).unwrap();
                assert!(["http", "https"].contains(&url.scheme()) && is_plain(&file.name), "{file:?}");
                assert!(file.sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
            }
            for minimum_age_ms in [0, 86_400_000] {
                let (kind_of, package) = (Preset::PythonPackages, "demo".to_owned());
                let asking = IndexRequest {
                    kind: kind_of,
                    package,
                    minimum_age_ms,
                    url: AT.into(),
                    accept: ACCEPT,
                    parse,
                };
                let index = parse(&asking, kind, AT, input).unwrap();
                assert_eq!(index.files.len(), listed.len());
                let old = listed
                    .iter()
                    .zip(&index.files)
                    .filter(|(_, entry)| !entry.is_young)
                    .map(|(file, _)| file);
                let seen = |file: &IndexedFile| {
                    (file.name.clone(), file.sha256.clone(), file.requires.clone(), file.yanked)
                };
                let again = super::listed("text/html", HOST_AT, &index.page).unwrap();
                assert_eq!(again.iter().map(seen).collect::<Vec<_>>(), old.map(seen).collect::<Vec<_>>());
            }
        }
    });
}

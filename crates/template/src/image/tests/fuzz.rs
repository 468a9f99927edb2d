//! Fuzz targets: documents of OCI layouts and of `docker save` archives.

use super::*;

/// Replaces each `@` in a text by the descriptor of the next document, and adds the document to the layout.
/// Documents are separated by empty lines; the first is `index.json` or `manifest.json`.
fn layout(input: &str) -> (Layout, &'static str) {
    let layout = Layout::new();
    let mut rest: Vec<&str> = input.split("\n\n").collect();
    let mut filled = String::new();
    while let Some(document) = rest.pop() {
        let text = document.replace('@', filled.trim());
        if rest.is_empty() {
            let name = if text.starts_with('[') { "manifest.json" } else { "index.json" };
            fs::write(layout.path().join(name), text).unwrap();
            return (layout, name);
        }
        let kind = if text.contains("\"layers\"") { "manifest" } else { "config" };
        let kind = format!("application/vnd.oci.image.{kind}.v1+json");
        filled = layout.blob(&kind, text.as_bytes()).to_string();
    }
    (layout, "index.json")
}

fn check(image: &Image) {
    assert!(!image.layers.is_empty() && image.layers.len() <= LAYERS_MAX);
    for layer in &image.layers {
        check_digest(&layer.diff_id).unwrap();
        assert!(layer.digest.as_deref().is_none_or(|digest| check_digest(digest).is_ok()));
    }
    assert!(image.env.len() <= VARIABLES_MAX);
    assert!(image.env.iter().all(|(name, value)| crate::recipe::is_variable(name, value)));
    if let Some(cwd) = &image.cwd {
        assert!(cwd.starts_with('/') && cwd.len() > 1 && !cwd.contains('\0'), "{cwd:?}");
        assert!(cwd.split('/').skip(1).all(|part| !["", ".", ".."].contains(&part)), "{cwd:?}");
    }
    if let Some(note) = &image.note {
        note.check().unwrap();
    }
}

#[test]
fn an_image_that_is_read_has_valid_layers_variables_and_directories() {
    bolero::check!().with_iterations(200).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let (layout, _) = layout(text);
        if let Ok(image) = layout.read() {
            check(&image);
        }
    });
}

#[test]
fn a_configuration_has_one_meaning_for_all_readers() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let blobs = vec![("layer".to_owned(), None)];
        let Ok(image) = Image::new("x", input.to_vec(), blobs) else { return };
        check(&image);
        assert_eq!(image.configuration, input);
        // No key of the document differs from a key that this reader uses only in case.
        let Ok(text) = serde_json::from_slice::<Value>(input) else { return };
        for (object, names) in [
            (&text, &["architecture", "os", "config", "rootfs"][..]),
            (&text["config"], &["Env", "WorkingDir", "Labels"][..]),
        ] {
            let keys = object.as_object().into_iter().flatten().map(|(key, _)| key);
            for key in keys.filter(|key| names.iter().any(|name| name.eq_ignore_ascii_case(key))) {
                assert!(names.contains(&key.as_str()), "{key:?}");
            }
        }
    });
}

//! Fuzz target: paths of requests to the gate.

use super::*;

/// Returns the path with its encoded characters decoded once.
fn decoded(path: &str) -> String {
    let mut text = path.to_owned();
    for (encoded, plain) in [("%2f", "/"), ("%2b", "+"), ("%3a", ":"), ("%7e", "~")] {
        text = text.replace(encoded, plain).replace(&encoded.to_ascii_uppercase(), plain);
    }
    text
}

#[test]
fn a_package_path_written_differently_names_the_same_package() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(path) = std::str::from_utf8(input) else { return };
        let Ok(wanted) = understand(&Method::GET, path) else { return };
        let plain = decoded(path);
        assert!(!plain.contains(['%', '\\', '?', '#', '\0', ' ']), "{path:?}");
        assert!(!plain.split('/').any(|part| part == ".." || part == "."), "{path:?}");
        if let Ok(again) = understand(&Method::GET, &plain) {
            assert_eq!((again.kind, &again.package), (wanted.kind, &wanted.package), "{path:?}");
        }
        let rest = match wanted.kind {
            Preset::PythonPackages => format!("/python/simple/{}/", wanted.package),
            Preset::NodePackages => format!("/npm/{}", wanted.package),
            Preset::DebianPackages if !wanted.package.is_empty() => {
                format!("/debian/pool/{}_1.deb", wanted.package)
            }
            Preset::DebianPackages | Preset::Git => return,
        };
        let canonical =
            understand(&Method::GET, &rest).unwrap_or_else(|refusal| panic!("{rest}: {}", refusal.why));
        assert_eq!((canonical.kind, &canonical.package), (wanted.kind, &wanted.package));
    });
}

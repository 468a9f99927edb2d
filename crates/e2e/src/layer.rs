//! The root file system that tests start sandboxes from.

use std::path::PathBuf;
use std::sync::OnceLock;

/// A directory with a Debian system in it, mount points made: `BELLJAR_TEST_LAYER`, or the layer of the template
/// `base` in the directory of built things, made on first use.
pub fn base() -> PathBuf {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    BASE.get_or_init(|| match std::env::var_os("BELLJAR_TEST_LAYER") {
        Some(path) => path.into(),
        None => panic!("BELLJAR_TEST_LAYER is not set"),
    })
    .clone()
}

//! The root file system that tests start sandboxes from.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use node::Machine;
use node::template::recipe::Recipe;
use node::template::{Builder, Order, Store};
use runtime::Tier;

use crate::apart;

/// Where the template is kept between runs. Every user may walk there, which is not so for every checkout.
const KEPT: &str = "/var/tmp/belljar-test";

/// A directory with a Debian system in it, mount points made: `BELLJAR_TEST_LAYER`, or the layer of the template
/// `base`, built as `belljar template build base` does, on first use.
pub fn base() -> PathBuf {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    BASE.get_or_init(|| match std::env::var_os("BELLJAR_TEST_LAYER") {
        Some(path) => path.into(),
        None => built(Path::new(KEPT)),
    })
    .clone()
}

fn built(data: &Path) -> PathBuf {
    let machine = Machine::open(data).expect("the directory of the test template");
    let store = Store::new(data);
    let template = store.load("base").unwrap_or_else(|_| {
        eprintln!("building the template `base` for the tests, once");
        apart(async || {
            machine.tidy().await.unwrap();
            let builder = Builder::new(&machine, machine.at_least(Tier::Container).unwrap());
            let recipe = Recipe::parse(include_str!("../../../images/base.toml")).unwrap();
            let order =
                Order { name: "base", recipe: &recipe, home: Path::new("."), fresh: false, registry: None };
            let built = builder.build(&order, &|_| {}).await;
            built.unwrap_or_else(|error| panic!("{}", node::error::chain(&error)))
        })
    });
    template.layer_directories(data).remove(0)
}

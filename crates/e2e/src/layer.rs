//! The root file systems of test sandboxes.

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use node::Machine;
use node::template::recipe::Recipe;
use node::template::{BuildOrder, Builder, Store, Template};
use runtime::Tier;
use runtime::engine::{Engine, EngineEndpoint, EngineKind};

use crate::apart;

/// Directory that keeps templates between test runs. All users can traverse its path, which is not true of
/// every checkout.
const KEPT: &str = "/var/tmp/bellglass-test";

/// Returns a directory with a Debian system and mount points. It is the directory that `BELLGLASS_TEST_LAYER`
/// names, or else the layer of the template `base`. That template is built on first use, in the same way as
/// by `bellglass template build base`.
pub fn base() -> PathBuf {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    BASE.get_or_init(|| match std::env::var_os("BELLGLASS_TEST_LAYER") {
        Some(path) => path.into(),
        None => built(Path::new(KEPT)),
    })
    .clone()
}

/// Returns the directory that keeps files between test runs because they are expensive to create.
pub fn kept() -> &'static Path {
    Path::new(KEPT)
}

/// Adds a template that ships with Bellglass and takes minutes to build, such as `interpreter`, to a data
/// directory. The template is built once, and its layers are shared with other data directories. After a
/// change to its recipe, only the changed steps are rebuilt.
pub fn lend(data: &Path, name: &str) {
    static LENT: Mutex<BTreeMap<String, Template>> = Mutex::new(BTreeMap::new());
    let kept = Path::new(KEPT);
    let template = LENT.lock().unwrap().entry(name.to_owned()).or_insert_with(|| build(kept, name)).clone();
    let layers = data.join("layers");
    std::fs::create_dir_all(&layers).unwrap();
    std::fs::set_permissions(&layers, std::fs::Permissions::from_mode(0o711)).unwrap();
    for key in &template.layers {
        if !layers.join(key).exists() {
            symlink(kept.join("layers").join(key), layers.join(key)).unwrap();
        }
    }
    Store::new(data).save(&template).unwrap();
}

/// Returns the name of the `base` template's image in an engine, and loads the image first if necessary. The
/// name is empty for a runtime that is not an engine.
pub fn base_image(runtime: &str) -> String {
    static LOADED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    // Workspaces on the stand-in for Daytona are Docker containers.
    let engine = if runtime == runtime::daytona::NAME { "docker" } else { runtime };
    let Some(kind) = EngineKind::ALL.into_iter().find(|kind| kind.name() == engine) else {
        return String::new();
    };
    base();
    LOADED.lock().unwrap().entry(engine.to_owned()).or_insert_with(|| load(kind, "base")).clone()
}

/// Loads a template into an engine and returns its image name.
pub fn load(kind: EngineKind, name: &str) -> String {
    load_into(EngineEndpoint::find(kind).unwrap(), name, None)
}

/// Loads a template into the engine at this address, and tags the image with an additional name.
pub fn load_at(kind: EngineKind, address: &str, name: &str, also: &str) -> String {
    load_into(EngineEndpoint { kind, address: address.to_owned() }, name, Some(also))
}

fn load_into(place: EngineEndpoint, name: &str, also: Option<&str>) -> String {
    let machine = Machine::open(Path::new(KEPT)).unwrap();
    let _lock = lock(Path::new(KEPT));
    apart(async || {
        let builder = Builder::new(&machine, machine.at_least(Tier::Container).unwrap());
        let engine = Engine::new(place, machine.data()).unwrap();
        let loaded = builder.load(name, &engine, &|_| {}).await;
        let image = loaded.unwrap_or_else(|error| panic!("{}", node::error::chain(&error))).image();
        if let Some(also) = also {
            engine.tag(&engine.id_of(&image).unwrap().unwrap(), also).await.unwrap();
        }
        image
    })
}

/// Exports a template to a file.
pub fn export(name: &str, file: &Path) {
    base();
    let machine = Machine::open(Path::new(KEPT)).unwrap();
    apart(async || {
        let builder = Builder::new(&machine, machine.at_least(Tier::Container).unwrap());
        builder.export(name, file, &|_| {}).await.unwrap();
    });
}

/// Adds the template `base` and its layer to a data directory.
pub fn lend_base(data: &Path) {
    base();
    lend(data, "base");
}

/// Gives an image in an engine an additional name.
pub fn also_named(kind: EngineKind, image: &str, name: &str) {
    let machine = Machine::open(Path::new(KEPT)).unwrap();
    apart(async || {
        let engine = machine.engine(kind).unwrap();
        engine.tag(&engine.id_of(image).unwrap().unwrap(), name).await.unwrap();
    });
}

/// Records an engine's image in a data directory, under the given name.
pub fn lend_image(data: &Path, kind: EngineKind, image: &str, name: &str) {
    let record = |data: &Path, name: &str| {
        data.join(format!("engine/{}-images", kind.name())).join(name.replace('/', "+"))
    };
    let to = record(data, name);
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(record(Path::new(KEPT), image), to).unwrap();
}

/// Returns [`base_image`], and records that image in this data directory.
pub fn base_image_in(data: &Path, runtime: &str) -> String {
    let image = base_image(runtime);
    if let Some(kind) = EngineKind::ALL.into_iter().find(|kind| kind.name() == runtime) {
        lend_image(data, kind, &image, &image);
    }
    image
}

fn built(data: &Path) -> PathBuf {
    build(data, "base").layer_directories(data).remove(0)
}

/// Returns a template. Builds it if it does not exist, or if a recipe has changed since this function last built it;
/// unchanged steps are not built again.
fn build(data: &Path, name: &str) -> Template {
    let _lock = lock(data);
    let (recipes, note) = (recipes(), data.join(format!("{name}.recipes")));
    if std::fs::read_to_string(&note).is_ok_and(|built| built == recipes)
        && let Ok(template) = Store::new(data).load(name)
    {
        return template;
    }
    let template = build_steps(data, name);
    std::fs::write(note, recipes).unwrap();
    template
}

/// Returns a hash of all recipes that ship with Bellglass, and of the files that they copy. A template depends on its own
/// recipe and on those of the templates below it.
fn recipes() -> String {
    let (mut directories, mut files) = (vec![images()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut hasher = std::hash::DefaultHasher::new();
    for file in files {
        (file.file_name(), std::fs::read(&file).unwrap()).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images")
}

/// Waits until no other process builds or loads a template in this directory. The lock lasts until the file is
/// closed.
fn lock(data: &Path) -> std::fs::File {
    std::fs::create_dir_all(data).unwrap();
    // `scripts/templates` locks the same file.
    let file = std::fs::File::create(data.join("lock")).unwrap();
    file.lock().unwrap();
    file
}

fn build_steps(data: &Path, name: &str) -> Template {
    let images = images();
    let recipe = std::fs::read_to_string(images.join(format!("{name}.toml"))).unwrap();
    let recipe = Recipe::parse(&recipe).unwrap();
    let machine = Machine::open(data).expect("the directory of the test template");
    eprintln!("building the steps of the template `{name}` that are not there yet");
    apart(async || {
        node::remove_orphans(&machine).await.unwrap();
        let builder = Builder::new(&machine, machine.at_least(Tier::Container).unwrap());
        let order = BuildOrder::new(name, &recipe, &images);
        let built = builder.build(&order, &|_| {}).await;
        built.unwrap_or_else(|error| panic!("{}", node::error::chain(&error)))
    })
}

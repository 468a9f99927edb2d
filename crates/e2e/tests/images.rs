//! Builds the recipes that ship with Bellglass from scratch, with the package indexes that this machine uses.
//! Run it with `just images`. It takes minutes and a gigabyte of disk space, so it is not part of the tests
//! that run for every change. `BELLGLASS_IMAGES` is a comma-separated list of the recipes to build.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use e2e::service::binary;

/// Python program that checks an image: installed modules have valid bytecode, and code runs as the expected
/// user in the expected directory.
const COMPILED: &str = r#"
import importlib.util, os, pathlib, struct, sys
stale = []
for root in sys.path:
    for source in pathlib.Path(root).rglob("*.py") if root.endswith("-packages") else []:
        if "test" in str(source) or "__pycache__" in str(source):
            continue
        cached = pathlib.Path(importlib.util.cache_from_source(str(source)))
        stat = source.stat()
        if not cached.exists() or struct.unpack("<II", cached.read_bytes()[8:16]) != (int(stat.st_mtime), stat.st_size & 0xFFFFFFFF):
            stale.append(str(source))
# What no Python could compile (templates of other programs) is none.
assert len(stale) <= 5, stale[:20]
assert (os.getuid(), os.getcwd()) == (1000, "/workspace")
assert [os.environ[name] for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "MPLBACKEND")] == ["1", "1", "Agg"]
print("compiled", sys.version.split()[0])
"#;

/// Python program that checks that the fonts contain all glyphs, because matplotlib warns about each missing
/// glyph.
const DRAWN: &str = r#"
import warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt
plt.title("漢字 かな 한국어 العربية 😀📊 Ωж")
plt.plot([1, 2])
plt.savefig("/workspace/x.png")
print("drawn")
"#;

struct Shop {
    data: PathBuf,
}

impl Shop {
    /// Runs `bellglass` with this test's data directory.
    fn bellglass(&self, words: &[&str]) -> Output {
        Command::new(binary()).arg("--data").arg(&self.data).args(words).output().unwrap()
    }

    /// Builds a recipe, and returns the duration in seconds and the steps that were executed.
    fn build(&self, recipe: &Path) -> (f64, Vec<String>) {
        let begun = Instant::now();
        let output = self.bellglass(&["template", "build", recipe.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let steps = said.lines().filter(|line| line.contains(": step ") && !line.contains("(cached)"));
        (begun.elapsed().as_secs_f64(), steps.map(str::to_owned).collect())
    }

    fn python(&self, template: &str, program: &str) -> String {
        let output = self.bellglass(&["run", "--template", template, "--", "python3", "-c", program]);
        assert!(output.status.success(), "{template}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// Checks requirements A13.01, A13.02, A13.03 and A13.04: each recipe can be built from scratch, and the
/// result has the promised contents.
#[test]
#[ignore = "starts real sandboxes"]
fn every_recipe_is_built_from_nothing_and_holds_what_it_should() {
    let wanted =
        std::env::var("BELLGLASS_IMAGES").expect("the names of the images: run it with `just images`");
    let place = tempfile::Builder::new().prefix("bellglass-images").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let shop = Shop { data: place.path().join("data") };
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images");
    for name in wanted.split(',') {
        let (seconds, steps) = shop.build(&images.join(format!("{name}.toml")));
        println!("image {name}: from nothing in {seconds:.0} s, {} steps", steps.len());
        let said = match name {
            "base" => String::new(),
            "node" => {
                let output = shop.bellglass(&[
                    "run",
                    "--template",
                    "node",
                    "--",
                    "node",
                    "-e",
                    "console.log(process.version)",
                ]);
                assert!(String::from_utf8_lossy(&output.stdout).starts_with('v'), "{output:?}");
                let recipe = place.path().join("typed.toml");
                let step = "from = \"node\"\nsteps = [{ npm = [\"typescript@5.6\"] }, { run = \"tsc --version\" }]\n";
                fs::write(&recipe, step).unwrap();
                let (seconds, _) = shop.build(&recipe);
                format!(
                    "{} and a step of npm in {seconds:.0} s",
                    String::from_utf8_lossy(&output.stdout).trim()
                )
            }
            "python" => shop.python("python", COMPILED),
            "analysis" => {
                shop.python("analysis", "import polars, numpy, matplotlib, seaborn, sklearn");
                format!("{} {}", shop.python("analysis", COMPILED), shop.python("analysis", DRAWN))
            }
            "interpreter" => interpreter(&shop),
            other => panic!("there is no image {other}"),
        };
        println!("image {name}: {}", said.trim());
        if name == "interpreter" {
            again(&shop, &images, place.path());
        }
    }
}

fn interpreter(shop: &Shop) -> String {
    shop.python(
        "interpreter",
        "import numpy, pandas, matplotlib, scipy, seaborn, sklearn, PIL, sympy, openpyxl, docx, pypdf, pptx, tabulate, faker, dateutil, humanize, yaml, lxml, plotly.io, IPython",
    );
    let warm = r#"
import json, subprocess
code = json.dumps({"code": "import sys; print('pandas' in sys.modules, 'left' in globals()); left = 1"})
bad = json.dumps({"code": "1/0"})
done = subprocess.run(["python3", "/opt/entrypoint.py"], input=f"{code}\n{code}\n{bad}\n", capture_output=True, text=True)
print(done.stdout.split("\n"), "ZeroDivisionError" in done.stderr)
"#;
    let said = shop.python("interpreter", warm);
    let (run, failed) = ("'True False', '{\"exit_code\": 0}'", "'{\"exit_code\": 1}'");
    assert_eq!(said, format!("['SANDBOX_READY', {run}, {run}, {failed}, ''] True"));
    let version = shop.python("interpreter", COMPILED);
    assert!(version.contains(" 3.13."), "{version}");
    format!("{version} {}", shop.python("interpreter", DRAWN))
}

/// Checks that adding a package rebuilds only the changed step.
fn again(shop: &Shop, images: &Path, place: &Path) {
    let home = place.join("images");
    assert!(Command::new("cp").arg("-r").arg(images).arg(&home).status().unwrap().success());
    let recipe = home.join("interpreter.toml");
    let (seconds, steps) = shop.build(&recipe);
    assert_eq!(steps.len(), 1, "variables are set each time, and nothing else is done: {steps:?}");
    println!("image interpreter: again in {seconds:.1} s");
    let text = fs::read_to_string(&recipe).unwrap().replace("[\"plotly\"]", "[\"plotly\", \"cowsay\"]");
    fs::write(&recipe, text).unwrap();
    let (seconds, steps) = shop.build(&recipe);
    assert!(steps.len() == 2 && steps[1].contains("pip plotly cowsay"), "{steps:?}");
    println!("image interpreter: with one package more in {seconds:.1} s, {} of its steps", steps.len() - 1);
}

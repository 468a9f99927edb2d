//! Environments in which drivers run. Their packages from PyPI are installed once, below [`KEPT`].
//!
//! `jupyter` and its kernels run in a single bare runc container, on the root file system with the data
//! stack. They have the same Python and the same packages as the sandboxes in the comparison, but the kernels
//! are not isolated from each other. `llm-sandbox` runs on this machine in a virtual environment, and uses
//! the Docker engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Driver;
use crate::process;
use crate::rootfs::{KEPT, cannot};
use crate::target::runc::{Bundles, Shape, bind};
use crate::target::{Image, MEMORY_BYTES, MEMORY_BYTES_DATA, PIDS, TargetFailure, TargetResources, docker};

const JUPYTER: &str = include_str!("../../../drivers/jupyter.py");
const LLM_SANDBOX: &str = include_str!("../../../drivers/llm_sandbox.py");
/// Packages that a kernel needs and that the data stack does not contain.
const JUPYTER_PACKAGES: [&str; 2] = ["ipykernel", "jupyter_client"];
const LLM_SANDBOX_PACKAGES: [&str; 1] = ["llm-sandbox[docker]"];
/// Python version of the data stack. Packages are selected for this version.
const PYTHON: &str = "3.13";
/// Timeout for an installation. It allows about a dozen packages over a slow connection.
const INSTALLED_WITHIN: Duration = Duration::from_secs(300);
/// Directory of the driver in the container.
const INSIDE: &str = "/opt/bench";

/// Starts the driver for Jupyter kernels, in one container.
pub async fn jupyter(place: &TargetResources<'_>) -> Result<Driver, TargetFailure> {
    let bundles = Bundles::new(place).await?;
    let packages = Path::new(KEPT).join("jupyter");
    if !packages.join("jupyter_client").exists() {
        let mut pip = process::command("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--only-binary", ":all:"]);
        pip.args(["--python-version", PYTHON, "--target"]).arg(&packages).args(JUPYTER_PACKAGES);
        process::run(&mut pip, INSTALLED_WITHIN).await?;
    }
    let home = place.scratch.join("jupyter");
    written(&home, JUPYTER)?;
    let name = format!("bench-jupyter-{}", place.run);
    let shape = Shape {
        image: Image::Data,
        argv: &["python3", "/opt/bench/driver.py"],
        mounts: vec![bind(&home, INSIDE, false), bind(&packages, "/opt/jupyter", false)],
        limited: false,
    };
    let bundle = bundles.make(&name, &shape)?;
    let mut run = bundles.runc();
    run.args(["run", "--bundle"]).arg(bundle).arg(&name);
    let mut delete = bundles.runc();
    delete.args(["delete", "--force", &name]);
    Driver::start("jupyter", run, Some(delete), place.deadline).await
}

/// Starts the driver for llm-sandbox, which uses Docker.
pub async fn llm_sandbox(place: &TargetResources<'_>) -> Result<Driver, TargetFailure> {
    let rootfs = place.rootfs()?;
    let plain = docker::import(rootfs.of(Image::Plain)).await?;
    let data = docker::import(rootfs.of(Image::Data)).await?;
    let python = environment("llm-sandbox", &LLM_SANDBOX_PACKAGES).await?;
    let home = place.scratch.join("llm-sandbox");
    let driver = written(&home, LLM_SANDBOX)?;
    let mut command = process::command(python);
    command.arg(driver).args([&plain, &data]).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args([MEMORY_BYTES, MEMORY_BYTES_DATA, PIDS].map(|limit| limit.to_string()));
    command.arg(format!("bellglass-bench={}", place.run));
    Driver::start("llm-sandbox", command, None, place.deadline).await
}

/// Returns the Python interpreter of a virtual environment with these packages. Creates the environment if it
/// does not exist yet.
async fn environment(name: &str, packages: &[&str]) -> Result<PathBuf, TargetFailure> {
    let home = Path::new(KEPT).join(format!("venv-{name}"));
    let (python, done) = (home.join("bin/python"), home.join("installed"));
    if !done.exists() {
        process::run(process::command("python3").args(["-m", "venv"]).arg(&home), INSTALLED_WITHIN).await?;
        let mut pip = process::command(&python);
        pip.args(["-m", "pip", "install", "--quiet"]).args(packages);
        process::run(&mut pip, INSTALLED_WITHIN).await?;
        std::fs::write(&done, packages.join("\n")).map_err(|error| cannot("write", &done, &error))?;
    }
    Ok(python)
}

fn written(home: &Path, text: &str) -> Result<PathBuf, TargetFailure> {
    let path = home.join("driver.py");
    std::fs::create_dir_all(home).map_err(|error| cannot("create", home, &error))?;
    std::fs::write(&path, text).map_err(|error| cannot("write", &path, &error))?;
    Ok(path)
}

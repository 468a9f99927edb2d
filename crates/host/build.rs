//! Builds the guest, so that it can be embedded in the server's executable. The guest then cannot get lost,
//! and its version always matches the server's.
//!
//! The guest is statically linked, so it needs no library from an image. If the musl target is installed, the
//! guest is linked against musl. Otherwise it is linked statically against the build machine's C library,
//! which doubles its size but makes no other difference.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace = manifest.join("../..");
    for part in ["crates/guest", "crates/api", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(part).display());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let architecture = env::var("CARGO_CFG_TARGET_ARCH")?;
    let musl = format!("{architecture}-unknown-linux-musl");
    let (target, flags) = if has_target(&musl)? {
        (musl, "")
    } else {
        (format!("{architecture}-unknown-linux-gnu"), "-Ctarget-feature=+crt-static")
    };
    // The `guest` profile optimizes for size and takes a minute to build, which is too long for test builds.
    let profile = if ["0", "1"].contains(&&*env::var("OPT_LEVEL")?) { "guest-quick" } else { "guest" };
    let features = if env::var_os("CARGO_FEATURE_UNDEFENDED").is_some() { "undefended" } else { "" };
    // The guest has a separate target directory, because the outer cargo process holds the lock on the
    // workspace's target directory. It is next to the build directories of all packages, so that lints and
    // tests, whose build scripts run separately, share one build of the guest. A guest with the feature
    // `undefended`, which is built for tests only, has its own directory, so that it can never be embedded in
    // an executable that is shipped.
    let built = out.ancestors().nth(3).unwrap_or(&out).join(format!("guest-build{features}"));
    let status = Command::new(env::var("CARGO")?)
        .args(["build", "--package", "guest", "--profile", profile, "--target", &target])
        .args(["--features", features, "--target-dir"])
        .arg(&built)
        .current_dir(&workspace)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", flags)
        .status()?;
    if !status.success() {
        return Err(format!("building the guest for {target} failed").into());
    }
    std::fs::copy(built.join(&target).join(profile).join("guest"), out.join("guest"))?;
    Ok(())
}

fn has_target(target: &str) -> Result<bool, Box<dyn Error>> {
    let output = Command::new(env::var("RUSTC")?).args(["--print", "sysroot"]).output()?;
    let sysroot = String::from_utf8(output.stdout)?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").is_dir())
}

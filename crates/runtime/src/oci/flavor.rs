//! The supported OCI runtimes, as data: they differ in name, flags and strength of isolation.

use std::path::{Path, PathBuf};

use crate::{Error, Tier};

/// One OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// Its name as users know it.
    pub name: &'static str,
    /// Its executable.
    pub binary: PathBuf,
    /// Flags before the subcommand, in addition to `--root` and `--log`.
    pub flags: &'static [&'static str],
    /// The strength of its isolation.
    pub tier: Tier,
}

impl Flavor {
    /// Returns runc, the reference implementation.
    pub fn runc() -> Self {
        Self { name: "runc", binary: "runc".into(), flags: &[], tier: Tier::Container }
    }

    /// Returns youki, an implementation in Rust.
    pub fn youki() -> Self {
        Self { name: "youki", binary: "youki".into(), flags: &[], tier: Tier::Container }
    }

    /// Returns runsc (gVisor), a kernel in user space. `--oci-seccomp` is set because without the filter user
    /// code could drop its exec group in a user namespace of its own. The root is not overlaid because it is
    /// read-only.
    pub fn runsc() -> Self {
        let flags =
            &["--platform=systrap", "--network=none", "--host-uds=open", "--oci-seccomp", "--overlay2=none"];
        Self { name: "runsc", binary: "runsc".into(), flags, tier: Tier::UserKernel }
    }

    /// Searches the executable in `PATH` and in the system directories.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not found.
    pub fn find(self) -> Result<Self, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // OCI runtimes are usually installed in sbin directories, which may be missing from an ordinary PATH.
        let directories =
            std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
        let found =
            directories.map(|directory| directory.join(&self.binary)).find(|path| is_executable(path));
        match found {
            Some(binary) => Ok(Self { binary, ..self }),
            None => Err(Error::Unsupported {
                what: "this kind of isolation",
                why: format!("`{}` is not in PATH; install it", self.binary.display()),
            }),
        }
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_absolute() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
}

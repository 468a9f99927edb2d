//! The supported OCI runtimes, described as data. They differ in name, flags and strength of isolation.

use std::path::{Path, PathBuf};

use crate::{Error, Tier};

/// One OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// The runtime's name, as shown to users.
    pub name: &'static str,
    /// The runtime's executable.
    pub binary: PathBuf,
    /// Flags before the subcommand, in addition to `--root` and `--log`.
    pub flags: &'static [&'static str],
    /// The strength of the runtime's isolation.
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

    /// Returns runsc (gVisor), a user-space kernel. `--oci-seccomp` makes it apply the system call filter;
    /// without the filter, user code could drop its exec group, which identifies its exec, in a user
    /// namespace of its own. `--overlay2=none` is set because the root file system is read-only and needs no
    /// overlay from gVisor.
    pub fn runsc() -> Self {
        let flags =
            &["--platform=systrap", "--network=none", "--host-uds=open", "--oci-seccomp", "--overlay2=none"];
        Self { name: "runsc", binary: "runsc".into(), flags, tier: Tier::UserKernel }
    }

    /// Searches for the executable in `PATH` and in the system directories.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the executable is not found.
    pub fn find(self) -> Result<Self, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // OCI runtimes are usually installed in sbin directories, which an ordinary user's PATH may not
        // contain.
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

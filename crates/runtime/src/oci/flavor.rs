//! The OCI runtimes that can be driven, as data: they differ in a name, some flags and the strength of their wall.

use std::path::{Path, PathBuf};

use crate::{Error, Tier};

/// One OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// The name people use for it.
    pub name: &'static str,
    /// Its executable.
    pub binary: PathBuf,
    /// Flags before the verb, beside `--root` and `--log`.
    pub flags: &'static [&'static str],
    /// The strength of its wall.
    pub tier: Tier,
}

impl Flavor {
    /// The reference implementation.
    pub fn runc() -> Self {
        Self { name: "runc", binary: "runc".into(), flags: &[], tier: Tier::Container }
    }

    /// The one written in Rust.
    pub fn youki() -> Self {
        Self { name: "youki", binary: "youki".into(), flags: &[], tier: Tier::Container }
    }

    /// gVisor: a kernel in user space. The seccomp filter is asked for because without it user code could shed its
    /// exec group in a user namespace of its own. The root is not overlaid: it is read-only.
    pub fn runsc() -> Self {
        let flags =
            &["--platform=systrap", "--network=none", "--host-uds=open", "--oci-seccomp", "--overlay2=none"];
        Self { name: "runsc", binary: "runsc".into(), flags, tier: Tier::UserKernel }
    }

    /// Looks for the executable in `PATH`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not there.
    pub fn find(self) -> Result<Self, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Superusers' directories may be missing from an ordinary PATH, and that is where these are installed.
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

//! The program of a new process, in the form that `execve` expects.

use std::ffi::CString;
use std::io;

use api::exec::ExecSpec;

use super::environment::environment;
use crate::syscall::errno;

/// Arguments of `execve`, in the form that the kernel expects.
pub(super) struct Program {
    paths: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// Storage that the pointers refer to.
    _strings: Vec<CString>,
}

impl Program {
    pub fn new(spec: &ExecSpec) -> io::Result<Self> {
        let name = spec.argv.first().map_or("", String::as_str);
        let env = environment(spec);
        let paths = if name.contains('/') {
            vec![c_string(name)?]
        } else {
            let path = env.get("PATH").copied().unwrap_or_default();
            path.split(':')
                .map(|directory| c_string(&format!("{directory}/{name}")))
                .collect::<io::Result<_>>()?
        };
        let words = spec.argv.iter().map(|word| c_string(word)).collect::<io::Result<Vec<_>>>()?;
        let variables = env
            .iter()
            .map(|(name, value)| c_string(&format!("{name}={value}")))
            .collect::<io::Result<Vec<_>>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&words), pointers(&variables));
        Ok(Self { paths, argv, env, _strings: words.into_iter().chain(variables).collect() })
    }

    /// Executes the first path that can be executed. Returns the error if none can.
    pub fn become_it(&self) -> libc::c_int {
        let mut reason = libc::ENOENT;
        for path in &self.paths {
            // SAFETY: The strings are NUL-terminated, both arrays end with a null pointer, and all were
            // created before the fork.
            unsafe { libc::execve(path.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                // A later directory in `PATH` may have an executable file with this name. If none does,
                // report this error.
                libc::EACCES => reason = libc::EACCES,
                other => return other,
            }
        }
        reason
    }
}

pub(super) fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

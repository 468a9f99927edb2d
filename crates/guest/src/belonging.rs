//! Creates pipes and terminals that the exec's user owns from the start, so that programs can reopen them by
//! name (`echo x > /dev/stderr`, `tty`, `script`).
//!
//! The creator of such an object becomes its owner, so the guest switches its effective uid while it creates
//! one. This is safe: the guest has only one thread, and because its real and saved uids stay the same, no
//! other process may signal or trace it meanwhile.

use std::io;

use rustix::process::{DumpableBehavior, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::set_thread_res_uid;

/// Calls `make` with `uid` as the effective uid, so that this user owns the created object.
pub fn made_for<T>(uid: u32, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = geteuid();
    if !own.is_root() || uid == 0 {
        return make();
    }
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    let made = make();
    // This also restores the capabilities. Returning to the saved uid cannot fail. If it did, this process
    // could no longer start anything, and every later call of this function would return the error.
    set_thread_res_uid(None, own, None)?;
    // Changing the effective uid resets the dumpable flag to the host's default (`fs.suid_dumpable`).
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_belongs_to_the_user_and_we_are_who_we_were() {
        let before = geteuid();
        let (reads, _writes) =
            made_for(1000, || Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)).unwrap();
        assert_eq!(geteuid(), before);
        if before.is_root() {
            assert_eq!(rustix::fs::fstat(&reads).unwrap().st_uid, 1000);
        }
        made_for(1000, || io::Result::<()>::Err(io::ErrorKind::Other.into())).unwrap_err();
        assert_eq!(geteuid(), before, "after a failure too");
    }
}

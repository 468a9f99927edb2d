//! Creates objects that the exec's user owns from the start: pipes and terminals. So programs can reopen them
//! by name (`echo x > /dev/stderr`, `tty`, `script`).
//!
//! The creator of such an object is its owner, so the guest lowers its effective uid for that moment. The
//! guest has one thread, and its real and saved uid stay the same, so that no other process may signal or
//! trace it meanwhile.

use std::io;

use rustix::process::{DumpableBehavior, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::set_thread_res_uid;

/// Creates an object that this user owns.
pub fn made_for<T>(uid: u32, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = geteuid();
    if !own.is_root() || uid == 0 {
        return make();
    }
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    let made = make();
    // Also restores the capabilities. Returning to the saved uid cannot fail. If it did, this process could
    // start nothing anymore, and every later call here would return the error.
    set_thread_res_uid(None, own, None)?;
    // A change of the effective uid resets this flag to the default that the host's administrator chose.
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

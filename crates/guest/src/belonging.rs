//! What is made for the exec's user, and belongs to it from the beginning: pipes and terminals, so that programs may open them again
//! by their names (`echo x > /dev/stderr`, `tty`, `script`).
//!
//! Who makes them owns them, so the guest lowers its effective uid for that moment. It has one thread, and its real and saved uid
//! stay, so that nobody may signal or trace it meanwhile.

use std::io;

use rustix::process::{DumpableBehavior, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::set_thread_res_uid;

/// Makes something that belongs to this user.
pub fn made_for<T>(uid: u32, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = geteuid();
    if !own.is_root() || uid == 0 {
        return make();
    }
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    let made = make();
    // The capabilities come back with it. Going up again to where the saved uid is cannot fail; if it did, this process could
    // start nothing any more, and says so from here on.
    set_thread_res_uid(None, own, None)?;
    // A change of the effective uid resets this to what the host's administrator chose.
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

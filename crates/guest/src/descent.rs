//! The steps that a new process performs between fork and exec, to change from the sandbox's root to its
//! final user and privileges.
//!
//! In a sandbox without root, the parent interpreter is the only program of the image that keeps
//! capabilities, because it sets the user and group of its forks. It runs as an ordinary user, with SETUID
//! and SETGID as ambient capabilities. A filter prevents it and all its descendants from ever becoming user 0
//! or group 0.
//!
//! gVisor has no ambient capabilities, and gives a program capabilities only if it is started as root. Under
//! gVisor, the parent interpreter is therefore root of its own user namespace, which maps root to the
//! parent's ordinary user and does not map the sandbox's root (decision 0033). So that no other process can
//! create a user namespace, every process under gVisor starts with a filter that denies `unshare`.

mod namespace;

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

use crate::syscall::done;

/// Highest capability number to try. Current kernels define numbers up to 40, and reject higher numbers
/// without side effects.
pub const CAPABILITY_LAST: libc::c_ulong = 63;
/// SETPCAP as a bit mask. This capability allows a process to remove capabilities from its bounding set.
pub const SETPCAP: u64 = 1 << 8;
/// Version 3 of the capability header, which announces two sets of 32 capabilities.
pub const CAPABILITIES_VERSION: u32 = 0x2008_0522;

/// System calls that change the user or group of a process, each with its number of ID arguments.
const IDENTITY_CALLS: [(libc::c_long, u8); 8] = [
    (libc::SYS_setuid, 1),
    (libc::SYS_setreuid, 2),
    (libc::SYS_setresuid, 3),
    (libc::SYS_setfsuid, 1),
    (libc::SYS_setgid, 1),
    (libc::SYS_setregid, 2),
    (libc::SYS_setresgid, 3),
    (libc::SYS_setfsgid, 1),
];
/// Offset of the system call number in a seccomp filter's input data. The arguments follow, each with its
/// lower half first.
const NUMBER_AT: u32 = 0;
const ARGUMENTS_AT: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;

/// The steps that a child performs before it executes the program. Built before the fork, because the child
/// must not allocate.
pub struct Descent {
    /// Cgroups that the child joins.
    pub cgroups: Vec<RawFd>,
    /// User of the child. Its primary group has the same number.
    pub uid: libc::uid_t,
    /// Supplementary group: the exec group.
    pub groups: [libc::gid_t; 1],
    /// Capabilities that the child keeps.
    pub capabilities: u64,
    /// Working directory.
    pub directory: CString,
    /// Descriptors that the child gets in addition to its three streams, as descriptors 3 and up.
    pub extra: Vec<RawFd>,
    /// True if standard input is a terminal, which then becomes the controlling terminal of the session.
    pub terminal: bool,
    /// True if the child becomes root of its own user namespace, in which `uid` appears as root.
    pub nested: bool,
    /// Seccomp filter for the child and all its descendants: [`never_root`], [`no_namespaces`] or empty.
    pub filter: Vec<libc::sock_filter>,
}

impl Descent {
    /// Performs the steps, in the child. The order matters: the child joins the cgroups while it may still
    /// write to them, then changes its identity and privileges, then enters the working directory.
    pub fn descend(&self, streams: [RawFd; 3]) -> io::Result<()> {
        for (number, stream) in (0..).zip(streams) {
            // SAFETY: The call takes no pointers, and `stream` is an open descriptor.
            done(unsafe { libc::dup2(stream, number) })?;
        }
        // SAFETY: The call takes no pointers. The Rust runtime ignores SIGPIPE, and programs would inherit
        // this setting.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        for cgroup in &self.cgroups {
            // SAFETY: The call writes one byte of static memory to an open descriptor.
            done(unsafe { libc::write(*cgroup, b"0".as_ptr().cast(), 1) } as libc::c_int)?;
        }
        be_first_to_go();
        // SAFETY: `setsid` takes no pointers.
        done(unsafe { libc::setsid() })?;
        if self.terminal {
            // SAFETY: The call takes no pointers. Descriptor 0 is a terminal that no session controls, and
            // this process leads a session without a terminal.
            done(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
        }
        let uid = if self.nested { 0 } else { self.uid };
        if self.nested {
            namespace::enter(self.uid)?;
        }
        // SAFETY: The pointer refers to an array of the given length.
        done(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: `setresgid` takes no pointers.
        done(unsafe { libc::setresgid(uid, uid, uid) })?;
        if uid != 0 && self.capabilities != 0 {
            self.keep_without_root()?;
        } else {
            drop_bounding(self.capabilities);
            // SAFETY: `setresuid` takes no pointers. Changing from uid 0 to another uid clears the permitted,
            // effective and ambient sets. If the uid stays 0, the exec limits the capabilities to the
            // bounding set.
            done(unsafe { libc::setresuid(uid, uid, uid) })?;
        }
        self.install_filter()?;
        for (number, descriptor) in (3..).zip(&self.extra) {
            // SAFETY: The call takes no pointers. The descriptor is open, and above all numbers that are
            // assigned here.
            done(unsafe { libc::dup2(*descriptor, number) })?;
        }
        // SAFETY: `umask` takes no pointers. This is the default mask that programs usually have.
        unsafe { libc::umask(0o022) };
        // SAFETY: The string is NUL-terminated and was created before the fork. This process already runs as
        // the user, so the user's permissions apply.
        done(unsafe { libc::chdir(self.directory.as_ptr()) })
    }

    /// Switches to the user, keeps the capabilities across the exec, and removes every way back to root.
    fn keep_without_root(&self) -> io::Result<()> {
        // SAFETY: The call takes no pointers.
        done(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
        // SAFETY: `setresuid` takes no pointers.
        done(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })?;
        // Only an inheritable capability can become ambient, and it can become inheritable only while it is
        // in the bounding set.
        set_capabilities(self.capabilities | SETPCAP, self.capabilities)?;
        for capability in (0..=CAPABILITY_LAST).filter(|number| self.capabilities >> number & 1 == 1) {
            let raise = libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong;
            // SAFETY: The call takes no pointers.
            done(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, 0, 0) })?;
        }
        drop_bounding(0);
        set_capabilities(self.capabilities, self.capabilities)
    }

    fn install_filter(&self) -> io::Result<()> {
        if self.filter.is_empty() {
            return Ok(());
        }
        let len = self.filter.len() as libc::c_ushort;
        let program = libc::sock_fprog { len, filter: self.filter.as_ptr().cast_mut() };
        // SAFETY: The program states its number of instructions correctly, and the kernel reads them before
        // the call returns.
        done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
    }
}

/// Returns a filter that refuses every call that would make a process user 0 or group 0. Call numbers differ
/// between ABIs, but the sandbox's own filter already kills a process that uses a foreign ABI.
pub fn never_root() -> Vec<libc::sock_filter> {
    let mut filter = vec![load(NUMBER_AT)];
    for (call, ids) in IDENTITY_CALLS {
        // If this is a different call, skip this call's argument checks and both of its results.
        filter.push(equal(call as u32, 0, 2 * ids + 2));
        for id in 0..ids {
            filter.push(load(ARGUMENTS_AT + u32::from(id) * ARGUMENT_BYTES));
            filter.push(equal(0, 2 * (ids - 1 - id) + 1, 0));
        }
        filter.push(answer(libc::SECCOMP_RET_ALLOW));
        filter.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

/// Returns a filter that refuses `unshare`, so that no process creates a user namespace. In every tier, the
/// sandbox's own filter already refuses to create namespaces with `clone`.
pub fn no_namespaces() -> Vec<libc::sock_filter> {
    vec![
        load(NUMBER_AT),
        equal(libc::SYS_unshare as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at)
}

/// Skips `then` instructions if the loaded value equals `value`, otherwise skips `otherwise` instructions.
fn equal(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, then, otherwise, value)
}

fn answer(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn drop_bounding(but: u64) {
    if api::defence::is_off("R-05") {
        return;
    }
    for capability in (0..=CAPABILITY_LAST).filter(|number| but >> number & 1 == 0) {
        // SAFETY: The call takes no pointers. EINVAL is expected for numbers above the kernel's last
        // capability.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Sets this process's effective, permitted and inheritable capabilities. All capabilities used here have
/// numbers below 32.
fn set_capabilities(held: u64, inheritable: u64) -> io::Result<()> {
    let header = [CAPABILITIES_VERSION, 0];
    // The effective, permitted and inheritable sets: first the lower 32 bits of each, then the upper 32 bits.
    let sets = [held as u32, held as u32, inheritable as u32, 0, 0, 0];
    // SAFETY: Both arrays have the layout that the call expects, and outlive the call.
    done(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) } as libc::c_int)
}

/// Makes the OOM killer choose user code first. This matters if the whole machine runs out of memory, and in
/// a sandbox whose process 1 shares the memory limit of user code. User code can undo this for its own
/// processes, at the risk of its own sandbox only. Errors are ignored: without this file, no OOM killer ranks
/// processes.
fn be_first_to_go() {
    // SAFETY: The path is NUL-terminated, and the call reads no third argument with these flags.
    let file = unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if file >= 0 {
        // SAFETY: The call writes four bytes of static memory to an open descriptor.
        unsafe { libc::write(file, b"1000".as_ptr().cast(), 4) };
        // SAFETY: The descriptor is open and owned by this function, which closes it once.
        unsafe { libc::close(file) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates a filter for a call with these arguments.
    fn answer_of(filter: &[libc::sock_filter], call: libc::c_long, arguments: [u32; 3]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let one = filter[at];
            at += 1;
            match u32::from(one.code) & 0x07 {
                libc::BPF_LD if one.k == NUMBER_AT => loaded = call as u32,
                libc::BPF_LD => {
                    loaded = arguments[((one.k - ARGUMENTS_AT) / ARGUMENT_BYTES) as usize];
                }
                libc::BPF_JMP => at += usize::from(if loaded == one.k { one.jt } else { one.jf }),
                _ => return one.k,
            }
        }
    }

    #[test]
    fn nobody_makes_a_namespace() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        assert_eq!(answer_of(&no_namespaces(), libc::SYS_unshare, [0; 3]), refused);
        assert_eq!(answer_of(&no_namespaces(), libc::SYS_read, [0; 3]), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn no_argument_of_any_call_makes_root() {
        let answer = |call, arguments| answer_of(&never_root(), call, arguments);
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for (call, ids) in IDENTITY_CALLS {
            assert_eq!(answer(call, [1000; 3]), libc::SECCOMP_RET_ALLOW, "{call}");
            assert_eq!(answer(call, [u32::MAX; 3]), libc::SECCOMP_RET_ALLOW, "{call}: unchanged");
            for zero in 0..usize::from(ids) {
                let mut arguments = [1000; 3];
                arguments[zero] = 0;
                assert_eq!(answer(call, arguments), refused, "{call} {arguments:?}");
            }
        }
        assert_eq!(answer(libc::SYS_setgroups, [0; 3]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(answer(libc::SYS_read, [0; 3]), libc::SECCOMP_RET_ALLOW);
    }
}

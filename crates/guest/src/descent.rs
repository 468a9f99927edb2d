//! What a new process does to itself between fork and exec: from root of the sandbox down to who it is to be.
//!
//! The interpreter's parent is the one process of the image's that keeps capabilities: it gives forks their user and group. It keeps
//! SETUID and SETGID as an ordinary user, as ambient capabilities, behind a filter by which neither it nor any descendant can ever be
//! user 0 or group 0.
//!
//! gVisor knows no ambient capabilities, and gives a program some only if root starts it. There the parent has a user namespace of its
//! own, in which root is its ordinary user, and the root of the sandbox is nobody (decision 0033). So that nobody else makes a
//! namespace there, every process begins behind a filter that refuses it.

mod namespace;

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

use super::launch::done;

/// The highest capability number that any kernel so far knows is 40; asking for more is refused and harmless.
pub const CAPABILITY_LAST: libc::c_ulong = 63;
/// What it takes to empty the bounding set.
pub const SETPCAP: u64 = 1 << 8;
/// How Linux is told that two sets of 32 capabilities follow.
pub const CAPABILITIES_VERSION: u32 = 0x2008_0522;

/// The calls that change who a process is, and how many of their arguments are ids.
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
/// Where the number of a call is in what a filter sees, and where its first argument is, low half first.
const NUMBER_AT: u32 = 0;
const ARGUMENTS_AT: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;

/// What the child does to itself before it becomes the program. Made before the fork: a child may not allocate.
pub struct Descent {
    /// The cgroups that it enters.
    pub cgroups: Vec<RawFd>,
    /// Its user, and the group of the same number.
    pub uid: libc::uid_t,
    /// Its extra group.
    pub groups: [libc::gid_t; 1],
    /// The capabilities that it keeps.
    pub capabilities: u64,
    /// The directory that it begins in.
    pub directory: CString,
    /// What it has besides its three streams, from descriptor 3 on.
    pub extra: Vec<RawFd>,
    /// Whether its standard input is a terminal, which becomes its session's.
    pub terminal: bool,
    /// Whether it is root of a user namespace of its own, in which `uid` is the root.
    pub nested: bool,
    /// What it and all its descendants may not call: [`never_root`], [`no_namespaces`], or nothing.
    pub filter: Vec<libc::sock_filter>,
}

impl Descent {
    /// Runs in the child. The order is the point: cgroup while we still may, identity, privileges, then the path.
    pub fn descend(&self, streams: [RawFd; 3]) -> io::Result<()> {
        for (number, stream) in (0..).zip(streams) {
            // SAFETY: no pointers; both numbers are of descriptors that are open.
            done(unsafe { libc::dup2(stream, number) })?;
        }
        // SAFETY: no pointers. Rust ignores this signal, which a program would inherit.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        for cgroup in &self.cgroups {
            // SAFETY: one byte of static memory is written to a descriptor that is open.
            done(unsafe { libc::write(*cgroup, b"0".as_ptr().cast(), 1) } as libc::c_int)?;
        }
        be_first_to_go();
        // SAFETY: no pointers.
        done(unsafe { libc::setsid() })?;
        if self.terminal {
            // SAFETY: no pointers; descriptor 0 is a terminal of no session, and this process leads a session without one.
            done(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
        }
        let uid = if self.nested { 0 } else { self.uid };
        if self.nested {
            namespace::enter(self.uid)?;
        }
        // SAFETY: the pointer is to an array of the given length.
        done(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: no pointers.
        done(unsafe { libc::setresgid(uid, uid, uid) })?;
        if uid != 0 && self.capabilities != 0 {
            self.keep_without_root()?;
        } else {
            drop_bounding(self.capabilities);
            // SAFETY: no pointers. Leaving uid 0 empties the permitted, effective and ambient sets; where it is not left, becoming
            // the program leaves what is in the bounding set.
            done(unsafe { libc::setresuid(uid, uid, uid) })?;
        }
        self.install_filter()?;
        for (number, descriptor) in (3..).zip(&self.extra) {
            // SAFETY: no pointers; the descriptor is open and above all numbers given here.
            done(unsafe { libc::dup2(*descriptor, number) })?;
        }
        // SAFETY: no pointers. The mask a program would have without us.
        unsafe { libc::umask(0o022) };
        // SAFETY: a NUL-terminated string made before the fork. As the user, so that its rights decide.
        done(unsafe { libc::chdir(self.directory.as_ptr()) })
    }

    /// Becomes the user, with these capabilities across the exec and no way back to root.
    fn keep_without_root(&self) -> io::Result<()> {
        // SAFETY: no pointers.
        done(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
        // SAFETY: no pointers.
        done(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })?;
        // What becomes ambient must be inheritable, and that only while it is in the bounding set.
        set_capabilities(self.capabilities | SETPCAP, self.capabilities)?;
        for capability in (0..=CAPABILITY_LAST).filter(|number| self.capabilities >> number & 1 == 1) {
            let raise = libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong;
            // SAFETY: no pointers.
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
        // SAFETY: the program says how many instructions there are; the kernel reads them before the call returns.
        done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
    }
}

/// A filter by which no process ever is, or becomes, user 0 or group 0 by a call. Calls of a foreign ABI, whose numbers differ, end
/// in the sandbox's own filter.
pub fn never_root() -> Vec<libc::sock_filter> {
    let mut filter = vec![load(NUMBER_AT)];
    for (call, ids) in IDENTITY_CALLS {
        // Past the checks of this call and both of its answers.
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

/// A filter by which no process makes a user namespace. By `clone` it cannot anywhere.
pub fn no_namespaces() -> Vec<libc::sock_filter> {
    vec![
        load(NUMBER_AT),
        equal(libc::SYS_unshare as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), at)
}

/// Passes over so many instructions where the value is this one, else over so many.
fn equal(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (then, otherwise), value)
}

fn answer(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, (0, 0), value)
}

fn instruction(code: u32, (jt, jf): (u8, u8), k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn drop_bounding(but: u64) {
    for capability in (0..=CAPABILITY_LAST).filter(|number| but >> number & 1 == 0) {
        // SAFETY: no pointers. EINVAL beyond the kernel's last capability is expected.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Sets what this process may do, and what a program may inherit of it. All of it is among the lower 32.
fn set_capabilities(held: u64, inheritable: u64) -> io::Result<()> {
    let header = [CAPABILITIES_VERSION, 0];
    // Effective, permitted, inheritable: of the lower 32, then of the upper.
    let sets = [held as u32, held as u32, inheritable as u32, 0, 0, 0];
    // SAFETY: both are laid out as the call reads them, and outlive it.
    done(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) } as libc::c_int)
}

/// Whoever runs out of memory, the machine or a sandbox whose process 1 shares its limit, takes user code first. Code can undo it for
/// itself, which is its own sandbox's loss. Where it cannot be set there is nobody to compare with.
fn be_first_to_go() {
    // SAFETY: a NUL-terminated string, and no third argument is read with these flags.
    let file = unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if file >= 0 {
        // SAFETY: four bytes of static memory are written to a descriptor that is open, and closed once.
        unsafe {
            libc::write(file, b"1000".as_ptr().cast(), 4);
            libc::close(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter answers to a call with these arguments.
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

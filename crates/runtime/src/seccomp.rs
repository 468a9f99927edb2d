//! The system calls that a sandbox may make: an allowlist, for the native ABI only.
//!
//! Calls that are not listed return `ENOSYS`, as on an older kernel, so that C libraries fall back to older
//! calls. Calls return `EPERM` if programs are known to try them and to handle this error. A call through a
//! foreign ABI (i386, x32) kills the process: call numbers have different meanings there, and i386's
//! `socketcall` hides a socket's family from every filter.
//!
//! The rules for one call never overlap, because OCI runtimes differ in which of two overlapping rules they
//! apply.

use serde_json::{Value, json};

use crate::Tier;

const EPERM: u32 = libc::EPERM as u32;
const EACCES: u32 = libc::EACCES as u32;
const ENOSYS: u32 = libc::ENOSYS as u32;
const EPROTONOSUPPORT: u32 = libc::EPROTONOSUPPORT as u32;
const ESOCKTNOSUPPORT: u32 = libc::ESOCKTNOSUPPORT as u32;
const EAFNOSUPPORT: u32 = libc::EAFNOSUPPORT as u32;

/// Mask for the type in `socket`'s type argument. The other bits are flags.
const TYPE_MASK: u64 = 0xf;
const STREAM: u64 = libc::SOCK_STREAM as u64;
const DATAGRAM: u64 = libc::SOCK_DGRAM as u64;
const RAW: u64 = libc::SOCK_RAW as u64;
const SEQUENCED: u64 = libc::SOCK_SEQPACKET as u64;
const PACKET: u64 = 10;
const UNIX: u64 = libc::AF_UNIX as u64;
const INTERNET: [u64; 2] = [libc::AF_INET as u64, libc::AF_INET6 as u64];
const NETLINK: u64 = libc::AF_NETLINK as u64;
const ICMP: u64 = libc::IPPROTO_ICMP as u64;
const TCP: u64 = libc::IPPROTO_TCP as u64;
const UDP: u64 = libc::IPPROTO_UDP as u64;

/// The flags of `clone` that create a namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// The execution domains that ordinary programs request: Linux, 32-bit Linux, both of these with the old
/// `uname`, and the value that queries the current domain.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Calls for files and directories.
const FILES: &str = "\
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 \
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock \
    fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat \
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl lchown lgetxattr link linkat listxattr \
    listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat \
    openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr \
    removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx symlink \
    symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes write \
    writev";
/// Calls for waiting, clocks and timers. Setting a clock is excluded.
const WAITING: &str = "\
    alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 \
    epoll_wait eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake getitimer gettimeofday \
    nanosleep pause pipe pipe2 poll ppoll \
    pselect6 select setitimer signalfd signalfd4 time timer_create timer_delete timer_getoverrun timer_gettime \
    timer_settime timerfd_create timerfd_gettime timerfd_settime times";
/// Calls of the kernel's older asynchronous I/O interface, through which one sandbox could exhaust a
/// machine-wide limit (`fs.aio-max-nr`). The filter does not list these calls, so they return `ENOSYS`, and
/// programs use threads instead.
const ASYNCHRONOUS: &str = "io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit";
/// Calls for memory management. Placement on NUMA nodes and handling of page faults in user space are
/// excluded.
const MEMORY: &str = "\
    brk madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect \
    mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease \
    remap_file_pages";
/// Calls for processes, threads, users, limits and signals.
const PROCESSES: &str = "\
    arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid \
    geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit \
    getrusage getsid gettid getuid ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset \
    landlock_restrict_self pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall riscv_flush_icache rseq \
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam \
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler \
    sched_yield seccomp set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid \
    setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack sysinfo tgkill tkill uname \
    vfork wait4 waitid";
/// Calls for existing sockets, and for objects of the private IPC namespace.
const TALKING: &str = "\
    accept accept4 bind connect getpeername getsockname getsockopt listen mq_getsetattr mq_notify mq_open \
    mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd recvfrom recvmmsg recvmsg semctl semget semop \
    semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown";
/// Calls that are refused with `EPERM`, because programs that try them handle this error: mounting, entering
/// namespaces, inspecting other processes, loading code into the kernel or profiling it, keys, and
/// administration.
const REFUSED: &str = "\
    acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick \
    init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl mount mount_setattr move_mount name_to_handle_at \
    open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv \
    process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday \
    swapoff swapon syslog umount umount2 userfaultfd vhangup vmsplice";

/// Returns the filter in the format of the OCI configuration.
///
/// gVisor versions before 2026 return `EPERM` regardless of the error that a rule specifies, and C libraries
/// do not fall back when `clone3` returns `EPERM`. All versions support `SCMP_ACT_TRACE`, which results in
/// `ENOSYS` if there is no tracer. There cannot be a tracer, because `ptrace` is refused.
pub(crate) fn filter(tier: Tier) -> Value {
    let mut rules = Vec::new();
    for names in [FILES, WAITING, MEMORY, PROCESSES, TALKING] {
        rules.push(json!({ "names": words(names), "action": "SCMP_ACT_ALLOW" }));
    }
    if api::defence::is_off("C-31") {
        rules.push(json!({ "names": words(ASYNCHRONOUS), "action": "SCMP_ACT_ALLOW" }));
    }
    rules.push(json!({ "names": words(REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM }));
    rules.extend(clone());
    rules.push(unshare(tier));
    rules.extend(PERSONALITIES.iter().map(|value| allow("personality", &[equal(0, *value)])));
    rules.extend(socket());
    rules.extend(socket_pair());
    json!({
        "defaultAction": match tier {
            Tier::Container => "SCMP_ACT_ERRNO",
            Tier::UserKernel => "SCMP_ACT_TRACE",
        },
        "defaultErrnoRet": ENOSYS,
        "architectures": [architecture()],
        "syscalls": rules,
    })
}

fn words(names: &str) -> Vec<&str> {
    names.split_whitespace().collect()
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" }
}

/// Returns the rules for `clone`, which is allowed without namespace flags and refused with any of them.
/// `clone3` passes its flags through a pointer, which a filter cannot follow. It is therefore not listed, and
/// C libraries use `clone` instead.
fn clone() -> Vec<Value> {
    let bits = NAMESPACES.map(|flag| u64::from(flag.unsigned_abs()));
    let all = bits.iter().fold(0, |all, bit| all | bit);
    let refused = bits.iter().map(|bit| refuse("clone", EPERM, &[masked(0, *bit, *bit)]));
    std::iter::once(allow("clone", &[masked(0, all, 0)])).chain(refused).collect()
}

/// Returns the rule for `unshare`. In a container, the call is refused. With a user-space kernel, the filter
/// allows it to create a user namespace, because process 1 creates one for the process that starts the
/// interpreters. Process 1 prevents all other processes from doing the same.
fn unshare(tier: Tier) -> Value {
    match tier {
        Tier::Container => refuse("unshare", EPERM, &[]),
        Tier::UserKernel => allow("unshare", &[equal(0, u64::from(libc::CLONE_NEWUSER.unsigned_abs()))]),
    }
}

fn socket() -> Vec<Value> {
    let kind = |value| masked(1, TYPE_MASK, value);
    let mut rules = Vec::new();
    for value in [STREAM, DATAGRAM, SEQUENCED] {
        rules.push(allow("socket", &[equal(0, UNIX), kind(value)]));
    }
    rules.push(refuse("socket", EPERM, &[equal(0, UNIX), kind(RAW)]));
    for family in INTERNET {
        for (value, protocol) in [(STREAM, TCP), (DATAGRAM, UDP)] {
            rules.push(allow("socket", &[equal(0, family), kind(value), equal(2, 0)]));
            rules.push(allow("socket", &[equal(0, family), kind(value), equal(2, protocol)]));
            // These are protocols such as SCTP, MPTCP, SMC and L2TP, which are large protocol stacks with no
            // reachable peer.
            rules.push(refuse("socket", EPROTONOSUPPORT, &[equal(0, family), kind(value), above(2, UDP)]));
        }
        rules.push(refuse("socket", EACCES, &[equal(0, family), kind(DATAGRAM), equal(2, ICMP)]));
        rules.push(refuse("socket", EPERM, &[equal(0, family), kind(RAW)]));
        rules.push(refuse("socket", EPERM, &[equal(0, family), kind(PACKET)]));
        rules.push(refuse("socket", ESOCKTNOSUPPORT, &[equal(0, family), kind(SEQUENCED)]));
    }
    rules.push(allow("socket", &[equal(0, NETLINK), equal(2, 0)]));
    rules.push(refuse("socket", EPROTONOSUPPORT, &[equal(0, NETLINK), above(2, 0)]));
    let known = |family: &u64| *family == UNIX || *family == NETLINK || INTERNET.contains(family);
    rules.extend(
        (0..NETLINK)
            .filter(|family| !known(family))
            .map(|family| refuse("socket", EAFNOSUPPORT, &[equal(0, family)])),
    );
    rules.push(refuse("socket", EAFNOSUPPORT, &[above(0, NETLINK)]));
    rules
}

fn socket_pair() -> Vec<Value> {
    let kinds = [STREAM, DATAGRAM, SEQUENCED];
    let mut rules: Vec<Value> = kinds
        .iter()
        .map(|kind| allow("socketpair", &[equal(0, UNIX), masked(1, TYPE_MASK, *kind)]))
        .collect();
    rules.push(refuse("socketpair", EAFNOSUPPORT, &[equal(0, 0)]));
    rules.push(refuse("socketpair", EAFNOSUPPORT, &[above(0, UNIX)]));
    rules
}

fn allow(name: &str, conditions: &[Value]) -> Value {
    json!({ "names": [name], "action": "SCMP_ACT_ALLOW", "args": conditions })
}

fn refuse(name: &str, errno: u32, conditions: &[Value]) -> Value {
    json!({ "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": conditions })
}

fn equal(index: u32, value: u64) -> Value {
    json!({ "index": index, "value": value, "op": "SCMP_CMP_EQ" })
}

fn above(index: u32, value: u64) -> Value {
    json!({ "index": index, "value": value, "op": "SCMP_CMP_GT" })
}

fn masked(index: u32, mask: u64, value: u64) -> Value {
    json!({ "index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_allowed_or_refused_and_not_both() {
        let mut seen = std::collections::HashSet::new();
        for name in [FILES, WAITING, MEMORY, PROCESSES, TALKING, REFUSED].into_iter().flat_map(words) {
            assert!(seen.insert(name), "{name} is named twice");
        }
        for name in words(ASYNCHRONOUS).into_iter().chain([
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "clone3",
            "socket",
            "clone",
            "memfd_secret",
        ]) {
            assert!(!seen.contains(name), "{name}");
        }
    }
}

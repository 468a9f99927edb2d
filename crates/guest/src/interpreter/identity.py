"""Who a process is: how the parent gets rid of root, and how a fork becomes the user.

The parent keeps three capabilities, which are what it needs to make a user out of a fork. A fork drops them, for good,
before a line of user code exists.
"""

import _signal
import ctypes
import os

SETGID, SETUID, SETPCAP = 6, 7, 8
PARENT_CAPABILITIES = 1 << SETGID | 1 << SETUID | 1 << SETPCAP

PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_READ, PR_CAPBSET_DROP = 4, 8, 23, 24
CAPABILITY_VERSION_3 = 0x20080522
HIGHEST_CAPABILITY = 63

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
libc.capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
NONE = (ctypes.c_uint32 * 6)()


def checked(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option, argument, what):
    return checked(libc.prctl(option, argument, 0, 0, 0), what)


def verify(uid, capabilities, names):
    """Raises unless this process is `uid` with exactly `capabilities` in the sets of these names."""
    descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    said = os.read(descriptor, 8192)
    os.close(descriptor)
    wrong = [name for name in names if b"%s:\t%016x\n" % (name, capabilities) not in said]
    if os.getresuid() != (uid, uid, uid) or (
        b"\nUid:" in said and b"\nUid:\t%d\t%d\t%d\t" % (uid, uid, uid) not in said
    ):
        wrong.append(b"Uid")
    if wrong:
        raise OSError(1, f"identity is not what it must be: {b', '.join(wrong).decode()}")


def bounding_set():
    """The capabilities of the bounding set. Asked once by the parent, so that a fork drops only what is there."""
    return [number for number in range(HIGHEST_CAPABILITY + 1) if libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1]


def become_parent(uid, group):
    """From root of the sandbox to the parent's own user. Nobody may look into it or trace it from the first step on."""
    prctl(PR_SET_DUMPABLE, 0, "dumpable")
    prctl(PR_SET_KEEPCAPS, 1, "keep capabilities")
    os.setgroups([group])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    kept = (ctypes.c_uint32 * 6)(PARENT_CAPABILITIES, PARENT_CAPABILITIES)
    checked(libc.capset(header, kept), "capset")
    prctl(PR_SET_DUMPABLE, 0, "dumpable")
    verify(uid, PARENT_CAPABILITIES, [b"CapEff", b"CapPrm"])


def become_user(uid, group, bounding):
    """From a fork of the parent to the user, with nothing left that could lead back."""
    os.setsid()
    os.setgroups([group])
    os.setresgid(uid, uid, uid)
    for number in bounding:
        prctl(PR_CAPBSET_DROP, number, "bounding set")
    os.setresuid(uid, uid, uid)
    checked(libc.capset(header, NONE), "capset")
    verify(uid, 0, [b"CapEff", b"CapPrm", b"CapInh", b"CapBnd"])
    os.umask(0o022)
    prctl(PR_SET_DUMPABLE, 1, "dumpable")


def hold_interrupts():
    """An interrupt waits in the kernel, across a fork and a new program, until somebody can say what it means."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGINT,))


def take_interrupts():
    """From here on an interrupt arrives; also one that has waited."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))


def default_signals():
    """Signals as a `python3` that was just started has them. `_signal` is `signal` without enums, which cost time."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)

"""Who a process is: what the parent makes sure of, and how a fork becomes the user.

The parent keeps two capabilities, which are what it needs to make a user out of a fork. A fork drops them, for good,
before a line of user code exists. The guest starts the parent as its own user, with no other capability and an empty
bounding set. Where the kernel cannot do that (gVisor), the parent is user 0 of a user namespace of its own, which is
the same user outside, and empties the bounding set itself.
"""

import _signal
import ctypes
import os

SETGID, SETUID = 6, 7
PARENT_CAPABILITIES = 1 << SETGID | 1 << SETUID

PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 4, 23, 24
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
        raise OSError(1, f"unexpected process identity: {b', '.join(wrong).decode()}")


def become_parent(uid):
    """Makes sure that this is the parent's own user. Nobody may look into it or trace it from the first step on."""
    prctl(PR_SET_DUMPABLE, 0, "dumpable")
    for number in range(HIGHEST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            prctl(PR_CAPBSET_DROP, number, "bounding set")
    # What a program would inherit goes with this, and ambient capabilities with that.
    kept = (ctypes.c_uint32 * 6)(PARENT_CAPABILITIES, PARENT_CAPABILITIES)
    checked(libc.capset(header, kept), "capset")
    prctl(PR_SET_DUMPABLE, 0, "dumpable")
    verify(uid, PARENT_CAPABILITIES, [b"CapEff", b"CapPrm"])
    verify(uid, 0, [b"CapBnd", b"CapInh"])


def become_user(uid, group):
    """From a fork of the parent to the user, with nothing left that could lead back."""
    os.setsid()
    os.setgroups([group])
    os.setresgid(uid, uid, uid)
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

# What every Python payload begins with. A payload tries things and says of each how far it got:
# `<thing> ok` when it went through, `<thing> <ERRNO>` when it was stopped. It ends with 42 if anything went through.
import ctypes, errno, os, sys

# Numbers of system calls on x86-64 and on arm64; those from 424 on are the same everywhere.
CALLS = {call: numbers[os.uname().machine == "aarch64"] for call, numbers in {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "clone": (56, 220), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "socket": (41, 198), "socketpair": (53, 199),
    "setgroups": (116, 159), "ptrace": (101, 117), "exit": (60, 93),
}.items()}
libc = ctypes.CDLL(None, use_errno=True)
through = []


def say(thing, result):
    if result == "ok":
        through.append(thing)
    print(thing, result, flush=True)


def name(number):
    return errno.errorcode.get(number, str(number))


def attempt(thing, act):
    """Runs `act` and says what came of it; gives back what it gave, or None."""
    try:
        result = act()
    except OSError as error:
        say(thing, name(error.errno))
        return None
    say(thing, "ok")
    return result


def syscall(number, *arguments):
    """One raw system call. Raises what the kernel answers."""
    words = [a if isinstance(a, (ctypes.c_char_p, ctypes.c_void_p)) or hasattr(a, "_obj") else ctypes.c_long(a)
             for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def in_child(thing, act):
    """Like `attempt`, in a child, so that what it does to itself does not change the next attempt."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            result = "ok"
        except OSError as error:
            result = name(error.errno)
        except BaseException as error:
            result = type(error).__name__
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    result = os.read(reader, 100).decode()
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        result = "SIG%d" % os.WTERMSIG(status)
    say(thing, result)


def exhaust(take, most):
    """`exhaust [COUNT]`: takes until it is refused or has so many, says so, and goes on trying until it is ended. `probe`: takes one."""
    if sys.argv[1] == "probe":
        attempt("probe", take)
        os._exit(0)
    kept, answer = [], "all"
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else most
    while len(kept) < limit:
        try:
            kept.append(take())
        except OSError as error:
            answer = name(error.errno)
            break
    print("took", len(kept))
    print("answer", answer)
    print("ready", flush=True)
    while True:
        try:
            if len(kept) < limit:
                kept.append(take())
        except OSError:
            pass


def done():
    sys.exit(42 if through else 0)

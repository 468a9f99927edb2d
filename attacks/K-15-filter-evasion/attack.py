# Adds filters to the filter of the sandbox: one that allows every call, and one that forwards each call to a listener, which lets it continue.
import fcntl, struct, threading

SECCOMP, PERSONALITY = (317, 135) if os.uname().machine == "x86_64" else (277, 92)
IO_URING_SETUP, SET_FILTER, NEW_LISTENER = 425, 1, 8
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
text = lambda word: ctypes.c_char_p(word)


def mount():
    syscall(CALLS["mount"], text(b"none"), text(b"/tmp"), text(b"tmpfs"), 0, text(b""))


def ring():
    syscall(IO_URING_SETUP, 8, ctypes.byref((ctypes.c_uint32 * 30)()))


def add_filter(instructions, flags):
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code)))
    libc.prctl(38, 1, 0, 0, 0)
    return syscall(SECCOMP, SET_FILTER, flags, ctypes.byref(program))


def under_own(act):
    add_filter([(6, 0, 0, ALLOW)], 0)
    act()


def under_listener(number, act):
    listener, ready = [], threading.Event()

    def listen():
        ready.wait()
        notice = bytearray(80)
        fcntl.ioctl(listener[0], RECEIVE, notice)
        fcntl.ioctl(listener[0], SEND, bytearray(notice[:8] + struct.pack("qiI", 0, 0, CONTINUE)))

    threading.Thread(target=listen, daemon=True).start()
    listener.append(add_filter([(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, NOTIFY), (6, 0, 0, ALLOW)], NEW_LISTENER))
    ready.set()
    act()


in_child("mount under own filter", lambda: under_own(mount))
in_child("io_uring under own filter", lambda: under_own(ring))
in_child("mount under a listener", lambda: under_listener(CALLS["mount"], mount))
in_child("io_uring under a listener", lambda: under_listener(IO_URING_SETUP, ring))
for domain, value in (("no randomization", 0x0040000), ("executable memory", 0x0400000), ("page zero", 0x0100000), ("old layout", 0x0200000)):
    in_child("personality " + domain, lambda: syscall(PERSONALITY, value))
done()

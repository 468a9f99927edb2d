# `pipes`, `epoll`, `terminals` or `keys`.
import fcntl, select

kind = sys.argv[3] if len(sys.argv) > 3 else sys.argv[2] if sys.argv[1] == "probe" else "pipes"
poll = select.epoll()
reader, _ = os.pipe()


def take():
    if kind == "pipes":
        made, other = os.pipe()
        fcntl.fcntl(other, 1031, 1 << 19)
        os.write(other, b"x" * 65536)
        return made, other
    if kind == "epoll":
        copy = os.dup(reader)
        poll.register(copy, select.EPOLLIN)
        return copy
    if kind == "terminals":
        return os.openpty()
    # `add_key` of a key of 16 bytes.
    number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    return syscall(number, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"x"), ctypes.c_char_p(b"x" * 16), 16, -4)


exhaust(take, 2000)

# Every socket family and every netlink protocol; then the same by ABIs whose numbers a filter may not know.
import platform

NETLINK = 16


def opens(family, kind, protocol):
    try:
        os.close(syscall(CALLS["socket"], family, kind, protocol))
        return True
    except OSError:
        return False


open_families = [str(f) for f in range(64) if any(opens(f, kind, 0) for kind in (1, 2, 3, 5))]
open_netlink = [str(p) for p in range(32) if opens(NETLINK, 3, p)]
say("families", ",".join(open_families))
say("netlink", ",".join(open_netlink))
say("vsock", "ok" if opens(40, 1, 0) else "stopped")
say("alg", "ok" if opens(38, 5, 0) else "stopped")
# A family beyond 32 bits: the kernel takes the lower half.
say("alg high", "ok" if opens(1 << 32 | 38, 5, 0) else "stopped")
say("xfrm", "ok" if opens(NETLINK, 3, 6) else "stopped")
say("netfilter", "ok" if opens(NETLINK, 3, 12) else "stopped")
pair = (ctypes.c_int * 2)()
in_child("socketpair vsock", lambda: syscall(CALLS["socketpair"], 40, 1, 0, ctypes.byref(pair)))

if platform.machine() == "x86_64":
    # f(number, first, second, third): `int 0x80`, the call of 32-bit programs, from this 64-bit one.
    code = bytes([0x53, 0x89, 0xF8, 0x89, 0xF3, 0x87, 0xCA, 0xCD, 0x80, 0x5B, 0xC3])
    libc.mmap.restype = ctypes.c_void_p
    # Readable, writable, executable; private, anonymous, in the lower 2 GiB, where 32-bit pointers lead.
    page = libc.mmap(None, 4096, 7, 0x62, -1, 0)
    ctypes.memmove(page, code, len(code))
    words = page + 64
    ctypes.memmove(words, (ctypes.c_uint32 * 3)(17, 3, 0), 12)
    old = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)(page)

    def call(*arguments):
        result = old(*arguments)
        if result < 0:
            raise OSError(-result, "")

    in_child("i386 getpid", lambda: call(20, 0, 0, 0))
    # socketcall(SOCKET, {AF_PACKET, SOCK_RAW, 0}): the family is behind a pointer.
    in_child("i386 socketcall", lambda: call(102, 1, words, 0))
    in_child("i386 socket", lambda: call(359, 17, 3, 0))
    in_child("x32 getpid", lambda: syscall(0x40000000 | 39))
    in_child("x32 socket", lambda: syscall(0x40000000 | 41, 17, 3, 0))
done()

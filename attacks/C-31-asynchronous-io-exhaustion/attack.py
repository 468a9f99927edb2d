# Makes contexts of asynchronous I/O, of one event each.
NUMBER = {"x86_64": 206, "aarch64": 0}[os.uname().machine]


def take():
    context = ctypes.c_ulong(0)
    return syscall(NUMBER, 1, ctypes.byref(context))


exhaust(take, 70000)

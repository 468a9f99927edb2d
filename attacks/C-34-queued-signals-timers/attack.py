# Queues signals to itself and makes timers, in turn.
import signal, struct

signal.pthread_sigmask(signal.SIG_BLOCK, [34])
information = (ctypes.c_char * 128)()
struct.pack_into("iii", information, 0, 34, 0, -1)
QUEUE, TIMER = {"x86_64": (129, 222), "aarch64": (138, 107)}[os.uname().machine]
turn = [0]


def take():
    turn[0] += 1
    if turn[0] % 2:
        return syscall(QUEUE, os.getpid(), 34, ctypes.byref(information))
    made = ctypes.c_int(0)
    return syscall(TIMER, 1, ctypes.c_void_p(None), ctypes.byref(made))


exhaust(take, 200000)

# Makes POSIX message queues.
import struct

library = ctypes.CDLL("librt.so.1", use_errno=True)
turn = [0]


def take():
    turn[0] += 1
    queue = library.mq_open(b"/q%d-%d" % (os.getpid(), turn[0]), os.O_CREAT | os.O_RDWR, 0o600,
                            ctypes.create_string_buffer(struct.pack("4q32x", 0, 10, 1000, 0)))
    if queue < 0:
        raise OSError(ctypes.get_errno(), "")
    return queue


exhaust(take, 300)

# Takes file locks, a thousand on each file.
import fcntl, struct

FILES = "/workspace" if os.access("/workspace", os.W_OK) else "/tmp"
kind = sys.argv[3] if len(sys.argv) > 3 else "posix"


def take():
    if kind == "memfd":
        descriptor, command = os.memfd_create("x"), 37
    else:
        path = "%s/lock-%d-%d" % (FILES, os.getpid(), take.count)
        descriptor, command = os.open(path, os.O_RDWR | os.O_CREAT), fcntl.F_SETLK
        os.unlink(path)
    take.count += 1
    for index in range(1000):
        lock = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, 0, (1 << 40) - index * 4, 1, 0)
        fcntl.fcntl(descriptor, command, lock)
    return descriptor


take.count = 0
exhaust(take, 300)

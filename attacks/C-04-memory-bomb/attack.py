# Memory until somebody dies, kept in one of several places: `heap`, `shm`, `tmp`, `sysv`, `memfd`. Says each MiB.
import mmap, signal

MIB = 1 << 20
if os.fork() == 0:
    signal.pause()
kind, held, page = sys.argv[1], [], b"x" * MIB
if kind in ("shm", "tmp", "memfd"):
    path = {"shm": "/dev/shm/bomb", "tmp": "/tmp/bomb"}.get(kind)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR) if path else os.memfd_create("bomb")
for number in range(1, 400):
    if kind == "heap":
        memory = mmap.mmap(-1, MIB)
        memory.write(page)
        held.append(memory)
    elif kind == "sysv":
        libc.shmat.restype = ctypes.c_void_p
        segment = libc.shmget(0, MIB, 0o1600)
        if segment < 0:
            attempt("shmget", lambda: (_ for _ in ()).throw(OSError(ctypes.get_errno(), "")))
            break
        ctypes.memset(libc.shmat(segment, None, 0), 1, MIB)
    else:
        try:
            os.write(descriptor, page)
        except OSError as error:
            print("answer", name(error.errno), flush=True)
            break
    print("touched", number, flush=True)
signal.pause()

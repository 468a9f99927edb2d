# `hold COUNT` takes so many locks on /dev/zero and on the C library, until SIGTERM. `measure` times open and close of both.
import fcntl, glob, signal, struct, time

places = ["/dev/zero", glob.glob("/usr/lib/*/libc.so.6")[0]]


def hold(count):
    for place in places:
        descriptor = os.open(place, os.O_RDWR if place == "/dev/zero" else os.O_RDONLY)
        kind = fcntl.F_WRLCK if place == "/dev/zero" else fcntl.F_RDLCK
        for index in range(count):
            # Downwards, so that each is found a place at the head of the list at once.
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETLK, struct.pack("hhxxxxqqixxxx", kind, 0, (1 << 50) - index * 4, 1, 0))
            except OSError as error:
                # gVisor has a limit of its own.
                print(place, "refuses after", index, name(error.errno), flush=True)
                break
    print("ready", flush=True)
    while True:
        signal.pause()


def measure():
    # Every close looks through all locks of its inode for those of its process.
    for place in places:
        taken = []
        for _ in range(200):
            began = time.perf_counter_ns()
            os.close(os.open(place, os.O_RDONLY))
            taken.append(time.perf_counter_ns() - began)
        print(os.path.basename(place), sorted(taken)[len(taken) // 2])
    sys.stdout.flush()


hold(int(sys.argv[2])) if sys.argv[1] == "hold" else measure()

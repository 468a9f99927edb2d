# `send WORD` locks byte ranges that spell a word, and takes every lock there is, until SIGTERM. `hear` looks for both.
import fcntl, glob, signal, struct

BASE = 1 << 40
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")}
places = sorted(mounts | set(glob.glob("/dev/*")) | {
    "/etc/debian_version", "/usr/bin/cat", "/usr/bin", "/etc", "/.bellglass/guest"} | set(glob.glob("/usr/lib/*/libc.so.6")))


def opened():
    for place in places:
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                yield place, os.open(place, flags | os.O_NONBLOCK | os.O_NOCTTY), flags == os.O_RDWR
                break
            except OSError:
                pass


def lock(kind, start, length):
    return struct.pack("hhxxxxqqixxxx", kind, 0, start, length, 0)


def send(word):
    taken = 0
    for place, descriptor, writable in opened():
        kind = fcntl.F_WRLCK if writable else fcntl.F_RDLCK
        try:
            for index, byte in enumerate(word):
                fcntl.fcntl(descriptor, fcntl.F_SETLK, lock(kind, BASE + index * 256 + byte, 1))
            taken += 1
        except OSError:
            pass
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken += 1
        except OSError:
            pass
    print("taken", taken)
    print("ready", flush=True)
    while True:
        signal.pause()


def heard(descriptor):
    word = b""
    for index in range(64):
        asked = lock(fcntl.F_WRLCK, BASE + index * 256, 256)
        kind, _, start, _, _ = struct.unpack("hhxxxxqqixxxx", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            break
        word += bytes([start - BASE - index * 256])
    return word


def hear():
    tried = blocked = 0
    words = {}
    for place, descriptor, _ in opened():
        tried += 1
        try:
            word = heard(descriptor)
            if word:
                words[place] = word
        except (OSError, ValueError):
            pass
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            blocked += 1
            print("blocked-at", place)
        except OSError:
            pass
    for place, word in words.items():
        print("heard-at", place)
    print("word", next(iter(words.values()), b"-").decode())
    print("tried", tried)
    print("blocked", blocked)
    print("heard", len(words), flush=True)
    sys.exit(42 if words or blocked else 0)


send(sys.argv[2].encode()) if sys.argv[1] == "send" else hear()

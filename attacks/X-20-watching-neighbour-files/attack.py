# Watches every mount, device and directory of programs that it can, until SIGTERM; then names what others opened.
import glob, signal, struct

OPEN, ACCESS = 0x20, 0x1
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")}
places = mounts | set(glob.glob("/dev/*")) | set(glob.glob("/usr/bin/sha*")) | {
    "/etc", "/etc/debian_version", "/usr/bin", "/usr/lib", "/bin", "/.bellglass/guest", "/usr/lib/locale"}
notify = libc.inotify_init1(os.O_NONBLOCK)
watched = {}
for place in sorted(places):
    # Its own processes show up in these two, which are file systems that nobody else mounts.
    if place == "/proc" or place.startswith(("/proc/", "/sys")):
        continue
    # Links lead to what this process itself has open.
    if os.path.islink(place):
        continue
    watch = libc.inotify_add_watch(notify, place.encode(), OPEN | ACCESS)
    if watch > 0:
        watched[watch] = place
seen = {}


def drain():
    while True:
        try:
            events = os.read(notify, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(events):
            watch, _, _, length = struct.unpack_from("iIII", events, at)
            thing = events[at + 16:at + 16 + length].rstrip(b"\0").decode()
            at += 16 + length
            seen[os.path.join(watched.get(watch, "?"), thing)] = True


def end():
    drain()
    for thing in sorted(seen):
        print("saw", thing.replace(" ", "?"))
    print("watched", len(watched))
    print("events", len(seen), flush=True)
    os._exit(42 if seen else 0)


drain()
seen.clear()
# Waited for, not handled: a handler could interrupt the line that says it is ready.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
end()

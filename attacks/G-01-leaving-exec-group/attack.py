# Away from the group by which an exec's processes are found. `shed` tries to lose the group; `flee WAY` leaves a process
# behind that nobody should find, whose heart beats in a file; `stay WAY` does the same and stays; `lead` ends the first
# thread of the first process and goes on in another.
import signal, subprocess, threading, time


def groups():
    with open("/proc/self/status") as status:
        return next(line.split(":")[1].split() for line in status if line.startswith("Groups:"))


def without(act):
    """Does it, and is stopped if the group is still there."""
    act()
    if groups():
        raise OSError(errno.EEXIST, "")


def by(*argv):
    seen = subprocess.run(argv, capture_output=True, text=True).stdout
    if "free" not in seen:
        raise OSError(errno.EEXIST, "")


def shed():
    test = "grep -q '^Groups:.*[0-9]' /proc/self/status || echo free"
    new_user = lambda: syscall(CALLS["unshare"], 0x10000000)
    in_child("setgroups", lambda: without(lambda: os.setgroups([])))
    in_child("setgroups raw", lambda: without(lambda: syscall(CALLS["setgroups"], 0, 0)))
    in_child("initgroups", lambda: without(lambda: os.initgroups("nobody", 65534)))
    in_child("setgid", lambda: without(lambda: os.setgid(1)))
    in_child("unshare", lambda: without(lambda: (new_user(), os.setgroups([]))))
    in_child("unshare -Ur", lambda: by("unshare", "-Ur", "sh", "-c", "setpriv --clear-groups sh -c \"$0\"", test))
    in_child("newgrp", lambda: by("sh", "-c", "echo \"$0\" | newgrp sandbox", test))
    in_child("sg", lambda: by("sg", "nogroup", "-c", test))
    in_child("su", lambda: by("su", "nobody", "-s", "/bin/sh", "-c", test))
    in_child("setpriv", lambda: by("setpriv", "--clear-groups", "sh", "-c", test))
    in_child("trace", lambda: syscall(CALLS["ptrace"], 0, 0, 0, 0))
    in_child("process 1", lambda: os.kill(1, signal.SIGKILL))


def beat(way):
    with open("/workspace/beat-" + way, "ab", buffering=0) as heart:
        while True:
            heart.write(b".")
            time.sleep(0.02)


def lead(way):
    threading.Thread(target=beat, args=(way,)).start()
    syscall(CALLS["exit"], 0)


def chain(way):
    heart = os.open("/workspace/beat-" + way, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        # Every generation: a fork may take tens of milliseconds, and who listens does so for 400.
        os.write(heart, b".")
        if os.fork() != 0:
            os._exit(0)


def replace(way):
    with open("/workspace/beat-" + way, "ab", buffering=0) as heart:
        heart.write(b".")
    os.execv("/bin/bash", ["bash", "-c", "echo -n . >> /workspace/beat-replace; sleep 0.02; exec bash -c \"$0\" \"$0\"",
                           "echo -n . >> /workspace/beat-replace; sleep 0.02; exec bash -c \"$0\" \"$0\""])


def renamed(way):
    libc.prctl(15, b"a\nState:\tZ", 0, 0, 0)
    beat(way)


def heir(way):
    libc.prctl(36, 1, 0, 0, 0)
    if os.fork() == 0:
        if os.fork() == 0:
            beat(way)
        os._exit(0)
    signal.pause()


WAYS = {"session": beat, "chain": chain, "replace": replace, "lead": lead, "renamed": renamed, "heir": heir}


def flee(way):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            os.closerange(0, 64)
            try:
                WAYS[way](way)
            finally:
                os._exit(0)
        os._exit(0)
    while not os.path.exists("/workspace/beat-" + way):
        time.sleep(0.01)


if sys.argv[1] == "shed":
    shed()
    done()
elif sys.argv[1] == "lead":
    print("leading", flush=True)
    lead("lead")
else:
    flee(sys.argv[2])
    print("fled", sys.argv[2], flush=True)
    if sys.argv[1] == "stay":
        signal.pause()

# A new namespace of every kind, by every call that makes or enters one.
import signal, subprocess

KINDS = {"mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
         "pid": 0x20000000, "net": 0x40000000}


def born(pid):
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def clone3(flags):
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    born(syscall(435, ctypes.byref(arguments), 64))


for kind, flag in KINDS.items():
    in_child("unshare " + kind, lambda: syscall(CALLS["unshare"], flag))
    in_child("clone " + kind, lambda: born(syscall(CALLS["clone"], flag | signal.SIGCHLD, 0, 0, 0, 0)))
    in_child("clone3 " + kind, lambda: clone3(flag))
    in_child("setns " + kind, lambda: syscall(CALLS["setns"], os.open("/proc/self/ns/" + kind, os.O_RDONLY), flag))
in_child("unshare time", lambda: syscall(CALLS["unshare"], 0x80))
# The filter looks at the lower half of the flags; the kernel ignores the upper.
in_child("clone user high", lambda: born(syscall(CALLS["clone"], 1 << 40 | 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)))
say("unshare -Ur", "ok" if subprocess.run(["unshare", "-Ur", "true"], stderr=subprocess.DEVNULL).returncode == 0
    else "stopped")
done()

# Everything that one process can do to another: to the interpreter's parent, or to a child of its own.
import signal, subprocess


def find(uid):
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = open("/proc/%s/status" % entry).read()
            except OSError:
                continue
            # In gVisor it is root of a namespace of its own, and nobody else but process 1 is root.
            if "\nUid:\t%d\t" % uid in status or (entry != "1" and "\nUid:\t0\t" in status):
                return int(entry)
    return None


def write_memory(pid):
    with open("/proc/%d/mem" % pid, "r+b"):
        pass


def write_descriptor(pid):
    """Writes to whatever it has open; a kernel in user space lets one name them."""
    refused = OSError(errno.EACCES, "")
    for entry in os.listdir("/proc/%d/fd" % pid):
        try:
            descriptor = os.open("/proc/%d/fd/%s" % (pid, entry), os.O_WRONLY | os.O_NONBLOCK)
            if not os.path.samestat(os.fstat(descriptor), os.stat("/dev/null")):
                os.write(descriptor, b"x")
                return
        except OSError as error:
            refused = error
    raise refused


def move_memory(pid):
    here = ctypes.create_string_buffer(8)
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    mine, theirs = Part(ctypes.addressof(here), 8), Part(ctypes.addressof(here), 8)
    if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "")


def trace(pid):
    # PTRACE_SEIZE leaves who is traced running.
    syscall(CALLS["ptrace"], 0x4206, pid, 0, 0)


target = sys.argv[1] if len(sys.argv) > 1 else "parent"
child = None
if target == "own":
    child = subprocess.Popen(["sleep", "60"], stdout=open("/workspace/own", "w"))
    pid = child.pid
else:
    pid = find(65533)
print("pid", pid, flush=True)
attempt("memory", lambda: write_memory(pid))
attempt("descriptors", lambda: write_descriptor(pid))
attempt("trace", lambda: trace(pid))
attempt("adjust", lambda: open("/proc/%d/oom_score_adj" % pid, "w").write("1000"))
for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
    attempt("signal %d" % number, lambda: os.kill(pid, number))
if target == "parent":
    in_child("user", lambda: os.setresuid(65533, 65533, 65533))
    in_child("group", lambda: os.setgroups([60001]))
if child:
    child.kill()
    child.wait()
done()

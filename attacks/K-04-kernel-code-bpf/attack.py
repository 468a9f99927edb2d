# Code and measurements in the kernel, and page faults served from outside.
attributes = (ctypes.c_uint64 * 16)()
answers = set()
for command in range(64):
    try:
        syscall(CALLS["bpf"], command, ctypes.byref(attributes), 128)
        answers.add("ok")
    except OSError as error:
        answers.add(name(error.errno))
say("bpf", "+".join(sorted(answers)))
# A software event of this process alone: type 1, size 112, page faults, without the kernel's own.
event = (ctypes.c_uint32 * 28)(1, 112, 2, 0)
event[10] = 0b100000
in_child("perf_event_open", lambda: syscall(CALLS["perf_event_open"], ctypes.byref(event), 0, -1, -1, 0))
in_child("userfaultfd", lambda: syscall(CALLS["userfaultfd"], 1))
in_child("/dev/userfaultfd", lambda: os.open("/dev/userfaultfd", os.O_RDWR))
done()

# Everything one process may do to another, done to process 1; or with `child`, to a child of its own.
import signal, time

target = 1
if sys.argv[1:] == ["child"]:
    target = os.fork()
    if target == 0:
        while True:
            time.sleep(1)
    time.sleep(0.1)
import resource

in_child("limits", lambda: resource.prlimit(target, resource.RLIMIT_CORE, (0, 0)))
in_child("affinity", lambda: os.sched_setaffinity(target, {0}))
in_child("priority", lambda: os.setpriority(os.PRIO_PROCESS, target, 19))
in_child("trace", lambda: syscall(CALLS["ptrace"], 16, target, 0, 0))
in_child("memory", lambda: os.open("/proc/%d/mem" % target, os.O_RDWR))
in_child("badness", lambda: os.close(os.open("/proc/%d/oom_score_adj" % target, os.O_WRONLY)))
for way in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGUSR1, signal.SIGSEGV, signal.SIGKILL):
    in_child("signal %d" % way, lambda: os.kill(target, way))
    time.sleep(0.01)
done()

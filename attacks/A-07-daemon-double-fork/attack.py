# A daemon by the book: forked twice, in a session of its own, with nothing open, in `/`; it writes its pid down.
import signal, time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.umask(0)
        os.closerange(0, 256)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open("/tmp/daemon", "w") as note:
            note.write(str(os.getpid()))
        while True:
            time.sleep(1)
    os._exit(0)
while not os.path.exists("/tmp/daemon"):
    time.sleep(0.01)
print("daemon started")

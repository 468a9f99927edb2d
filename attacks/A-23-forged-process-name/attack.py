# Hides behind its own name, which says in lines of its own that it came from outside: `stay` stays with it, `leave` does not.
import time

if os.fork() == 0:
    os.setsid()
    libc.prctl(15, b"x\nPPid:\t0\n", 0, 0, 0)
    os.closerange(0, 3)
    with open("/workspace/beat-" + sys.argv[1], "ab", buffering=0) as heart:
        while True:
            heart.write(b".")
            time.sleep(0.02)
if sys.argv[1] == "stay":
    time.sleep(60)

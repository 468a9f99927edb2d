# Root of a workstation leaves the group of its exec, and lives on: `stay` stays with it, `leave` does not.
import time

if os.fork() == 0:
    os.setsid()
    os.setgroups([])
    if os.fork() != 0:
        os._exit(0)
    os.closerange(0, 3)
    with open("/workspace/beat-" + sys.argv[1], "ab", buffering=0) as heart:
        while True:
            heart.write(b".")
            time.sleep(0.02)
if sys.argv[1] == "stay":
    time.sleep(60)

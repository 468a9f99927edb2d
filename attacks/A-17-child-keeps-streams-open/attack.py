# Leaves a child with the streams open, which goes on writing after the end.
import time

print("main", flush=True)
if os.fork() == 0:
    os.setsid()
    for number in range(600):
        print("late", number, flush=True)
        time.sleep(0.05)
    os._exit(0)
sys.exit(3)

# Takes every descriptor that the kernel in user space has, and holds them: in several processes, as each has a limit of its own.
import resource, time

limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.makedirs("/workspace/many", exist_ok=True)
total, why = 0, "nothing"
for child in range(32):
    try:
        read, write = os.pipe()
        pid = os.fork()
    except OSError as error:
        why = name(error.errno)
        break
    if pid == 0:
        held = []
        try:
            while True:
                held.append(os.open("/workspace/many/%d-%d" % (child, len(held)), os.O_CREAT | os.O_RDWR))
        except OSError as error:
            os.write(write, b"%d %s" % (len(held), name(error.errno).encode()))
        time.sleep(60)
        os._exit(0)
    os.close(write)
    count, why = os.read(read, 100).decode().split()
    total += int(count)
    # Less than its own limit: the kernel has no more.
    if int(count) < limit - 64:
        break
print("held", total)
print("stopped", why, flush=True)
time.sleep(60)

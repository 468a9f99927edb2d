# Writes as fast as it can to the descriptors it is given, until somebody ends it: `attack.py 1 2`. `attack.py hoard BYTES` is
# who reads such a thing and keeps all of it: the control.
import signal, threading

PIECE = b"y\n" * 32768


def flood(descriptor):
    while True:
        os.write(descriptor, PIECE)


def hoard(most):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        flood(writer)
    held, total = [], 0
    while total < most:
        held.append(os.read(reader, 65536))
        total += len(held[-1])
    os.kill(child, signal.SIGKILL)
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    print("held", resident * 1024)


if sys.argv[1] == "hoard":
    hoard(int(sys.argv[2]))
else:
    threads = [threading.Thread(target=flood, args=(int(word),)) for word in sys.argv[1:]]
    for thread in threads:
        thread.start()

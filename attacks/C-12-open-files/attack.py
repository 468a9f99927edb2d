# Open files until no more can be opened: in one process, and in flight between sockets that nobody reads.
# A first argument other than 0 lowers the limit; a second, `stay`, sends nothing.
import array, resource, socket

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if sys.argv[1:2] not in ([], ["0"]):
    hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
print("limit", hard)


def raise_limit():
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard * 2, hard * 2))
    except ValueError:
        raise OSError(errno.EPERM, "")


def fill(act):
    count = 0
    try:
        while count < 200000:
            act()
            count += 1
    except OSError as error:
        return count, name(error.errno)
    return count, "none"


held = []
in_child("raise", raise_limit)
count, answer = fill(lambda: held.append(os.open("/dev/null", os.O_RDONLY)))
print("open", count + 3, flush=True)
print("answer", answer, flush=True)
while held:
    os.close(held.pop())
sockets = []


def post():
    try:
        sockets[-1].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 200))])
    except (IndexError, BlockingIOError):
        pair = socket.socketpair()
        pair[0].setblocking(False)
        sockets.extend(pair[::-1])


if sys.argv[2:] == ["stay"]:
    sys.exit(0)
count, answer = fill(post)
print("in-flight", count * 200)
print("flight-answer", answer)

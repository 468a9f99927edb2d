# Two writers at once, each with a million numbers in order, in pieces that end anywhere: one to standard output, one to standard
# error. `attack.py merged` has both write into one pipe, and counts the lines that are no next number of either: the control.
import fcntl

# Made before there are two, so that they begin together.
TEXT = b"".join(b"%d\n" % number for number in range(1, 1000001))


def write(descriptor, first):
    at, size = 0, first
    while at < len(TEXT):
        at += os.write(descriptor, TEXT[at:at + size])
        size = size * 7 % 9973 + 1


def both(one, other):
    child = os.fork()
    if child == 0:
        write(other, 5)
        os._exit(0)
    write(one, 3)
    os.waitpid(child, 0)


if sys.argv[1:] == ["merged"]:
    reader, writer = os.pipe()
    # A small one, so that neither is done before the other begins.
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    child = os.fork()
    if child == 0:
        os.close(reader)
        both(writer, writer)
        os._exit(0)
    os.close(writer)
    last, torn = [0, 0], 0
    for line in open(reader, "rb"):
        number = int(line.strip() or 0)
        if number - 1 in last:
            last[last.index(number - 1)] = number
        else:
            torn += 1
    print("torn", torn)
else:
    both(1, 2)

# Streams that are closed, flooded, or written to by somebody who should be gone. Ends with a code of its own in each way.
import subprocess, time


def flood(descriptor, count):
    piece = b"e" * 65536
    while count > 0:
        count -= os.write(descriptor, piece[:count])


def one(count):
    """Standard output is closed before standard error is flooded."""
    os.close(1)
    flood(2, count)
    os._exit(5)


def neither():
    """Both are closed long before the end."""
    os.close(1)
    os.close(2)
    time.sleep(1)
    os._exit(6)


def after(where):
    """A child goes on writing when its parent has ended, and notes what comes of it."""
    if os.fork() == 0:
        os.setsid()
        answer, end = "ok", time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                os.write(1, b"late" * 4096)
            except OSError as error:
                answer = name(error.errno)
                break
        with open(where, "w") as note:
            note.write(answer)
        os._exit(0)
    os.write(1, b"in time\n")
    os._exit(7)


def twice():
    """Both are copied, closed and put back a thousand times."""
    for _ in range(1000):
        for number in (1, 2):
            again = os.dup(number)
            os.close(number)
            os.write(again, b"x")
            os.dup2(again, number)
            os.close(again)
    os._exit(8)


def reader(count):
    """Who reads one stream to its end before the other: the control."""
    program = "import os; os.write(2, b'e' * %d); os.write(1, b'o')" % count
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.set_blocking(child.stdout.fileno(), False)
    time.sleep(1)
    print("first stream", "waits" if child.stdout.read() is None else "comes")
    child.kill()


ways = {"one": one, "neither": neither, "after": after, "twice": twice, "reader": reader}
way, words = ways[sys.argv[1]], sys.argv[2:]
way(*[int(word) if word.isdigit() else word for word in words])

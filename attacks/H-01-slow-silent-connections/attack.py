# Connections that say little, late, or nothing: `attack.py PORT SECONDS KEY [IDLE]` opens some of every kind, then looks
# for SECONDS which of them were let go. `attack.py one PORT` only shows whether one slow client keeps others waiting.
import selectors, socket, sys, time

LINE = b"GET /v1/sandboxes HTTP/1.1\r\nhost: x\r\n"


def dial(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def kinds(key):
    body = b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + key.encode() + \
        b"\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    # What is sent at once, and what every second from then on.
    return {
        "silent": (b"", b""),
        "head": (LINE, b"x-a: b\r\n"),
        "letters": (b"G", b"E"),
        "preface": (b"PRI * HT", b""),
        "settings": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
        "body": (body, b" "),
        "idle": (b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n", b""),
    }


def crowd(port, seconds, key, idle):
    open_since, drips = {}, {}
    chosen = selectors.DefaultSelector()
    for kind, (first, drip) in kinds(key).items():
        for _ in range(idle if kind == "silent" else 10):
            one = dial(port)
            one.sendall(first)
            one.setblocking(False)
            chosen.register(one, selectors.EVENT_READ, kind)
            open_since[one] = time.monotonic()
            drips[one] = drip
    print("opened:", len(open_since), flush=True)
    longest, left = {}, dict(open_since)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        tick = time.monotonic() + 1
        while time.monotonic() < tick and left:
            for event, _ in chosen.select(max(0, tick - time.monotonic())):
                one = event.fileobj
                try:
                    gone = one.recv(65536) == b""
                except BlockingIOError:
                    continue
                except OSError:
                    gone = True
                if gone:
                    chosen.unregister(one)
                    longest[event.data] = max(longest.get(event.data, 0), time.monotonic() - left.pop(one))
        for one in left:
            try:
                one.send(drips[one])
            except OSError:
                pass
    for kind in kinds(key):
        still = sum(1 for one in left if chosen.get_key(one).data == kind)
        print(f"left {kind}:", still)
        print(f"longest {kind}: {longest.get(kind, 0):.1f}")


def one(port):
    slow = dial(port)
    slow.sendall(LINE)
    quick = dial(port)
    quick.settimeout(3)
    quick.sendall(LINE + b"\r\n")
    try:
        print("other:", "answered" if quick.recv(12) else "closed")
    except socket.timeout:
        print("other:", "waits")


if sys.argv[1] == "one":
    one(int(sys.argv[2]))
else:
    crowd(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]))

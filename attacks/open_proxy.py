# The control of the attacks that want to leave: a proxy on the same port that believes everything, as one without a broker would.
import socket, socketserver, struct, threading
from urllib.parse import urlsplit


def both(a, b):
    def one(source, target):
        try:
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
    thread = threading.Thread(target=one, args=(a, b), daemon=True)
    thread.start()
    one(b, a)
    thread.join()


def exactly(stream, count):
    said = b""
    while len(said) < count:
        said += stream.recv(count - len(said)) or exit()
    return said


class Visit(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            if self.request.recv(1, socket.MSG_PEEK) == b"\x05":
                self.socks()
            else:
                self.http()
        except (OSError, ValueError, UnicodeError) as error:
            self.request.close()

    def socks(self):
        exactly(self.request, 3)
        self.request.sendall(b"\x05\x00")
        _, _, _, kind = exactly(self.request, 4)
        if kind == 3:
            host = exactly(self.request, exactly(self.request, 1)[0]).decode("latin1")
        else:
            family, size = {1: (socket.AF_INET, 4), 4: (socket.AF_INET6, 16)}[kind]
            host = socket.inet_ntop(family, exactly(self.request, size))
        port = struct.unpack("!H", exactly(self.request, 2))[0]
        outside = socket.create_connection((host, port), 1)
        self.request.sendall(b"\x05\x00\x00\x01" + bytes(6))
        both(self.request, outside)

    def http(self):
        head = b""
        while b"\r\n\r\n" not in head:
            head += exactly(self.request, 1)
        first, rest = head.split(b"\r\n", 1)
        # A version that is missing is no reason to refuse.
        method, target = first.decode("latin1").split(" ")[:2]
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            outside = socket.create_connection((host.strip("[]").split("@")[-1], int(port)), 1)
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            place = urlsplit(target)
            outside = socket.create_connection((place.hostname, place.port or 80), 1)
            outside.sendall(f"{method} {place.path or '/'} HTTP/1.1\r\n".encode("latin1") + rest)
        both(self.request, outside)


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.daemon_threads = True
with socketserver.ThreadingTCPServer(("127.0.0.1", 3128), Visit) as server:
    print("serving", flush=True)
    server.serve_forever()

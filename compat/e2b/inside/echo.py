"""A WebSocket server that says what it hears: `echo.py PORT`. It runs inside of a sandbox, which has the standard library only.

It knows texts of less than 126 bytes, each in one frame.
"""

import base64
import hashlib
import socketserver
import sys

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        key = b""
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"sec-websocket-key":
                key = value.strip()
        if not key:
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        self.wfile.write(head + accept + b"\r\n\r\n")
        while len(start := self.rfile.read(2)) == 2 and start[0] == 0x81:
            size = start[1] & 0x7F
            mask, data = self.rfile.read(4), self.rfile.read(size)
            plain = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
            self.wfile.write(bytes([0x81, size]) + plain)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    Server(("0.0.0.0", int(sys.argv[1])), Echo).serve_forever()

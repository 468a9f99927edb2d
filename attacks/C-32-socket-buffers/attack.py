# Fills the buffers of sockets that nobody reads: TCP connections and UDP sockets on loopback in turn.
import socket

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(1024)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
turn = [0]


def take():
    turn[0] += 1
    if turn[0] % 4:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        receiver.bind(("127.0.0.1", 0))
        for _ in range(6):
            sender.sendto(b"x" * 60000, receiver.getsockname())
        return receiver
    client = socket.socket()
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    client.setblocking(False)
    idle = 0
    while idle < 3:
        try:
            client.send(b"x" * 65536)
            idle = 0
        except BlockingIOError:
            idle += 1
    return client, server


exhaust(take, 240)

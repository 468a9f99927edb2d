# Runs inside: shows what reached it, byte by byte. What it shows is what a request was for whoever it was meant for.
import socket, threading

def answer(connection):
    connection.settimeout(0.3)
    seen = b""
    try:
        while piece := connection.recv(65536):
            seen += piece
    except OSError:
        pass
    body = b"inside " + seen
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    try:
        connection.sendall(head + body)
    except OSError:
        pass
    connection.close()

listener = socket.create_server(("127.0.0.1", 8000), backlog=64)
print("serving", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

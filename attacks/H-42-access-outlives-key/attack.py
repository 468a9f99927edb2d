# Runs inside: an application whose answer begins and does not end.
import socket, threading

def answer(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nbegun")
    connection.recv(1)

listener = socket.create_server(("127.0.0.1", 8000), backlog=64)
print("serving", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

# Runs inside: an application whose answers say much about the address they come from; at /hang, one whose head does not end.
import socket, threading

BODY = b"of an application"
HEADERS = (b"cache-control: public, s-maxage=3600\r\nset-cookie: session=1; Path=/; Max-Age=31536000\r\nstrict-transport-security: max-age=31536000; includeSubDomains\r\n"
           b"clear-site-data: \"*\"\r\nalt-svc: h3=\":443\"; ma=86400\r\nexpires: Thu, 01 Jan 2099 00:00:00 GMT\r\nage: 1\r\n")

def answer(connection):
    asked = connection.recv(65536)
    try:
        if b" /hang " in asked:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 8000) for n in range(49)))
            connection.recv(1)
        else:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + HEADERS + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
    except OSError:
        pass
    connection.close()

listener = socket.create_server(("127.0.0.1", 8000), backlog=64)
print("serving", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

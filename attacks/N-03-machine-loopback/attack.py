# The machine itself: its loopback interface, its own addresses, its server's port. The port of the API is the first argument.
port = int(sys.argv[1])
for host in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "[::1]", "localhost", "93.184.216.1", "[2606:2800:220::1]", "machine.example", "loop.example"):
    authority = f"{host}:{port}"


    def api(answer):
        # Control and server answer on it: one says that it was reached, the other that a key is missing.
        if b"unauthorized" not in answer and b'"reached"' not in answer:
            refused(answer[:100])


    def request(authority=authority):
        with dial(PROXY) as stream:
            stream.sendall(f"GET http://{authority}/v1/sandboxes HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n".encode())
            api(everything(stream))


    def inside(authority=authority):
        with tunnel(authority) as stream:
            stream.sendall(f"GET /v1/sandboxes HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n".encode())
            api(everything(stream))


    attempt(f"{host}/request", request)
    attempt(f"{host}/tunnel", inside)
done()

# What every payload that wants to leave begins with, after `probe.py`: ways out of a sandbox. Each raises unless it reached a server
# of the world outside, which says so.
import re, socket, ssl, struct, time

PROXY = ("127.0.0.1", 3128)
WITHIN = 8
# What is not there at all does not answer: that is not waited for.
DIAL_WITHIN = 2


def refused(why):
    raise OSError(errno.EACCES, str(why)[:200])


def reached(answer):
    """What a server outside said, or a refusal."""
    if b'"reached"' not in answer:
        refused(answer[:200])
    return answer


def is_whole(said):
    head, end, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.I)
    return bool(end and length and len(body) >= int(length[1]))


def everything(stream):
    said = b""
    try:
        while not is_whole(said) and (piece := stream.recv(65536)):
            said += piece
    except OSError:
        pass
    return said


def ask(stream, host, path="/", method="GET"):
    stream.sendall(f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode("latin1"))
    return reached(everything(stream))


def dial(to):
    stream = socket.create_connection(to, timeout=DIAL_WITHIN)
    stream.settimeout(WITHIN)
    return stream


def direct(host, port=80):
    """Without the proxy."""
    with dial((host, port)) as stream:
        ask(stream, host)


def raw(request):
    """Bytes, as they are, to the proxy."""
    with dial(PROXY) as stream:
        stream.sendall(request if isinstance(request, bytes) else request.encode("latin1"))
        return reached(everything(stream))


def get(url, host="good.example", method="GET", more=""):
    """A request in the clear through the proxy."""
    return raw(f"{method} {url} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n")


def tunnel(authority):
    """A tunnel through the proxy."""
    stream = dial(PROXY)
    stream.sendall(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode("latin1"))
    said = b""
    while b"\r\n\r\n" not in said:
        piece = stream.recv(1)
        if not piece:
            break
        said += piece
    if b" 200" not in said.split(b"\r\n")[0]:
        refused(said)
    return stream


def connect(authority, host="good.example", path="/"):
    """A request in the clear through a tunnel."""
    with tunnel(authority) as stream:
        return ask(stream, host, path)


def tls(stream, name, host="good.example"):
    """A request in a TLS connection that asks for a name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(stream, server_hostname=name) as inside:
        return ask(inside, host)


def socks(host, port=80, command=1, kind=3, inside="good.example"):
    """Through SOCKS 5: kind 1 and 4 are addresses, 3 is a name."""
    with dial(PROXY) as stream:
        stream.sendall(b"\x05\x01\x00")
        if stream.recv(2) != b"\x05\x00":
            refused("no method")
        packed = {1: lambda: socket.inet_pton(socket.AF_INET, host), 4: lambda: socket.inet_pton(socket.AF_INET6, host),
                  3: lambda: bytes([len(host)]) + host.encode("latin1")}[kind]()
        stream.sendall(b"\x05" + bytes([command, 0, kind]) + packed + struct.pack("!H", port))
        said = stream.recv(10)
        if said[1:2] != b"\x00":
            refused(f"reply {said[1:2].hex()}")
        return ask(stream, inside)


def every_way(host, port=80):
    """Without the proxy, and by everything that it offers."""
    bare = host.strip("[]")
    try:
        kind = 4 if ":" in bare else 1
        socket.inet_pton(socket.AF_INET6 if kind == 4 else socket.AF_INET, bare)
    except OSError:
        kind = 3
    authority = host if port == 80 else f"{host}:{port}"
    attempt(f"{host}:{port}/direct", lambda: direct(bare, port))
    attempt(f"{host}:{port}/request", lambda: get(f"http://{authority}/", authority))
    attempt(f"{host}:{port}/tunnel", lambda: connect(f"{host}:{port}", host))
    attempt(f"{host}:{port}/socks", lambda: socks(bare, port, kind=kind, inside=host))

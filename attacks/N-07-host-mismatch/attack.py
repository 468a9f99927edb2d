# One host is allowed. Everything that could be read as that host by who decides and as another by who dials, or by who answers.
OTHER = (b'"reached": "93.184.216.35"', b'"host": "evil.example', b'evil.example')


def other(answer):
    if not any(mark in answer for mark in OTHER):
        refused("only what is allowed was reached")


def fronted(name, authority="good.example:443", host="evil.example"):
    other(tls(tunnel(authority), name, host))


def second():
    with tunnel("good.example:80") as stream:
        ask(stream, "good.example")
        return ask(stream, "evil.example", "/second")


def twice(request):
    """The answers to a request and to what it smuggles."""
    with dial(PROXY) as stream:
        stream.sendall(request.encode("latin1"))
        first = everything(stream)
        # Both answers may have arrived at once.
        return reached(first if first.count(b"HTTP/1.1 ") > 1 else first + everything(stream))


def whole_inside():
    with tunnel("good.example:80") as stream:
        stream.sendall(b"GET http://evil.example/ HTTP/1.1\r\nhost: good.example\r\n\r\n")
        return reached(everything(stream))


def raw_connect():
    with dial(PROXY) as stream:
        stream.sendall(b"CONNECT evil.example:80 HTTP/1.1\r\nhost: good.example:80\r\n\r\n")
        if b" 200" not in stream.recv(65536):
            refused("no tunnel")
        return ask(stream, "evil.example")


attempt("another name in TLS", lambda: fronted("evil.example"))
attempt("no name in TLS", lambda: fronted(None))
attempt("an address in TLS", lambda: fronted("evil.example", "93.184.216.34:443"))
attempt("a host inside a tunnel", lambda: other(connect("good.example:80", "evil.example")))
attempt("a host inside a tunnel, second", lambda: other(second()))
attempt("an address inside a tunnel", lambda: other(whole_inside()))
attempt("no TLS on its port", lambda: other(connect("good.example:443", "evil.example")))


for thing, url in (("user", "http://good.example:80@evil.example/"), ("user two", "http://good.example@evil.example/"),
                   ("case", "http://EVIL.example/"), ("dot", "http://evil.example./"), ("below", "http://good.example.evil.example/"),
                   ("fragment", "http://evil.example#@good.example/"), ("query", "http://evil.example?good.example/"),
                   ("backslash", "http://evil.example\\@good.example/"), ("encoded", "http://evil%2eexample/"),
                   ("space", "http://evil.example /good.example"), ("port", "http://evil.example:80/")):
    attempt(f"{thing}/request", lambda url=url: other(get(url)))
for thing, authority in (("user", "good.example:80@evil.example:80"), ("case", "EVIL.EXAMPLE:80"), ("dot", "evil.example.:80"),
                         ("two ports", "evil.example:80:80"), ("address", "93.184.216.35:80")):
    attempt(f"{thing}/tunnel", lambda authority=authority: other(connect(authority, "evil.example")))
attempt("twofold host", lambda: other(raw("GET http://evil.example/ HTTP/1.1\r\nhost: good.example\r\nhost: good.example\r\n\r\n")))
attempt("smuggled by length", lambda: other(twice(
    "POST http://good.example/ HTTP/1.1\r\nhost: good.example\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n"
    "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: evil.example\r\n\r\n")))
attempt("smuggled by line", lambda: other(raw("GET http://good.example/\r\nhost:evil.example HTTP/1.1\r\n\r\n")))
attempt("connect, another host header", lambda: other(raw_connect()))


done()

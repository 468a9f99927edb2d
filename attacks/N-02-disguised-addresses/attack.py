# The same addresses, written in another way, behind a name, or behind a redirect.
for host in ("2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "169.16689662", "0xa9.254.169.254", "127.1", "[::ffff:169.254.169.254]",
             "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "meta.example", "private.example", "alias.example",
             "mapped.example", "nat64.example"):
    every_way(host)
for turn in range(6):
    # Public the first time, and then not.
    for way, act in (("request", lambda: get("http://rebind.example/")), ("tunnel", lambda: connect("rebind.example:80"))):
        def rebound(act=act):
            if b'"reached": "169.254.169.254"' not in act():
                refused("reached the public address")
        attempt(f"rebind{turn}/{way}", rebound)


def redirected():
    with dial(PROXY) as stream:
        stream.sendall(b"GET http://good.example/redirect HTTP/1.1\r\nhost: good.example\r\n\r\n")
        said = stream.recv(65536).decode("latin1")
    get(said.split("location: ")[1].split("\r\n")[0])


attempt("redirect", redirected)
done()

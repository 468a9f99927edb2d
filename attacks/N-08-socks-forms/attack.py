# SOCKS in all its forms, and what is no HTTP at all.
for thing, act in {
    "name": lambda: socks("evil.example"), "address": lambda: socks("93.184.216.35", kind=1),
    "version 6": lambda: socks("2606:2800:220::34", kind=4),
    "bind": lambda: socks("evil.example", command=2), "datagrams": lambda: socks("evil.example", command=3),
}.items():
    attempt(thing, act)


def plain(stream):
    with stream:
        if not stream.recv(100).startswith(b"hello first"):
            refused("nobody there")


attempt("plain", lambda: plain(tunnel("evil.example:2222")))
done()

"""Plain HTTP and h2c on the TLS port; ALPN against what is spoken; unknown, empty-looking and very long lists of protocols."""
from common import *
for n, d in {"plain HTTP": b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", "plain HTTP with a key": f"GET /v1/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n\r\n".encode(), "h2c preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", "SSLv2 hello": bytes.fromhex("802e0100020015000000100100800200800300800400800500800600400700c0") + os.urandom(16), "proxy protocol": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "NUL bytes": b"\0" * 100}.items():
    s = tcp(); s.sendall(d); b = time.monotonic(); got, end = drain(s, 7); print(f"{n:24} answer {got[:16].hex() or '-'} {end} after {time.monotonic()-b:.1f} s")
H2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"; H1 = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
for alpn, say, n in ((["h2"], H1, "h2 agreed, HTTP/1.1 spoken"), (["http/1.1"], H2, "http/1.1 agreed, h2 spoken"), (None, H2, "none, h2 spoken"), (None, H1, "none, HTTP/1.1 spoken"), (["h2", "http/1.1"], H2, "both offered"), (["spdy/3"], H1, "spdy/3 only"), (["ftp", "smtp"], H1, "another protocol's (ALPACA)"), (["acme-tls/1"], H1, "acme-tls/1"), (["http/1.0"], H1, "http/1.0"), (["x" * 255] * 200, H1, "200 long names"), (["H2"], H1, "H2 in capitals")):
    try: s = tls(alpn=alpn); sel = s.selected_alpn_protocol(); s.sendall(say); got, end = drain(s, 2); print(f"{n:30} selected {sel} -> {got[:24]} {end}")
    except OSError as e: print(f"{n:30} {str(e)[:80]}")

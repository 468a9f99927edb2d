"""Shared by the payloads: BELLGLASS_TLS=host:port (127.0.0.1:port), BELLGLASS_CA=authority, BELLGLASS_API_KEY=an administrator's key."""
import json, os, random, socket, ssl, sys, time
HOST, PORT = os.environ.get("BELLGLASS_TLS", "127.0.0.1:17473").rsplit(":", 1); HOST = "127.0.0.1" if HOST == "localhost" else HOST; PORT = int(PORT)
CA, ADMIN = os.environ["BELLGLASS_CA"], os.environ.get("BELLGLASS_API_KEY", "")
def tcp(src=None, timeout=8): return socket.create_connection((HOST, PORT), timeout=timeout, source_address=(src, 0) if src else None)
def context(alpn=None, check=True):
    c = ssl.create_default_context(cafile=CA)
    if not check: c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    if alpn: c.set_alpn_protocols(alpn)
    return c
def tls(name="localhost", alpn=None, src=None, check=True): return context(alpn, check).wrap_socket(tcp(src), server_hostname=name)
def drain(s, seconds):
    s.settimeout(.2); got, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        try: p = s.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError): continue
        except OSError as e: return got, repr(e)[:80]
        if not p: return got, "ended"
        got += p
    return got, "open"
def ask(path="/healthz", method="GET", name="localhost", host=None, headers=(), body=b"", s=None, wait=3):
    s = s or tls(name)
    h = f"{method} {path} HTTP/1.1\r\nhost: {host or name}\r\nconnection: close\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers) + (f"content-length: {len(body)}\r\n" if body or method in ("POST", "PUT") else "") + "\r\n"
    s.sendall(h.encode() + body); return drain(s, wait)[0]
def api(method, path, body=None, key=None, headers=()):
    h = [("authorization", "Bearer " + (key or ADMIN)), *headers]
    if body is not None: h.append(("content-type", "application/json"))
    got = ask(path, method, headers=h, body=json.dumps(body).encode() if body is not None else b"", wait=15)
    head, _, data = got.partition(b"\r\n\r\n")
    try: data = json.loads(data)
    except ValueError: pass
    return int(head[9:12] or 0), data, head.decode("latin1")
def rss(pid): return int([l for l in open(f"/proc/{pid}/status") if l.startswith("VmRSS")][0].split()[1])
def cpu(pid): a = open(f"/proc/{pid}/stat").read().split(") ")[1].split(); return (int(a[11]) + int(a[12])) / os.sysconf("SC_CLK_TCK")

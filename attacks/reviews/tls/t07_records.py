"""Records: a ClientHello in records of one byte; one that claims 16 MiB; endless handshake bytes; floods of empty records, alerts and ChangeCipherSpec before the
handshake; a record of 2^14+1000; wrong versions; a request in records of one byte. What is answered, in which time, at which cost. BELLGLASS_PID is the server."""
from common import *
PID = int(os.environ["BELLGLASS_PID"])
def hello():
    i, o = ssl.MemoryBIO(), ssl.MemoryBIO(); obj = context().wrap_bio(i, o, server_hostname="localhost")
    try: obj.do_handshake()
    except ssl.SSLWantReadError: pass
    return o.read()
H = hello(); body = H[5:]; rec = lambda kind, d, v=b"\x03\x01": bytes([kind]) + v + len(d).to_bytes(2, "big") + d
ALERT = {10: "unexpected_message", 20: "bad_record_mac", 22: "record_overflow", 40: "handshake_failure", 47: "illegal_parameter", 50: "decode_error", 70: "protocol_version", 80: "internal_error", 0: "close_notify"}
def told(g): return f"alert {ALERT.get(g[6], g[6])}" if g[:1] == b"\x15" and len(g) >= 7 else ("ServerHello" if g[:1] == b"\x16" else g[:10].hex() or "nothing")
def trial(n, data, wait=6, most=8 << 20):
    r0, c0, b = rss(PID), cpu(PID), time.monotonic(); s = tcp(); sent = 0
    try:
        for d in data:
            s.sendall(d); sent += len(d)
            if sent > most or time.monotonic() - b > 6: break
    except OSError: pass
    g, end = drain(s, wait); s.close()
    print(f"{n:44} sent {sent:>8} -> {told(g):24} {end:34.34} {time.monotonic()-b:4.1f} s, cpu {cpu(PID)-c0:.2f} s, RSS {(rss(PID)-r0)//1024:+d} MiB")
trial("ClientHello in records of 1 byte", [b"".join(rec(22, body[i:i+1]) for i in range(len(body)))], 1); trial("ClientHello that claims 16 MiB", [rec(22, b"\x01\xff\xff\xff\x03\x03")] + [rec(22, b"\0" * 16384)] * 512)
trial("ClientHello of 64 KiB", [rec(22, b"\x01\x00\xff\xff\x03\x03" + b"\0" * 1000)] + [rec(22, b"\0" * 16384)] * 4); trial("empty handshake records", [rec(22, b"") * 1000] * 400); trial("ChangeCipherSpec flood", [rec(20, b"\1") * 1000] * 400); trial("ClientHello then ChangeCipherSpec flood", [H] + [rec(20, b"\1") * 1000] * 400)
trial("warning alerts flood", [rec(21, b"\1\x5a") * 1000] * 400); trial("application data first", [rec(23, b"GET / HTTP/1.1\r\n\r\n")], 2); trial("record of 2^14+1000", [b"\x16\x03\x01" + (17384).to_bytes(2, "big") + b"\1" * 17384], 2); trial("record of 65535", [b"\x16\x03\x01\xff\xff" + b"\1" * 65535], 2); trial("version 0x0505", [b"\x16\x05\x05" + H[3:]], 2); trial("two ClientHellos", [H + H], 2); trial("ClientHello, then plain HTTP", [H, b"GET / HTTP/1.1\r\n\r\n"], 2); trial("ServerHello from the client", [rec(22, b"\x02" + body[1:])], 2); trial("hello request first", [rec(22, b"\0\0\0\0")], 2); trial("heartbeat (Heartbleed)", [H, bytes.fromhex("1803030003014000")], 2)
s = tls(); c0 = cpu(PID); b = time.monotonic()
for ch in b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n": s.send(bytes([ch]))
print("a request in records of one byte:", drain(s, 2)[0][:15]); 
s = tls(); c0 = cpu(PID); n = 0
s.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: "); b = time.monotonic()
try:
    while time.monotonic() - b < 3: s.send(b"a"); n += 1
except OSError: pass
print(f"a head in records of one byte for 3 s: {n} records, server {cpu(PID)-c0:.2f} s"); print("and another client:", ask()[:15])
raw = tcp(); t = context().wrap_socket(raw, server_hostname="localhost"); t.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nhost: x\r\n\r\n"); g, e = drain(t, 1); raw2 = t.detach(); print("closed without close_notify: answered", g[:12], "| server lives:", ask()[:15]); os.close(raw2)

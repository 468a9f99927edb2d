"""Who pays for handshakes: 200 silent connections, 200 that stop in the middle, 200 that stop after the handshake, a slow one of a byte every 0.5 s,
and 4 s of complete handshakes that say nothing, while a client with a key asks. BELLGLASS_PID is the server."""
import threading
from common import *
PID = int(os.environ["BELLGLASS_PID"]); base = rss(PID); print("RSS before:", base // 1024, "MiB")
def hello(n=0):
    i, o = ssl.MemoryBIO(), ssl.MemoryBIO(); c = context(["h2", "http/1.1"]); obj = c.wrap_bio(i, o, server_hostname="localhost")
    try: obj.do_handshake()
    except ssl.SSLWantReadError: pass
    return o.read()
def lat():
    b = time.monotonic(); st = api("GET", "/v1/sandboxes")[0]; return st, (time.monotonic() - b) * 1000
def hold(n, what, seconds=7):
    ss = []
    for _ in range(200):
        s = tcp(); 
        if what: what(s)
        ss.append(s)
    time.sleep(1); m = rss(PID); l = [lat() for _ in range(3)]; begun = time.monotonic(); left = ss; ended = None
    while time.monotonic() - begun < seconds + 1:
        time.sleep(.5); alive = 0
        for s in ss:
            s.settimeout(0.0)
            try:
                while s.recv(65536): pass
            except (BlockingIOError, ssl.SSLWantReadError): alive += 1
            except OSError: pass
        if not alive and ended is None: ended = time.monotonic() - begun + 1
    print(f"{n:44} RSS +{(m - base) // 1024} MiB, a client with a key: {[f'{a} {b:.0f} ms' for a, b in l]}, all let go after {ended and round(ended, 1)} s, then RSS +{(rss(PID) - base) // 1024} MiB"); [s.close() for s in ss]
H = hello()
hold("200 silent", None); hold("200 half a ClientHello", lambda s: s.sendall(H[:len(H) // 2])); hold("200 stop after the ServerHello", lambda s: s.sendall(H))
big = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xf0" + b"\x03\x03" + b"\0" * (0x4000 - 6); more = b"\x16\x03\x01\x40\x00" + b"\0" * 0x4000
hold("200 with 48 KiB of an unfinished ClientHello", lambda s: s.sendall(big + more * 2))
s = tcp(); b = time.monotonic(); n = 0
try:
    while time.monotonic() - b < 15:
        s.sendall(H[n:n + 1]); n += 1; time.sleep(.5); s.settimeout(0.0)
        try:
            if s.recv(100) == b"": break
        except BlockingIOError: pass
        s.settimeout(5)
except OSError: pass
print(f"a byte every 0.5 s: ended after {time.monotonic()-b:.1f} s and {n} bytes")
# complete handshakes for 4 s by two threads
stop = time.monotonic() + 4; done = [0, 0]; c0 = cpu(PID)
def flood(i):
    c = context()
    while time.monotonic() < stop:
        try: c.wrap_socket(tcp(), server_hostname="localhost").close(); done[i] += 1
        except OSError: pass
quiet = [lat()[1] for _ in range(20)]; ts = [threading.Thread(target=flood, args=(i,)) for i in (0, 1)]; [t.start() for t in ts]; busy = []
while time.monotonic() < stop - .3: busy.append(lat()[1])
[t.join() for t in ts]; print(f"handshakes: {sum(done)} in 4 s, server used {cpu(PID)-c0:.1f} s of processor; request with fresh connection: quiet median {sorted(quiet)[10]:.0f} ms, during {sorted(busy)[len(busy)//2]:.0f} ms, worst {max(busy):.0f} ms; RSS +{(rss(PID)-base)//1024} MiB")
